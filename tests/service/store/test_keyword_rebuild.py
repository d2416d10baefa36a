"""Stores with terms of older rules are indexed again at the first start, once."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from service.store.sqlite import fulltext, schema, secondary_indexes
from service.store.sqlite.postings import PostingCache
from service.store.sqlite.schema import MIGRATIONS, connect, migrate
from service.store.sqlite.secondary_indexes import bring_up_to_date
from tests import postgres
from tests.waiting import until

TEXTS = {"default": ["many buses", "Łódź", "Part ABC-123"], "other": ["Hitman™", "three lenses"]}
QUERIES = {"default": ["bus", "Lodz", "ABC-123"], "other": ["Hitman", "lens"]}
DONE = "Indexing the words of the documents: 5 of 5 are done"


def old_sqlite(folder: Path) -> Path:
    """Makes a store of schema 14, whose FTS5 tables stem the terms."""
    path = folder / "simile.db"
    with closing(connect(path)) as connection:
        for number in range(12, 15):
            connection.executescript(MIGRATIONS[number])
        connection.execute("INSERT INTO collections (name) VALUES ('other')")
        connection.execute(
            "CREATE VIRTUAL TABLE lexical_2 USING fts5 (text, content='', tokenize='porter ascii')"
        )
        for number, (collection, texts) in enumerate(TEXTS.items(), start=1):
            for at, text in enumerate(texts):
                sql = "INSERT INTO documents (collection, id, text, metadata) VALUES (?, ?, ?, '{}')"
                revision = connection.execute(sql, (collection, str(at), text)).lastrowid
                sql = f"INSERT INTO lexical_{number} (rowid, text) VALUES (?, ?)"
                connection.execute(sql, (revision, text))
        connection.execute("INSERT INTO facts VALUES ('lexical rules', '2, Unicode 14.0.0')")
        connection.execute("PRAGMA user_version = 14")
    return path


def check_sqlite(path: Path) -> None:
    with closing(connect(path)) as connection:
        assert secondary_indexes.unequal(connection) == []
        assert schema.foreign(connection, schema.SCHEMA_VERSION) is None
        for collection, queries in QUERIES.items():
            for at, query in enumerate(queries):
                revisions, _ = fulltext.nearest(connection, PostingCache(), query, 10, None, collection)
                sql = "SELECT id FROM documents WHERE revision = ?"
                assert [connection.execute(sql, (each,)).fetchone() for each in revisions.tolist()] == [
                    (str(at),)
                ], query


def start(path: Path) -> None:
    migrate(path)
    with closing(connect(path)) as connection:
        bring_up_to_date(connection)


def test_a_data_directory_of_older_rules_is_indexed_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = old_sqlite(tmp_path)
    start(path)
    check_sqlite(path)
    assert caplog.messages == [DONE]
    start(path)
    assert caplog.messages == [DONE]


def test_a_rebuild_of_a_data_directory_that_fails_half_way_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = old_sqlite(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(fulltext, "cut", lambda text: text if "buses" in text else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            start(path)
    start(path)
    check_sqlite(path)


def old_postgres() -> str:
    """Makes a database of the schema whose terms FTS5 stemmed."""
    psycopg = pytest.importorskip("psycopg", reason="needs the extra postgres")
    from service.store.postgres import schema

    url = postgres.new_database()
    with psycopg.connect(url, autocommit=True) as raw:
        raw.execute("CREATE TABLE simile_schema (version integer NOT NULL)")
        at = next(at for at, sql in enumerate(schema.MIGRATIONS) if "term_postings" in sql)
        for statements in schema.MIGRATIONS[:at]:
            raw.execute(statements)
        raw.execute("INSERT INTO simile_schema VALUES (%s)", (at,))
        raw.execute("INSERT INTO collections VALUES ('other')")
        for collection, texts in TEXTS.items():
            for at, text in enumerate(texts):
                sql = "INSERT INTO documents (collection, id, title, text, metadata) "
                sql += "VALUES (%s, %s, '', %s, '{}')"
                raw.execute(sql, (collection, str(at), text))
            raw.execute("INSERT INTO tally VALUES (%s, %s, 77)", (collection, len(texts)))
            raw.execute("INSERT INTO postings VALUES (%s, 'bus', 1, 1, '\\x00')", (collection,))
    return url


def opened(url: str) -> Any:
    from service.store.postgres.store import PostgresStore

    return PostgresStore(url, [], connections=4, answer_seconds=20)


def check_postgres(url: str) -> None:
    from service.store.postgres import fulltext
    from service.store.postgres.reader import Snapshot

    with closing(opened(url)) as store, store.pool.connection() as raw, raw.transaction():
        snapshot = Snapshot(raw)
        for collection, queries in QUERIES.items():
            for at, query in enumerate(queries):
                revisions, _ = fulltext.nearest(snapshot, fulltext.BlockCache(), query, 10, None, collection)
                sql = "SELECT id FROM documents WHERE revision = ANY(?)"
                assert snapshot.execute(sql, (revisions.tolist(),)).fetchall() == [(str(at),)], query
        sql = "SELECT collection, sum(documents)::bigint FROM tally GROUP BY 1 ORDER BY 1"
        assert snapshot.execute(sql).fetchall() == [("default", 3), ("other", 2)]
        assert snapshot.execute("SELECT sum(tokens)::bigint FROM tally").fetchone() == (2 + 1 + 5 + 2 + 2,)


def test_replicas_index_a_database_of_older_rules_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = old_postgres()
    from service.store.postgres import fulltext

    caplog.set_level(logging.INFO)
    goes_on, add_all = threading.Event(), fulltext._add_all
    calls: list[object] = []

    def hold(raw: Any) -> None:
        calls.append(raw)
        assert goes_on.wait(60)
        add_all(raw)

    monkeypatch.setattr(fulltext, "_add_all", hold)
    with ThreadPoolExecutor(3) as threads:
        replicas = [threads.submit(opened, url) for _ in range(3)]
        until(lambda: caplog.text.count("Another replica indexes the words of the documents") == 2)
        goes_on.set()
        for replica in replicas:
            replica.result().close()
    assert len(calls) == 1
    assert caplog.messages.count(DONE) == 1
    check_postgres(url)
    assert len(calls) == 1


def test_a_rebuild_of_a_database_that_fails_half_way_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    url = old_postgres()
    from service.store.postgres import fulltext

    change: Callable[..., None] = fulltext.change_postings
    monkeypatch.setattr(fulltext, "REBUILT_POSTINGS", 1)

    def fail(connection: Any, collection: str, added: Any, removed: Any) -> None:
        change(connection, collection, added, removed)
        if collection == "other":
            raise ZeroDivisionError

    with monkeypatch.context() as broken:
        broken.setattr(fulltext, "change_postings", fail)
        with pytest.raises(ZeroDivisionError):
            opened(url)
    check_postgres(url)

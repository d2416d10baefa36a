"""Fields of SIMILE_INDEXED_FIELDS: lookups find what scans find, and the table follows the documents."""

import logging
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from models.messages import amount
from service.cli.check import require_usable
from service.errors import StartupError
from service.settings import read
from service.store.filters.grammar import Predicate
from service.store.sql.records import page
from service.store.sqlite import filters, secondary_indexes
from service.store.sqlite.documents import INLINE_REVISIONS, count
from service.store.sqlite.filters import compile_filter
from service.store.sqlite.reader import Snapshot
from service.store.sqlite.schema import connect, harden, migrate
from service.store.sqlite.secondary_indexes import bring_up_to_date
from service.store.values import DEFAULT_COLLECTION
from tests.service.conftest import new_settings, serving
from tests.service.filtering import cases, matches

ROWS: list[dict[str, Any]] = [
    {"n": at, "third": at % 3, "tags": ["even" if at % 2 == 0 else "odd", at % 5], "at": {"x": at / 4}}
    for at in range(60)
] + [
    {"n": "7", "third": None, "at": {"x": True}},
    {"n": [1, 100], "third": [], "at": [{"x": 1}]},
    {"n": {"n": 3}, "third": False, "at": {"x": [0.5, "a"]}},
    {},
    {"at.x": 7, "svc.a.b": "x", "when": "2024-01-01T01:30:00+02:00"},
    {"at.x": "b", "at": {"x": 0.5}, "svc": {"a.b": "y"}, "when": "2023-12-31T20:00:00-05:00"},
    {"at": [{"x": 3}, {"x": [4, 0.5]}, {"y": 1}, 5], "svc": [{"a": [{"b": "x"}, {"b": "z"}]}]},
    {"svc.a": {"b": None}, "when": ["2024-01-01", "2024", "2024-01-01T00:00:00.000+00:00"]},
    {"svc": {"a": {"b": []}}, "when": "2024-01-01T00:00:00.5z"},
    {"svc": {"a": "b"}, "when": "2024-01-01 12:00:00"},
    {"svc": {"a": [[{"b": "x"}]]}, "when": "2024-01-32"},
    {"svc": {"a": {"b": "2016-12-31T23:59:60Z"}}, "when": "2024-01-15 noon"},
]
FIELDS = ["n", "third", "tags", "at.x", "svc.a.b", "when"]
FILTERS: list[dict[str, Any]] = [
    {"n": 7},
    {"n": "7"},
    {"n": {"$in": [3, "7", None, 59.0]}},
    {"n": {"$in": []}},
    {"n": {"$gte": 10, "$lt": 20}},
    {"n": {"$gt": 50, "$lte": 90}},
    {"n": {"$gt": 50, "$gte": 55}},
    {"n": {"$gte": 50, "$lt": "8"}},
    {"n": {"$lt": 2}},
    {"n": {"$gte": "0"}},
    {"third": None},
    {"third": False},
    {"third": {"$exists": True}},
    {"third": {"$exists": False}},
    {"third": {"$ne": 1}},
    {"tags": "odd", "third": 2},
    {"tags": {"$in": ["odd", 0]}, "n": {"$lt": 30}, "at.x": {"$gte": 3}},
    {"at.x": {"$gt": 0.25, "$lt": 0.75}},
    {"at.x": {"$lt": "b"}},
    {"$or": [{"n": 3}, {"at.x": True}, {"$and": [{"tags": 4}, {"third": {"$ne": 0}}]}]},
    {"$or": [{"third": 1}, {"third": 2}], "tags": "even"},
    {"third": {"$ne": 0, "$exists": True}, "tags": {"$ne": "odd"}},
    {"at.x": 0.5},
    {"at.x": {"$ne": 7}},
    {"at.x": {"$exists": False}},
    {"at.x": {"$gte": 3.5, "$lt": 3.75}},
    {"svc.a.b": {"$in": ["x", None]}},
    {"svc.a.b": {"$exists": True}},
    {"svc.a.b": {"$ne": "x"}},
    {"svc.a.b": "2017-01-01T00:00:00+00:00"},
    {"when": "2024-01-01T00:00:00Z"},
    {"when": {"$in": ["2024-01-01t00:00:00.50Z", "2024", 1]}},
    {"when": {"$ne": "2024-01-01T00:00:00Z"}},
    {"when": {"$gte": "2024-01-01T00:00:00Z"}},
    {"when": {"$lt": "2024-01-01T00:00:00Z"}},
    {"when": {"$gt": "2024-01-01"}},
    {"when": {"$lte": "2024-01-01T02:00:00+02:00"}},
    {"when": {"$gt": "2023-12-31T23:00:00Z", "$lte": "2024-01-01T00:00:00Z"}},
    {"when": {"$gte": "2024-01-01T00:00:00Z", "$lt": "2024-02"}},
    {"when": {"$gte": "2023-12", "$lt": "2024-01-01 1"}},
    {"when": {"$gte": "2024"}},
    {"when": {"$lt": "2025-01-01"}},
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    migrate(tmp_path / "simile.db")
    connection = connect(tmp_path / "simile.db", Snapshot)
    yield connection
    connection.close()


def put(store: sqlite3.Connection, *rows: dict[str, Any]) -> None:
    for row in rows:
        revision = store.execute(
            "INSERT INTO documents (collection, id, text, metadata) VALUES (?, hex(randomblob(8)), 'a', ?)",
            (DEFAULT_COLLECTION, orjson.dumps(row).decode()),
        ).lastrowid
        assert revision is not None
        secondary_indexes.add(store, revision)


def matching(store: sqlite3.Connection, where: Predicate) -> list[int]:
    found: list[int] = filters.matching(store, where, DEFAULT_COLLECTION).tolist()
    assert found == sorted(set(found))
    assert count(store, where) == len(found)
    return found


def expected(filter: dict[str, Any], rows: Sequence[dict[str, Any]]) -> list[int]:
    return [at + 1 for at, row in enumerate(rows) if matches(filter, row)]


def table(store: sqlite3.Connection) -> set[tuple[Any, ...]]:
    return {*store.execute("SELECT field, value, typeof(value), revision FROM fields")}


@pytest.mark.parametrize("few", [0, 10, 1000])
@pytest.mark.parametrize("declared", [FIELDS, ["third", "at.x"], ["n"], []])
def test_a_lookup_finds_what_a_scan_finds(
    store: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, declared: list[str], few: int
) -> None:
    monkeypatch.setattr(filters, "DIRECT_READS", few)
    bring_up_to_date(store, declared)
    put(store, *ROWS)
    for filter in FILTERS:
        where = compile_filter(filter, declared)
        assert matching(store, where) == expected(filter, ROWS), filter
        ids = [document.id for document in page(cast("Snapshot", store), "", 1000, where)[0]]
        assert len(ids) == len(expected(filter, ROWS))
        assert ids == sorted(ids)


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(cases(), st.data())
def test_random_filters_over_random_documents_pass_the_same(
    case: tuple[dict[str, Any], list[dict[str, Any]]], data: st.DataObject
) -> None:
    filter, rows = case
    names = sorted(named(filter))
    declared = data.draw(st.lists(st.sampled_from(names), unique=True), "declared") if names else []
    store = sqlite3.connect(":memory:", isolation_level=None)
    harden(store)
    store.executescript(
        "CREATE TABLE documents (revision INTEGER PRIMARY KEY, collection TEXT, metadata TEXT);"
        "CREATE TABLE fields (collection, field, value NOT NULL, revision,"
        " PRIMARY KEY (collection, field, value, revision)) WITHOUT ROWID"
    )
    stored = [(DEFAULT_COLLECTION, orjson.dumps(row).decode()) for row in rows]
    store.executemany("INSERT INTO documents (collection, metadata) VALUES (?, ?)", stored)
    filters.add_values(store, declared, (1, len(rows)))
    where = compile_filter(filter, declared)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filters, "DIRECT_READS", data.draw(st.sampled_from([0, 1, 1000]), "few"))
        assert filters.matching(store, where, DEFAULT_COLLECTION).tolist() == expected(filter, rows)
    for revision in range(1, len(rows) + 1):
        filters.remove_values(store, declared, revision)
    assert store.execute("SELECT count(*) FROM fields").fetchone() == (0,)
    store.close()


def named(filter: dict[str, Any]) -> set[str]:
    """Returns the names of the fields in a filter."""
    names: set[str] = set()
    for key, value in filter.items():
        names |= {key} if not key.startswith("$") else set().union(*map(named, value))
    return names


def test_a_lookup_reads_no_metadata(store: sqlite3.Connection) -> None:
    bring_up_to_date(store, FIELDS)
    put(store, *ROWS)
    before = {str(filter): matching(store, compile_filter(filter, FIELDS)) for filter in FILTERS[:8]}
    store.execute("UPDATE documents SET metadata = '{}'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filters, "DIRECT_READS", 0)
        for filter in FILTERS[:4]:
            assert matching(store, compile_filter(filter, FIELDS)) == before[str(filter)]
    plan = store.execute(
        "EXPLAIN QUERY PLAN SELECT group_concat(revision) FROM fields "
        "WHERE collection = ? AND field = ? AND value >= ? AND value < ?",
        (DEFAULT_COLLECTION, "n", 1, 2),
    ).fetchall()
    assert "collection=? AND field=? AND value>? AND value<?" in plan[0][3]


def test_a_filter_is_narrow_only_where_few_pass(store: sqlite3.Connection) -> None:
    bring_up_to_date(store, FIELDS)
    put(store, *ROWS)
    for filter in FILTERS:
        where, few = compile_filter(filter, FIELDS), len(expected(filter, ROWS)) <= 4
        narrow = filters.Lookups(store, DEFAULT_COLLECTION).bound(where, 4) <= 4
        assert few or not narrow, filter
        if where.kind == "lookup" and len(where.lookups) == 1:
            assert narrow == few, filter
    assert filters.Lookups(store, DEFAULT_COLLECTION).bound(compile_filter({"n": 7}, []), 4) > 4


def test_another_collection_is_not_looked_into(store: sqlite3.Connection) -> None:
    bring_up_to_date(store, FIELDS)
    put(store, *ROWS)
    store.execute("UPDATE documents SET collection = 'other' WHERE revision = 8")
    store.execute("UPDATE fields SET collection = 'other' WHERE revision = 8")
    for filter in ({"n": 7}, {"third": {"$ne": 0}}, {"n": {"$gte": 7, "$lt": 8}}):
        where = compile_filter(filter, FIELDS)
        assert 8 not in matching(store, where)
        assert filters.matching(store, where, "other").tolist() == [8]


def test_many_passing_documents_are_paged_in_the_order_of_their_ids(
    store: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring_up_to_date(store, FIELDS)
    put(store, *ROWS)
    where = compile_filter({"third": {"$in": [0, 1]}}, FIELDS)
    few = page(cast("Snapshot", store), "", 7, where)
    assert len(ROWS) < INLINE_REVISIONS
    monkeypatch.setattr("service.store.sqlite.store.documents.INLINE_REVISIONS", 10)
    assert page(cast("Snapshot", store), "", 7, where) == few
    assert few[1]


def test_a_change_of_the_declared_fields_indexes_anew(
    store: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    put(store, *ROWS)
    assert table(store) == set()
    with caplog.at_level(logging.INFO):
        bring_up_to_date(store, ["n", "at.x"])
    assert "fields at.x, n of the documents: 72 of 72 are done" in caplog.text
    both = table(store)
    assert {field for field, *_ in both} == {"n", "at.x"}
    bring_up_to_date(store, ["at.x", "tags"])
    after = table(store)
    assert {field for field, *_ in after} == {"at.x", "tags"}
    assert {row for row in after if row[0] == "at.x"} == {row for row in both if row[0] == "at.x"}
    for filter in FILTERS:
        assert matching(store, compile_filter(filter, ["at.x", "tags"])) == expected(filter, ROWS)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        bring_up_to_date(store, ["tags", "at.x"])
    assert caplog.text == ""
    bring_up_to_date(store, [])
    assert table(store) == set()


def test_values_that_an_older_version_indexed_are_indexed_again(store: sqlite3.Connection) -> None:
    put(store, *ROWS)
    bring_up_to_date(store, FIELDS)
    right = table(store)
    store.execute("UPDATE fields SET value = hex(value) WHERE field = 'when' AND typeof(value) = 'blob'")
    store.execute("DELETE FROM fields WHERE field = 'svc.a.b'")
    store.execute("DELETE FROM facts WHERE name = ?", (secondary_indexes.FIELD_RULES,))
    assert secondary_indexes.unequal(store) == [], "the next start mends it"
    bring_up_to_date(store, FIELDS)
    assert table(store) == right
    assert secondary_indexes.unequal(store) == []


@pytest.mark.parametrize(
    ("damage", "count"),
    [
        ("UPDATE fields SET value = 'other' WHERE revision = 1", 2),
        ("DELETE FROM fields WHERE revision = 2", 2),  # the array, and its member
        ("INSERT INTO fields VALUES ('default', 'a', 1, 99)", 1),
    ],
)
def test_values_that_are_not_the_documents_are_counted(
    store: sqlite3.Connection, damage: str, count: int
) -> None:
    put(store, {"a": 1}, {"a": [1.5]}, {"b": None}, {"a": {"c": "x"}})
    secondary_indexes.bring_up_to_date(store, ["a", "a.c"])
    assert secondary_indexes.unequal(store) == []
    store.execute(damage)
    assert secondary_indexes.unequal(store) == [
        f"{amount(count, 'value')} of the field 'a' looked up wrongly"
    ]


def test_more_documents_than_a_step_are_indexed(
    store: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secondary_indexes, "STEP_DOCUMENTS", 7)
    put(store, *ROWS)
    store.execute("DELETE FROM documents WHERE revision BETWEEN 10 AND 30")
    bring_up_to_date(store, ["n"])
    assert {revision for *_, revision in table(store)} == {*range(1, 10), *range(31, 64)}


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("a..b", "no name before or after a dot"),
        ("topic,$gt", "begins as an operator does"),
        (",".join(map(str, range(33))), "names 33 fields; at most 32"),
    ],
)
def test_a_field_that_no_filter_can_name_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, value: str, complaint: str
) -> None:
    monkeypatch.setenv("SIMILE_INDEXED_FIELDS", value)
    with pytest.raises(StartupError, match=complaint):
        require_usable(read())


@pytest.mark.long
def test_the_service_follows_the_setting_and_every_write(tmp_path: Path, tiny_models_dir: Path) -> None:
    plain = new_settings(tmp_path, tiny_models_dir)
    documents = [{"id": f"d{at:02}", "text": f"river {at}", "metadata": row} for at, row in enumerate(ROWS)]

    def found(client: TestClient) -> list[list[str]]:
        bodies = [{"queries": ["river"], "k": 100, "filter": filter} for filter in FILTERS]
        answers = [client.post("/search", json=body).json()["results"][0] for body in bodies]
        return [sorted(hit["id"] for hit in hits) for hits in answers]

    with serving(plain) as client:
        assert client.post("/documents", json={"documents": documents}).status_code == 200
        first = found(client)
        assert first == [[f"d{at - 1:02}" for at in expected(filter, ROWS)] for filter in FILTERS]
    with serving(plain.model_copy(update={"indexed_fields": ",".join(FIELDS)})) as client:
        assert found(client) == first
        changed = [{**document, "metadata": ROWS[at - 1]} for at, document in enumerate(documents)][5:20]
        assert client.post("/documents", json={"documents": changed}).status_code == 200
        gone = client.delete("/documents", params={"filter": '{"n": {"$in": [40, 41]}}'})
        assert gone.json()["deleted"] == 2
        second = found(client)
    assert second != first
    with serving(plain) as client:
        assert found(client) == second

"""`import --vectors`: documents with vectors from files, and vectors of a version that is not active yet."""

import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from models.bulk.vector_files import DONE
from models.store import ModelStore
from service.__main__ import parser, run
from service.cli.commands import import_vectors
from service.cli.commands.import_vectors import BATCH_ROWS
from service.errors import CommandError
from service.lifecycle.builder import HARMLESS
from service.store.sql.connection import UNINDEXED, fact
from service.store.sqlite.loading import TOGETHER
from service.store.sqlite.schema import DATABASE
from tests import postgres
from tests.parts.places import DOCUMENTS as PLACED
from tests.parts.places import Place, count_embedded, place
from tests.parts.vector_files import write_folder
from tests.service.process import plain_environment
from tests.service.swapping import QUERIES, TEXTS
from tests.waiting import LIMIT, until

__all__ = ["place"]

LONG = "A sentence of a long text that is split into passages. " * 60
DOCUMENTS: list[dict[str, Any]] = [
    {"id": f"d{at:03}", "text": TEXTS[at], "title": f"title {at}", "metadata": {"n": at, "tags": ["a", at]}}
    for at in range(150)
]
DOCUMENTS += [{"id": "long é/ü", "text": LONG, "title": "long"}, {"id": "plain", "text": "plain 東京"}]


@pytest.fixture(autouse=True)
def settings(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the commands use the folders and the database of `place`."""
    monkeypatch.setenv("SIMILE_DATA_DIR", str(place.folder / "data"))
    monkeypatch.setenv("SIMILE_MODELS_DIR", str(place.folder / "models"))
    if database := place.where.get("database"):
        monkeypatch.setenv("SIMILE_DATABASE", str(database))


def write(place: Place, version: str, documents: Any = DOCUMENTS, name: str = "out", **how: Any) -> Path:
    return write_folder(place.folder / name, place.folder / "models", version, documents, **how)


def load(out: Path, *options: str) -> str:
    return run(parser().parse_args(["import", str(out), "--vectors", *options]))


def store(place: Place, documents: Any = DOCUMENTS, path: str = "") -> None:
    for at in range(0, len(documents), 64):
        answer = place.client.post(f"{path}/documents", json={"documents": documents[at : at + 64]})
        assert answer.status_code == 200, answer.text


def look(place: Place) -> list[Any]:
    """Returns the answers to requests that show documents, vectors, terms and metadata."""
    listed = place.client.get("/documents", params={"limit": 1000}).json()["documents"]
    found = [
        hits(place, q, mode) for q in (*QUERIES, "passages 東京") for mode in ("dense", "lexical", "hybrid")
    ]
    return [listed, *found, hits(place, QUERIES[0], "dense", filter='{"n": {"$lt": 50}, "tags": "a"}')]


def hits(place: Place, q: str, mode: str, **more: str) -> dict[str, Any]:
    """Returns ids, scores and passages of a search. Scores are rounded, because batches differ."""
    answer = place.client.get("/search", params={"q": q, "mode": mode, "k": 200, **more})
    assert answer.status_code == 200, answer.text
    return {
        hit["id"]: (pytest.approx(hit["score"], abs=1e-5), hit.get("passage"))
        for hit in answer.json()["hits"]
    }


def count(place: Place) -> int:
    found: int = place.client.get("/documents/count").json()["count"]
    return found


def test_loaded_documents_equal_those_that_the_service_embeds_itself(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = write(place, place.a, parts=3)
    assert load(out) == f"152 documents are stored with vectors of {place.a}."
    run(parser().parse_args(["check", "--data"]))
    embedded = count_embedded(monkeypatch)
    with place.serving():
        loaded = look(place)
        assert not embedded
    other = place.folder / "other"
    shutil.copytree(place.folder / "models", other / "models")
    again = Place(other)
    with again.serving():
        store(again)
        assert look(again) == loaded
    assert load(out).endswith("152 of them had been stored before.")


def test_a_load_that_stops_before_its_index_is_built_leaves_a_usable_database(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "database" not in place.where:
        pytest.skip("is about PostgreSQL")
    from service.store.postgres import loading, vectors
    from service.store.postgres.connection import Connection

    def stop(*_: object) -> None:
        raise CommandError("injected.")

    monkeypatch.setattr(loading.Loader, "finish", stop)
    out = write(place, place.a)
    with pytest.raises(CommandError, match=r"injected. 152 documents are loaded so far"):
        load(out)
    with place.serving():
        documents = place.app.state.runtime.corpus.store
        with documents.pool.connection() as raw:
            assert vectors.is_indexed(Connection(raw), 1)
            assert fact(Connection(raw), UNINDEXED) is None
        assert documents.damage is None
        assert len(hits(place, QUERIES[0], "dense")) == len(DOCUMENTS)


def test_fp16_files_give_unit_vectors_near_to_those_of_the_service(place: Place) -> None:
    load(write(place, place.a, DOCUMENTS[:20], half=True))
    vectors = place.oracle.of(place.a)
    with place.serving():
        found = place.client.get("/search", params={"q": QUERIES[0], "mode": "dense", "k": 20}).json()["hits"]
        own = ModelStore(place.folder / "models").open(place.a)
        for hit in found:
            [vector] = own.encode([f"{hit['title']}\n{hit['text']}"]).vectors
            assert hit["score"] == pytest.approx(float(vector @ vectors[QUERIES[0]]), abs=2e-3)
        own.close()
        assert len(found) == 20


def test_a_new_model_is_embedded_outside_and_activated_under_load(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [{"id": id, "text": text} for id, text in PLACED.items()]
    out = write(place, place.b, texts)
    with place.serving() as client:
        place.fill()
        place.put({"d1": TEXTS[99]})
        client.delete("/documents/d2")
        embedded = count_embedded(monkeypatch)
        said = load(out)
        assert said.startswith(
            f"58 documents have imported vectors of {place.b}; 1 document has another text now; "
            "1 document is not stored. The service will embed 1 other document. Now activate it: "
        )
        assert said.endswith(f"simile models activate {place.b}")
        assert load(out).startswith(f"58 documents have imported vectors of {place.b}; 58 of them had been")
        failures: list[str] = []
        stopping = threading.Event()

        def search() -> None:
            while not stopping.is_set():
                answer = client.get("/search", params={"q": QUERIES[0], "mode": "dense", "k": 100})
                if answer.status_code != 200:
                    failures.append(answer.text)
                else:
                    place.oracle.check_search(answer.json())

        with ThreadPoolExecutor(3) as pool:
            searches = [pool.submit(search) for _ in range(3)]
            place.activate(place.b)
            stopping.set()
            for one in searches:
                one.result()
        assert not failures
        assert {*embedded} <= {HARMLESS.text, TEXTS[99]}
        expected = PLACED | {"d1": TEXTS[99]}
        del expected["d2"]
        assert place.everything() == expected


def test_an_export_is_embedded_without_the_service_and_comes_back(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, exported = place.folder / "out", place.folder / "all.jsonl"
    with place.serving():
        store(place)
        listed = place.client.get("/documents", params={"limit": 1000}).json()["documents"]
        exported.write_text("".join(f"{json.dumps(document)}\n" for document in listed))
        embed = [sys.executable, "-m", "models", "--models-dir", str(place.folder / "models"), "embed"]
        subprocess.run([*embed, str(exported), str(out), "--model", place.b, "--all-columns"], check=True)
        assert load(out).startswith(f"152 documents have imported vectors of {place.b}. Now activate it")
        embedded = count_embedded(monkeypatch)
        place.activate(place.b)
        assert {*embedded} <= {HARMLESS.text}
        loaded = look(place)
    other = place.folder / "other"
    shutil.copytree(place.folder / "models", other / "models")
    again = Place(other)
    again.store.request(place.b)
    with again.serving():
        store(again)
        assert again.active() == place.b
        assert look(again) == loaded
    whole = place.folder / "whole"
    said = load(out, "--data-dir", str(whole)) if "database" not in place.where else ""
    assert said in {"", f"152 documents are stored with vectors of {place.b}."}


def test_imported_vectors_survive_restarts_and_writes_until_their_version_is_activated(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = write(place, place.b)
    with place.serving():
        store(place)
    load(out)
    with place.serving():
        place.until(lambda: place.state(place.b)["state"] == "candidate")
        time.sleep(1.2)  # Two looks of the controller, which drops generations that nobody builds.
        moved = {"id": "d001", "text": TEXTS[1], "title": "title 1", "metadata": {"n": 1000}}
        store(place, [moved])  # The same text keeps its vector.
        embedded = count_embedded(monkeypatch)
        place.activate(place.b)
        assert {*embedded} <= {HARMLESS.text}
        assert "d001" in hits(place, QUERIES[0], "dense", filter='{"n": 1000}')


def test_an_import_of_another_version_replaces_vectors_that_were_imported_before(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place.serving():
        store(place, DOCUMENTS[:8])
        load(write(place, place.b, DOCUMENTS[:8], "b"))
        load(write(place, place.c, DOCUMENTS[:8], "c"))
        embedded = count_embedded(monkeypatch)
        place.activate(place.c)
        assert {*embedded} <= {HARMLESS.text}
        place.activate(place.b)
        assert {*embedded} > {document["text"] for document in DOCUMENTS[:8]}


@pytest.mark.sqlite("PostgreSQL has its index in the database")
def test_vectors_that_a_running_service_has_in_memory_are_refused(place: Place) -> None:
    with place.serving(grace_seconds=LIMIT):
        store(place, DOCUMENTS[:8])
        before = look(place)
        with pytest.raises(CommandError, match=r"active.* Stop the service"):
            load(write(place, place.a, DOCUMENTS[:9], "a"))
        assert look(place) == before
        place.activate(place.b)
        with pytest.raises(CommandError, match=r"standby.* Stop the service"):
            load(place.folder / "a")


def test_a_database_takes_documents_with_vectors_while_services_run(place: Place) -> None:
    if "database" not in place.where:
        pytest.skip("is about PostgreSQL")
    with place.serving():
        store(place, DOCUMENTS[:8])
        load(write(place, place.a))
        assert count(place) == len(DOCUMENTS)
        assert len(hits(place, QUERIES[0], "dense")) == len(DOCUMENTS)
    load(place.folder / "out")
    with place.serving():
        assert count(place) == len(DOCUMENTS)


def test_stored_documents_are_replaced_and_bad_ones_are_rejected(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = [
        DOCUMENTS[0],
        DOCUMENTS[1] | {"text": TEXTS[77]},
        DOCUMENTS[2] | {"metadata": {"n": 2000}},
        {"id": "x" * 513, "text": "an id that is too long"},
        {"id": "blank", "text": " "},
        {"id": "named", "text": "metadata that no filter can name", "metadata": {"a..b": 1}},
        {"id": "new", "text": "new 東京"},
    ]
    with place.serving():
        store(place, DOCUMENTS[:8], "/collections/some")
    with pytest.raises(
        CommandError, match=r"3 documents were rejected. 4 documents are stored .*; 3 of them"
    ):
        load(write(place, place.a, changed), "--collection", "some")
    said = capsys.readouterr().err
    for reason in ("513 characters", "white space only", "the name 'a..b' cannot be stored"):
        assert reason in said
    with place.serving() as client:
        assert client.get("/collections/some/documents/count").json()["count"] == 9
        assert client.get("/collections/some/documents/d001").json()["text"] == TEXTS[77]
        assert client.get("/collections/some/documents/d002").json()["metadata"] == {"n": 2000}
        found = client.get("/collections/some/search", params={"q": "new", "mode": "lexical"}).json()["hits"]
        assert [hit["id"] for hit in found] == ["new"]
        assert count(place) == 0


def test_rows_that_a_later_row_replaces_are_counted(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_vectors, "BATCH_ROWS", 2)  # Equal ids are in one transaction, and in several.
    rows = [DOCUMENTS[0], *({"id": "same", "text": TEXTS[at]} for at in range(4)), DOCUMENTS[1]]
    said = load(write(place, place.a, rows))
    assert "3 documents are stored" in said
    assert said.endswith("; 3 rows were replaced by a later one with the same id.")
    with place.serving() as client:
        assert count(place) == 3
        assert client.get("/documents/same").json()["text"] == TEXTS[3]
    assert "; 3 of them had been stored before; 3 rows" in load(place.folder / "out")


def test_columns_of_tables_are_stored_exactly_or_rejected(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """A column `metadata` of a table is not JSON."""
    out = write(place, place.a, [{"id": id, "text": "red"} for id in "abc"])

    def change(table: pa.Table) -> pa.Table:
        table = table.drop(["metadata"]).append_column("metadata", pa.array(["plain", "7", None]))
        return table.append_column("price", pa.array([1.5, 2.5, float("nan")]))

    edit(out, change)
    with pytest.raises(CommandError, match=r"1 document was rejected. 2 documents are stored"):
        load(out)
    assert "document 'c': a value is nan, which JSON does not have" in capsys.readouterr().err
    edit(
        out,
        lambda table: table.drop(["metadata", "price"]).append_column("metadata", pa.array([{"n": 1}] * 3)),
    )
    with place.serving() as client:
        found = [client.get(f"/documents/{id}").json()["metadata"] for id in "ab"]
        assert found == [{"metadata": "plain", "price": 1.5}, {"metadata": "7", "price": 2.5}]
    load(out)
    with place.serving() as client:
        assert client.get("/documents/c").json()["metadata"] == {"n": 1}


def edit(out: Path, change: Any) -> None:
    [part] = out.glob("part-*")
    table = change(pq.read_table(part))
    pq.write_table(table, part, write_page_checksum=True)


def rewrite(column: str, value: float) -> Any:
    def change(table: pa.Table) -> pa.Table:
        rows = table.to_pylist()
        rows[-1][column] = [value, *rows[-1][column][1:]]
        return pa.Table.from_pylist(rows, table.schema)

    return change


def renamed(**values: str) -> Any:
    def change(table: pa.Table) -> pa.Table:
        given = {f"simile.{name}".encode(): value.encode() for name, value in values.items()}
        return table.replace_schema_metadata({**table.schema.metadata, **given})

    return change


def cut_off(out: Path) -> None:
    [part] = out.glob("part-*")
    part.write_bytes(part.read_bytes()[:-100])


def flip(out: Path) -> None:
    [part] = out.glob("part-*")
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)


def test_fp32_vectors_of_a_gpu_are_those_of_the_service(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = write(place, place.a, DOCUMENTS[:4])
    edit(out, renamed(precision="fp32/onnxruntime-cuda"))
    load(out)
    embedded = count_embedded(monkeypatch)
    with place.serving():
        assert count(place) == 4
        assert not embedded


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda out: edit(out, rewrite("vector", float("nan"))), "is not finite"),
        (lambda out: edit(out, rewrite("vector", float("inf"))), "is not finite"),
        (lambda out: edit(out, rewrite("vector", 2.0)), "must have length 1"),
        (lambda out: edit(out, renamed(fingerprint="0" * 64)), "no version in .* has this fingerprint"),
        (lambda out: edit(out, renamed(dimension="7")), "7 numbers"),
        (lambda out: edit(out, renamed(precision="bf16/onnxruntime")), "computed in bf16.*in fp32"),
        (lambda out: edit(out, renamed(prompt="passage: ")), "prompt 'passage: ', not ''"),
        (lambda out: edit(out, renamed(passages="none")), "passages 'none', not 'default'"),
        (lambda out: edit(out, renamed(format="2")), "format 2, and this release reads format 1"),
        (lambda out: edit(out, lambda table: table.drop_columns(["title", "text"])), "has no texts"),
        (lambda out: edit(out, lambda table: table.slice(0, 3)), "documents"),
        (lambda out: (out / DONE).unlink(), "is not complete"),
        (cut_off, "is not a whole Parquet file"),
        (flip, "damaged|not a whole|cannot be read"),
    ],
)
def test_nothing_is_stored_of_files_that_do_not_fit(place: Place, damage: Any, message: str) -> None:
    out = write(place, place.a, DOCUMENTS[:4])
    damage(out)
    with pytest.raises(CommandError, match=message):
        load(out)
    with place.serving():
        assert count(place) == 0


def test_an_unused_store_takes_the_version_that_its_service_would_start_with(place: Place) -> None:
    out = write(place, place.b, DOCUMENTS[:2])
    with pytest.raises(CommandError, match=rf"would start with {place.a}\..*models activate {place.b}"):
        load(out)
    place.store.request(place.b)
    load(out)
    with place.serving():
        assert place.active() == place.b
        assert count(place) == 2


def test_options_of_other_files_are_refused(place: Place) -> None:
    with pytest.raises(CommandError, match="--title is not for --vectors"):
        load(write(place, place.a, DOCUMENTS[:1]), "--title", "x")
    for option in (("--text", "body"), ("--url", "http://127.0.0.1:1")):
        with pytest.raises(CommandError, match=f"{option[0]} is not for --vectors"):
            load(place.folder / "out", *option)
    with pytest.raises(CommandError, match="does not exist"):
        load(place.folder / "absent")


KILLS = int(os.environ.get("KILLS", "2"))
COMMITTED = BATCH_ROWS * TOGETHER  # Documents of a transaction.


@pytest.mark.sqlite("compares the rows of two files")
def test_a_killed_load_continues_and_ends_as_if_it_had_not_been_killed(place: Place) -> None:
    documents = [
        {"id": f"{at}", "text": TEXTS[at % 300], "metadata": {"n": at}} for at in range(4 * COMMITTED)
    ]
    out = write(place, place.a, documents, parts=4)
    rng, data = random.Random(7), place.folder / "data"
    command = [sys.executable, "-m", "service", "import", str(out), "--vectors"]
    environment = plain_environment(SIMILE_DATA_DIR=str(data), SIMILE_MODELS_DIR=str(place.folder / "models"))
    stopped = 0
    for _ in range(KILLS):
        before = stored(data)
        with subprocess.Popen(command, env=environment) as process:
            until(partial(has_more, partial(stored, data), before, process), pause=0.001)
            time.sleep(rng.uniform(0, 0.5))
            process.send_signal(signal.SIGKILL)
        stopped += before < stored(data) < len(documents)
    assert stopped, "no process was killed in the middle of a load"
    load(out)
    whole = place.folder / "whole"
    load(out, "--data-dir", str(whole))
    assert rows(data) == rows(whole)
    with place.serving():
        assert count(place) == len(documents)
        assert len(hits(place, QUERIES[0], "dense")) == 200


def test_a_killed_load_of_a_database_continues_and_ends_as_if_it_had_not_been_killed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "database" not in place.where:
        pytest.skip("is about PostgreSQL")
    from service.store.postgres import loading

    documents = [
        {"id": f"{at}", "text": TEXTS[at % 300], "metadata": {"n": at}} for at in range(4 * loading.TOGETHER)
    ]
    out = write(place, place.a, documents, parts=2)
    url, rng, stopped = str(place.where["database"]), random.Random(7), 0
    command = [sys.executable, "-m", "service", "import", str(out), "--vectors"]
    models = str(place.folder / "models")
    environment = plain_environment(SIMILE_DATABASE=url, SIMILE_MODELS_DIR=models)
    for _ in range(KILLS):
        before = stored_in_database(url)
        with subprocess.Popen(command, env=environment) as process:
            until(partial(has_more, partial(stored_in_database, url), before, process))
            time.sleep(rng.uniform(0, 0.5))
            process.send_signal(signal.SIGKILL)
        stopped += before < stored_in_database(url) < len(documents)
    assert stopped, "no process was killed in the middle of a load"
    load(out)
    other = postgres.new_database()
    monkeypatch.setenv("SIMILE_DATABASE", other)
    load(out)
    assert rows_in_database(url) == rows_in_database(other)


def stored_in_database(url: str) -> int:
    import psycopg

    with contextlib.suppress(psycopg.Error), psycopg.connect(url) as connection:
        [found] = connection.execute("SELECT count(*) FROM documents").fetchone() or (0,)
        return int(found)
    return 0


def rows_in_database(url: str) -> list[Any]:
    """Returns documents and vectors by id, counts, and how often each term occurs."""
    import psycopg

    queries = (
        "SELECT id, title, text, sent, encode(checksums, 'hex') FROM documents ORDER BY id",
        "SELECT id, passage, md5(vector::text) FROM vectors_1 JOIN documents USING (revision) ORDER BY 1, 2",
        "SELECT sum(documents), sum(tokens) FROM tally",
        "SELECT sum(documents), sum(rows) FROM sizes",
        "SELECT term, sum(octet_length(body) - 1) > 0 FROM term_postings GROUP BY term ORDER BY term",
    )
    with psycopg.connect(url) as connection:
        return [connection.execute(sql).fetchall() for sql in queries]


def has_more(count: Callable[[], int], before: int, process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None or count() > before


def stored(data: Path) -> int:
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(data / DATABASE)) as connection,
    ):
        [found] = connection.execute("SELECT count(*) FROM documents").fetchone()
        return int(found)
    return 0


def rows(data: Path) -> list[Any]:
    """Returns the rows of all tables that loads change, and how often each term occurs."""
    with contextlib.closing(sqlite3.connect(data / DATABASE)) as connection:
        connection.execute("CREATE VIRTUAL TABLE temp.terms USING fts5vocab ('main', 'lexical_1', 'row')")
        tables = ["documents", "vectors", "operations", "collections", "terms", "lexical_1_docsize"]
        return [connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in tables]

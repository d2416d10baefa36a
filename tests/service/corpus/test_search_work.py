"""Limits of the work of a search, counted in rankings, documents read and metadata parsed."""

import itertools
import json
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Message, Scope

from service.corpus import search as searching
from service.corpus.query import Search
from service.errors import Unhealthy
from service.index.index import Index
from service.runtime.runtime import Runtime
from service.settings import Settings
from service.store.scheduling import READERS
from service.store.sql import records
from service.store.sqlite import documents, vectors
from service.store.sqlite.reader import Snapshot
from service.store.sqlite.schema import DATABASE
from service.store.values import Document, Record
from tests.service.conftest import HOST
from tests.service.fakes import run, sqlite_of, until
from tests.waiting import LIMIT

TEXTS = [f"river stone number{at} {'market' if at % 2 else 'garden'}" for at in range(40)]


@pytest.fixture(scope="module", autouse=True)
def _filled(running: TestClient) -> None:
    rows = [{"id": f"d{at:02}", "text": text, "metadata": {"n": at}} for at, text in enumerate(TEXTS)]
    assert running.post("/documents", json={"documents": rows}).status_code == 200


@pytest.fixture
def ranked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records the queries that get a lexical ranking."""
    calls: list[str] = []
    nearest = Snapshot.nearest_words

    def counted(snapshot: Snapshot, query: str, *rest: Any) -> Any:
        calls.append(query)
        return nearest(snapshot, query, *rest)

    monkeypatch.setattr(Snapshot, "nearest_words", counted)
    return calls


def test_too_many_candidates_are_refused_before_any_is_ranked(client: TestClient, ranked: list[str]) -> None:
    refused = client.post("/search", json={"queries": ["river"] * 2048, "mode": "hybrid", "k": 1})
    assert refused.status_code == 422
    assert "SIMILE_MAX_CANDIDATES" in refused.json()["error"]
    assert "250 queries at a time" in refused.json()["error"]
    deep = client.post("/search", json={"queries": ["river"] * 46, "mode": "hybrid", "offset": 1000})
    assert "45 queries at a time" in deep.json()["error"]
    assert ranked == []


def test_what_reasonable_requests_ask_for_is_allowed(client: TestClient) -> None:
    for body in (
        {"queries": ["river"] * 250, "mode": "hybrid", "k": 10},
        {"queries": ["river"] * 2048, "mode": "lexical", "k": 10},
        {"queries": ["river"] * 50, "mode": "dense", "k": 1000},
        {"queries": ["river"], "mode": "hybrid", "k": 1000, "offset": 10_000},
    ):
        queries = body["queries"]
        assert isinstance(queries, list)
        response = client.post("/search", json=body)
        assert response.status_code == 200, response.text
        assert len(response.json()["results"]) == len(queries)


@pytest.mark.parametrize(
    ("search", "candidates"),
    [
        (Search(k=10), 10),
        (Search(k=10, offset=90, mode="lexical"), 100),
        (Search(k=1, mode="hybrid"), 2000),
        (Search(k=1000, mode="hybrid"), 2000),
        (Search(k=1000, offset=1, mode="hybrid"), 22_000),
    ],
)
def test_candidates_are_those_of_both_rankings(search: Search, candidates: int) -> None:
    assert search.candidates == candidates


@pytest.mark.parametrize("mode", ["lexical", "hybrid"])
@pytest.mark.sqlite("it looks into SQLite's file")
def test_a_search_whose_caller_left_ranks_no_further_query(
    client: TestClient, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """The client disconnects during the third query."""
    calls: list[str] = []
    third, left = threading.Event(), threading.Event()
    nearest = Snapshot.nearest_words

    def held(snapshot: Snapshot, query: str, *rest: Any) -> Any:
        calls.append(query)
        if len(calls) == 3:
            third.set()
            assert left.wait(LIMIT)
        return nearest(snapshot, query, *rest)

    monkeypatch.setattr(Snapshot, "nearest_words", held)
    body = {"queries": [f"river {at}" for at in range(100)], "mode": mode, "k": 1}
    assert client.portal is not None
    try:
        assert client.portal.call(_left, client.app, body, third) == []
    finally:
        left.set()
    readers: Any = sqlite_of(runtime.corpus).readers
    turns = readers._turns
    run(lambda: until(lambda: turns._free == READERS))
    assert len(calls) == 3


async def _left(app: ASGIApp, body: object, when: threading.Event) -> list[Message]:
    """Sends a search, and disconnects when `when` is set. Returns the response messages, if any."""
    begun: list[Message] = []
    parts: Iterator[Message] = iter([{"type": "http.request", "body": json.dumps(body).encode()}])

    async def receive() -> Message:
        if (part := next(parts, None)) is not None:
            return part
        await until(when.is_set)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        begun.append(message)

    scope: Scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/search",
        "raw_path": b"/search",
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(b"host", HOST.encode()), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": (HOST, 80),
    }
    await app(scope, receive, send)
    return begun


def test_each_ranking_is_cut_before_the_next(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fused, existing = searching._fused, searching._existing

    def ranking(*arguments: Any) -> Any:
        steps.append("ranked")
        return fused(*arguments)

    def cut(*arguments: Any) -> Any:
        steps.append("cut")
        return existing(*arguments)

    monkeypatch.setattr(searching, "_fused", ranking)
    monkeypatch.setattr(searching, "_existing", cut)
    response = client.post("/search", json={"queries": TEXTS, "mode": "hybrid", "k": 1})
    assert [hits[0]["text"] for hits in response.json()["results"]] == TEXTS
    assert steps == ["ranked", "cut"] * len(TEXTS)


@pytest.mark.sqlite("PostgreSQL makes both rankings on one connection")
@pytest.mark.parametrize("fails", [False, True])
def test_both_rankings_of_a_query_are_made_at_once(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """The dense search ends after the keyword search, and is waited for even if that fails."""
    worded, waits, ended = (threading.Event() for _ in range(3))
    nearest, search = Snapshot.nearest_words, Index.search

    def lexical(*arguments: Any) -> Any:
        worded.set()
        if fails:
            raise Unhealthy("injected")
        return nearest(*arguments)

    def dense(*arguments: Any, **options: Any) -> Any:
        assert worded.wait(LIMIT)
        assert not fails or waits.wait(LIMIT)
        found = search(*arguments, **options)
        ended.set()
        return found

    def waiting(searches: Any) -> Any:
        waits.set()
        return wait(searches)

    monkeypatch.setattr("service.corpus.search.wait", waiting)
    monkeypatch.setattr(Snapshot, "nearest_words", lexical)
    monkeypatch.setattr(Index, "search", dense)
    response = client.get("/search", params={"q": TEXTS[3], "mode": "hybrid", "k": 1})
    assert ended.is_set()
    assert response.status_code == (503 if fails else 200)
    if not fails:
        assert response.json()["hits"][0]["text"] == TEXTS[3]


@pytest.mark.parametrize(
    ("seconds", "candidates", "expected"),
    [
        (0.0, 65_536, [4, 8, 16, 32, 40]),
        (1.0, 65_536, [4, 2, *[1] * 94]),
        (0.0, 20, [4, 8, *[10] * 8, 8]),
        (0.0, 1, [1] * 100),
    ],
)
@pytest.mark.sqlite("it looks at the index in memory")
def test_as_many_queries_are_compared_at_once_as_take_no_longer_than_a_slice(
    client: TestClient,
    runtime: Runtime,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    candidates: int,
    expected: list[int],
) -> None:
    sizes: list[int] = []
    index = runtime.active.generation.indexes.of("default")
    assert isinstance(index, Index)
    search = index.search

    def counted(queries: Any, *rest: Any, **options: Any) -> Any:
        sizes.append(len(queries))
        return search(queries, *rest, **options)

    now = itertools.count()
    monkeypatch.setattr(index, "search", counted)
    monkeypatch.setattr(searching, "clock", lambda: seconds * next(now))
    monkeypatch.setattr(searching, "TOGETHER_CANDIDATES", candidates)
    assert (
        client.post("/search", json={"queries": ["river"] * 100, "mode": "dense", "k": 1}).status_code == 200
    )
    assert sizes == expected


def test_hits_that_are_too_large_are_counted_and_never_read(
    client: TestClient, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[object] = []
    monkeypatch.setattr(records, "records", lambda *arguments, **_: read.append(arguments))
    few = runtime.settings.model_copy(update={"max_answer_mb": 1})
    monkeypatch.setattr(runtime, "settings", few)
    text = "quagga " + "x" * 600_000
    assert client.post("/documents", json={"documents": [{"id": "q1", "text": text}]}).status_code == 200
    requested = {"queries": ["quagga", "quagga"], "mode": "lexical"}  # The same document twice counts twice.
    refused = client.post("/search", json=requested)
    assert refused.status_code == 422
    assert "SIMILE_MAX_ANSWER_MB" in refused.json()["error"]
    assert read == []
    monkeypatch.undo()
    assert client.post("/search", json=requested).status_code == 200
    client.delete("/documents/q1")


def test_what_grows_in_json_counts_as_it_is_sent(
    client: TestClient, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = runtime.settings.model_copy(update={"max_answer_mb": 1})
    rows = [{"id": f"c{at}", "text": f"okapi{at} okapi " + "\x01" * 150_000} for at in range(2)]
    assert client.post("/documents", json={"documents": rows}).status_code == 200
    with monkeypatch.context() as patch:
        patch.setattr(runtime, "settings", few)
        refused = client.get("/search", params={"q": "okapi", "mode": "lexical"})
        assert "SIMILE_MAX_ANSWER_MB" in refused.json()["error"]
        page = client.get("/documents", params={"after": "c", "limit": 2}).json()
        assert ([document["id"] for document in page["documents"]], page["next"]) == (["c0"], "c0")
    for at in range(2):
        client.delete(f"/documents/c{at}")


@pytest.fixture
def unparsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def parsed(_: Record) -> dict[str, Any]:
        raise AssertionError("metadata were parsed")

    monkeypatch.setattr(Record, "metadata", property(parsed))


@pytest.fixture
def legacy(settings: Settings) -> Iterator[str]:
    """Gives a document more metadata than the limit, as older versions could. Yields the metadata's JSON."""
    path = settings.data_dir / DATABASE
    metadata = '{"big":[' + "[]," * 400_000 + '1],"n":7}'

    def store(given: str) -> None:
        with sqlite3.connect(path, timeout=LIMIT) as connection:
            connection.execute(
                "UPDATE documents SET metadata = ?, checksums = NULL WHERE id = 'd07'", (given,)
            )
        connection.close()

    store(metadata)
    yield metadata
    store('{"n":7}')


@pytest.mark.sqlite("it looks into SQLite's file")
def test_metadata_are_parsed_only_where_a_part_of_them_is_shown(
    client: TestClient, unparsed: None, legacy: str
) -> None:
    whole = client.get("/documents/d07")
    assert whole.status_code == 200
    assert legacy in whole.text
    page = client.get("/documents", params={"after": "d06", "limit": 1})
    assert legacy in page.text
    requested = {"q": TEXTS[7], "k": "1", "mode": "lexical"}
    assert legacy in client.get("/search", params=requested).text
    assert client.get("/search", params=requested | {"fields": "text"}).json()["hits"][0]["text"] == TEXTS[7]
    assert [*client.get("/search", params=requested | {"fields": ""}).json()["hits"][0]] == ["id", "score"]
    assert client.get("/documents/count").json()["count"] >= len(TEXTS)


@pytest.mark.sqlite("it looks into SQLite's file")
def test_a_part_of_large_metadata_is_shown_and_filtered_by(client: TestClient, legacy: str) -> None:
    requested = {"q": TEXTS[7], "k": "1", "mode": "lexical", "fields": "metadata.n", "filter": '{"n": 7}'}
    [hit] = client.get("/search", params=requested).json()["hits"]
    assert (hit["id"], hit["metadata"]) == ("d07", {"n": 7})


def test_an_answer_is_the_json_that_it_was_and_its_parts_are_small(client: TestClient) -> None:
    texts = {f"e{at}": f"emu{at} " + "x" * 300_000 + '"\\\u20ac\u0007' * 100 for at in range(3)}
    rows = [{"id": id, "text": text, "metadata": {"é": [1.5, None]}} for id, text in texts.items()]
    assert client.post("/documents", json={"documents": rows}).status_code == 200
    found = client.get("/documents", params={"after": "e", "limit": 3})
    assert found.json() == {"documents": rows, "next": found.json()["next"]}
    assert found.headers["content-length"] == str(len(found.content))
    one = client.post("/search", json={"queries": ["emu1", "emu2"], "mode": "lexical", "k": 1})
    assert [hits[0]["text"] for hits in one.json()["results"]] == [texts["e1"], texts["e2"]]
    for id in texts:
        client.delete(f"/documents/{id}")


@pytest.mark.sqlite("it looks into SQLite's file")
def test_passages_are_looked_up_row_by_row(settings: Settings) -> None:
    statements: list[str] = []
    with sqlite3.connect(settings.data_dir / DATABASE) as connection:
        connection.set_trace_callback(statements.append)
        vectors.passages(connection, 1, [1 << 16])
        connection.set_trace_callback(None)
        [statement] = [one for one in statements if "end_at" in one]
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
    connection.close()
    assert any(step.startswith("SEARCH vectors") for step in plan), plan
    assert not any(step.startswith("SCAN vectors") for step in plan), plan


@pytest.mark.sqlite("it looks into SQLite's file")
def test_a_text_is_compared_in_the_store_and_only_equal_ones_are_unchanged(settings: Settings) -> None:
    with sqlite3.connect(settings.data_dir / DATABASE, factory=Snapshot) as connection:
        given = [
            Document("d00", TEXTS[0]),
            Document("d01", TEXTS[1] + "\0"),
            Document("d02", TEXTS[2][:-1] + "é"),
            Document("none", TEXTS[0]),
            Document("d03", TEXTS[3]),
        ]
        assert documents.unchanged(connection, given) == {0, 4}
        assert documents.unchanged(connection, given, "other") == set()
        assert records.sample(connection, 2, 5) == ["river"] * 2
        assert records.sample(connection, 2, 5, "other") == []
    connection.close()


def test_a_ranking_is_cut_to_what_is_asked_and_all_that_tie() -> None:
    scores = np.array([0.5, 0.9, 0.5, 0.1, 0.5], np.float32)
    ranking = searching._Ranking.of(np.arange(5), scores)
    assert ranking.select_best(2).revisions.tolist() == [0, 1, 2, 4]
    assert ranking.select_best(1).revisions.tolist() == [1]
    assert ranking.select_best(5) is ranking

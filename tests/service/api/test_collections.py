"""Collections: each stores, finds and deletes its own documents."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from service.corpus.corpus import Corpus
from service.index.index_set import Indexes
from service.settings import Settings
from service.store.filters.grammar import Predicate
from service.store.sqlite.writer import Transaction
from service.store.sqlite.writes import drop_name, upsert
from service.store.values import Document, Embedding
from tests.parts.documents import activate_another, place
from tests.service.brute_force import revisions
from tests.service.conftest import serving, wait_until_active
from tests.service.deleting import delete
from tests.service.fakes import sqlite_of
from tests.waiting import LIMIT

__all__ = ["place"]

TEXTS = {
    "": {"a": "red river", "b": "blue stone market", "c": "the cat sleeps"},
    "tickets": {"a": "reset the password", "b": "close my account", "d": "red river"},
    "notes": {"a": "green garden bridge"},
}
QUERY = "a red river"


def drop(transaction: Transaction, name: str) -> None:
    """Deletes a collection in one write job. The service uses several jobs."""
    delete(transaction, Predicate("1", []), name)
    drop_name(transaction, name)


@pytest.fixture
def client(place: Settings) -> Iterator[TestClient]:
    with serving(place) as client:
        fill(client)
        yield client


def prefix(collection: str) -> str:
    return f"/collections/{collection}" if collection else ""


def fill(client: TestClient) -> None:
    for collection, texts in TEXTS.items():
        documents = [{"id": id, "text": text, "metadata": {"of": collection}} for id, text in texts.items()]
        answer = client.post(f"{prefix(collection)}/documents", json={"documents": documents})
        assert answer.status_code == 200, answer.text


def found(client: TestClient, collection: str, **options: Any) -> dict[str, str]:
    answer = client.get(f"{prefix(collection)}/search", params={"q": QUERY, "k": 100, **options})
    assert answer.status_code == 200, answer.text
    return {hit["id"]: hit["text"] for hit in answer.json()["hits"]}


def check(client: TestClient, expected: dict[str, dict[str, str]]) -> None:
    for collection, texts in expected.items():
        assert found(client, collection) == texts
        listed = client.get(f"{prefix(collection)}/documents").json()["documents"]
        assert {document["id"]: document["text"] for document in listed} == texts
        assert client.get(f"{prefix(collection)}/documents/count").json() == {"count": len(texts)}
    assert client.get("/info").json()["index"]["documents"] == sum(map(len, expected.values()))


def test_each_has_its_own_documents_under_the_same_ids(client: TestClient) -> None:
    check(client, TEXTS)
    assert client.get("/collections").json()["collections"] == [
        {"name": name, "documents": documents, "mode": "hybrid", "ranked": False}
        for name, documents in (("default", 3), ("notes", 1), ("tickets", 3))
    ]
    assert client.get("/collections/default/documents/c").json()["text"] == "the cat sleeps"
    assert client.get("/collections/tickets/documents/c").status_code == 404


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_every_way_to_search_stays_within_one(client: TestClient, mode: str) -> None:
    assert found(client, "", mode=mode).get("a") == "red river"
    assert "a" not in found(client, "tickets", mode="lexical")
    assert set(found(client, "tickets", mode=mode)) <= set(TEXTS["tickets"])
    assert found(client, "tickets", mode=mode)["d"] == "red river"
    filtered = {"mode": mode, "filter": '{"of": "tickets"}'}
    assert found(client, "", **filtered) == {}
    assert found(client, "tickets", **filtered)["d"] == "red river"


def test_words_of_one_collection_do_not_move_the_scores_of_another(client: TestClient) -> None:
    def scores(mode: str) -> dict[str, float]:
        hits = client.get("/search", params={"q": "red river", "mode": mode}).json()["hits"]
        return {hit["id"]: hit["score"] for hit in hits}

    before = scores("lexical"), scores("hybrid")
    crowd = [{"id": f"d{at}", "text": f"red river {at}"} for at in range(200)]
    client.post("/collections/crowd/documents", json={"documents": crowd}).raise_for_status()
    assert (scores("lexical"), scores("hybrid")) == before
    client.delete("/collections/crowd").raise_for_status()
    assert (scores("lexical"), scores("hybrid")) == before


@pytest.mark.sqlite("its jobs run one after another")
def test_one_is_deleted_and_made_again_in_the_commit_of_other_writes(client: TestClient) -> None:
    """The writer drops and creates FTS5 tables in the same commit as other writes."""
    corpus: Corpus = client.app.state.runtime.corpus  # type: ignore[attr-defined]
    gate = threading.Event()
    vector = Embedding(np.full(32, 32**-0.5, np.float32), truncated=False)

    def put(id: str, text: str, collection: str) -> Future[Any]:
        active = corpus.active.generation.number
        job = partial(
            upsert, documents=[Document(id, text)], embedded={active: {0: vector}}, collection=collection
        )
        return sqlite_of(corpus).writer.submit(job)

    held = sqlite_of(corpus).writer.submit(lambda transaction: gate.wait(LIMIT))
    jobs = [
        put("x", "zebra one", "tickets"),
        put("x", "zebra two", "notes"),
        sqlite_of(corpus).writer.submit(lambda transaction: drop(transaction, "tickets")),
        put("y", "zebra three", "tickets"),
        put("z", "zebra four", "new"),
        sqlite_of(corpus).writer.submit(lambda transaction: drop(transaction, "new")),
        put("x", "zebra five", "default"),
    ]
    gate.set()
    held.result(LIMIT)
    for job in jobs:
        job.result(LIMIT)
    for collection, ids in {"": {"x"}, "notes": {"x"}, "tickets": {"y"}}.items():
        answer = client.get(f"{prefix(collection)}/search", params={"q": "zebra", "mode": "lexical"})
        assert {hit["id"] for hit in answer.json()["hits"]} == ids
    assert client.get("/collections/new/search", params={"q": "zebra"}).status_code == 404


def test_one_collection_too_many_is_refused_and_those_that_are_there_go_on(place: Settings) -> None:
    document = {"documents": [{"id": "a", "text": "red river"}]}
    with serving(place.model_copy(update={"max_collections": 3})) as client:
        fill(client)
        refusal = client.post("/collections/fourth/documents", json=document)
        assert refusal.status_code == 409
        assert "SIMILE_MAX_COLLECTIONS" in refusal.json()["error"]
        kind = {"content-type": "application/x-ndjson"}
        lines = client.post("/collections/fourth/documents", content=b'{"text": "red"}', headers=kind)
        assert lines.status_code == 409
        assert client.post("/collections/notes/documents", json=document).status_code == 200
        client.delete("/collections/tickets").raise_for_status()
        assert client.post("/collections/fourth/documents", json=document).status_code == 200


def test_like_a_document_is_of_its_collection(client: TestClient) -> None:
    answer = client.get("/collections/tickets/search", params={"id": "d", "k": 10})
    assert {hit["id"] for hit in answer.json()["hits"]} == {"a", "b"}
    assert client.get("/collections/notes/search", params={"id": "d"}).status_code == 404
    body = {"queries": [{"id": "a"}, {"id": "b"}]}
    results = client.post("/collections/tickets/search", json=body).json()["results"]
    assert [{hit["id"] for hit in hits} for hits in results] == [{"b", "d"}, {"a", "d"}]


def test_an_update_or_a_delete_touches_no_other(client: TestClient) -> None:
    expected = {name: dict(texts) for name, texts in TEXTS.items()}
    client.post("/collections/tickets/documents", json={"documents": [{"id": "a", "text": "a letter"}]})
    expected["tickets"]["a"] = "a letter"
    assert client.delete("/collections/tickets/documents/b").json()["deleted"] == 1
    del expected["tickets"]["b"]
    check(client, expected)
    everything = {"filter": '{"of": {"$exists": true}}'}
    assert client.delete("/collections/notes/documents", params=everything).json()["deleted"] == 1
    expected["notes"] = {}
    check(client, expected)
    assert client.get("/collections/notes/documents/count").json() == {"count": 0}


def test_ndjson_goes_into_the_collection_that_the_path_names(client: TestClient) -> None:
    lines = b'{"id": "n", "text": "open the window"}\n{"id": "m", "text": "paper forest"}\n'
    answer = client.post(
        "/collections/imported/documents", content=lines, headers={"content-type": "application/x-ndjson"}
    )
    assert answer.json()["upserted"] == 2
    check(client, {**TEXTS, "imported": {"n": "open the window", "m": "paper forest"}})


def test_judgments_belong_to_a_collection(client: TestClient) -> None:
    judgment = {"query": QUERY, "id": "d", "relevant": True}
    assert client.post("/feedback", json=judgment).status_code == 404
    assert client.post("/collections/tickets/feedback", json=judgment).status_code == 200
    assert client.get("/feedback/count").json() == {"count": 0}
    assert client.get("/collections/tickets/feedback/count").json() == {"count": 1}
    [listed] = client.get("/collections/tickets/feedback").json()["feedback"]
    assert (listed["query"], listed["id"], listed["relevant"]) == (QUERY, "d", True)
    assert client.delete("/feedback", params={"id": "d"}).json() == {"deleted": 0}
    assert client.delete("/collections/tickets/feedback", params={"id": "d"}).json() == {"deleted": 1}


def test_a_collection_is_deleted_whole_and_can_be_made_again(client: TestClient) -> None:
    judgment = {"query": QUERY, "id": "d", "relevant": True}
    client.post("/collections/tickets/feedback", json=judgment)
    assert client.delete("/collections/tickets").json()["deleted"] == 3
    assert client.get("/collections/tickets/search", params={"q": QUERY}).status_code == 404
    check(client, {"": TEXTS[""], "notes": TEXTS["notes"]})
    documents = [{"id": "d", "text": "another"}]
    assert client.post("/collections/tickets/documents", json={"documents": documents}).status_code == 200
    assert client.get("/collections/tickets/feedback/count").json() == {"count": 0}
    check(client, {**TEXTS, "tickets": {"d": "another"}})
    assert client.delete("/collections/default").json()["deleted"] == 3
    check(client, {"": {}, "tickets": {"d": "another"}, "notes": TEXTS["notes"]})


def test_a_filter_where_none_is_taken_deletes_nothing(client: TestClient) -> None:
    everything = {"filter": '{"of": "tickets"}'}
    for path in ("/collections/tickets", "/collections/tickets/documents/a", "/documents/a"):
        answer = client.delete(path, params=everything)
        assert answer.status_code == 422
        assert "filter" in answer.json()["error"]
    check(client, TEXTS)


def test_what_only_reads_makes_no_collection(client: TestClient) -> None:
    for path in ("search?q=x", "documents", "documents/count", "documents/a", "feedback", "feedback/count"):
        answer = client.get(f"/collections/nowhere/{path}")
        assert answer.status_code == 404
        assert answer.json()["error_type"] == "NotFound"
        assert "GET /collections" in answer.json()["error"]
    for path in ("", "/documents/a", "/feedback?id=a"):
        assert client.delete(f"/collections/nowhere{path}").status_code == 404
    assert client.post("/collections/nowhere/search", json={"queries": ["x"]}).status_code == 404
    assert len(client.get("/collections").json()["collections"]) == 3


@pytest.mark.parametrize("name", ["%2E%2E", ".hidden", "a b", "a%2Fb", "-x", "x" * 65, "é", "a%00"])
def test_a_name_that_is_no_name_is_refused(client: TestClient, name: str) -> None:
    for answer in (
        client.post(f"/collections/{name}/documents", json={"documents": [{"id": "x", "text": "red"}]}),
        client.get(f"/collections/{name}/search", params={"q": "x"}),
    ):
        assert answer.status_code in {404, 422}  # An encoded slash leads to another path.
    assert len(client.get("/collections").json()["collections"]) == 3


def test_they_are_there_again_after_a_restart(place: Settings) -> None:
    with serving(place) as client:
        fill(client)
    with serving(place) as client:
        check(client, TEXTS)


def test_all_of_them_change_to_the_next_model_together(place: Settings) -> None:
    with serving(place) as client:
        fill(client)
        before = client.get("/info").json()["model_version"]
        activate_another(client, place.models_dir)
        check(client, TEXTS)
        encoder = client.app.state.runtime.active.generation.encoder  # type: ignore[attr-defined]
        expected = encoder.encode([QUERY, TEXTS["tickets"]["d"]]).vectors
        [hit] = client.get(
            "/collections/tickets/search", params={"q": QUERY, "mode": "dense", "k": 1}
        ).json()["hits"][:1]
        scores = encoder.encode([*TEXTS["tickets"].values()]).vectors @ expected[0]
        assert hit["score"] == pytest.approx(float(scores.max()), abs=2e-6)
        client.post("/models/rollback")
        wait_until_active(client, before)
        check(client, TEXTS)


@pytest.mark.parametrize(("searched", "written"), [("notes", ""), ("", "notes"), ("tickets", "notes")])
@pytest.mark.parametrize("empty", [False, True])
def test_one_is_searched_while_others_are_written(
    client: TestClient, caplog: pytest.LogCaptureFixture, searched: str, written: str, empty: bool
) -> None:
    everything = {"filter": '{"of": {"$exists": true}}'}
    if empty:
        client.delete(f"{prefix(searched)}/documents", params=everything).raise_for_status()
    expected = {} if empty else TEXTS[searched]
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            document = {"id": "x", "text": f"number {number}"}
            client.post(f"{prefix(written)}/documents", json={"documents": [document]})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(20):
            assert found(client, searched) == expected
    finally:
        stop.set()
        writer.join()
    assert "no moment" not in caplog.text


def test_a_write_to_one_touches_the_index_of_no_other() -> None:
    indexes = Indexes(2)
    east, north = np.array([[1, 0]], np.float32), np.array([[0, 1]], np.float32)
    indexes.apply({"a": (np.array([1 << 16]), east), "b": (np.array([2 << 16]), north)}, {}, sequence=2)
    before = indexes.of("a").view
    indexes.apply({"b": (np.array([3 << 16]), east)}, {"b": [2]}, sequence=4)
    assert indexes.of("a").view is before
    assert (indexes.sequence, indexes.of("b").view.sequence) == (4, 4)
    assert revisions(indexes.of("b")) == [3]
    indexes.apply({}, {"a": [1]}, sequence=5)
    assert {*indexes.collections} == {"default", "b"}
    assert indexes.sequence == 5

"""Each search has a search_id, under which the process remembers the hits."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from service.corpus.recent_searches import SearchShown
from service.runtime.runtime import Runtime
from tests.service.conftest import new_settings, serving

TEXTS = {"a": "red river", "b": "green garden", "c": "blue bridge"}


@pytest.fixture(scope="module", autouse=True)
def _filled(running: TestClient) -> None:
    documents = [{"id": id, "text": text} for id, text in TEXTS.items()]
    for path in ("/documents", "/collections/other/documents"):
        assert running.post(path, json={"documents": documents}).status_code == 200


def remembered(runtime: Runtime, search_id: str) -> SearchShown | None:
    assert runtime.searches is not None
    return runtime.searches.get(search_id)


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_a_search_is_remembered_as_it_was_shown(client: TestClient, runtime: Runtime, mode: str) -> None:
    path = f"/search?q=a+red+garden&k=2&mode={mode}&fields="
    first, second = (client.get(path + fields).json() for fields in ("text", ""))
    assert first["search_id"] != second["search_id"]
    for answer in (first, second):
        shown = tuple(hit["id"] for hit in answer["hits"])
        expected = SearchShown("default", 0, "a red garden", shown)
        assert remembered(runtime, answer["search_id"]) == expected


def test_offset_and_collection_are_remembered(client: TestClient, runtime: Runtime) -> None:
    answer = client.get("/collections/other/search?q=a+bridge&k=1&offset=2").json()
    [hit] = answer["hits"]
    assert remembered(runtime, answer["search_id"]) == SearchShown("other", 2, "a bridge", (hit["id"],))
    answer = client.get("/search", params={"id": "a"}).json()
    assert len(answer["search_id"]) == 12
    assert remembered(runtime, answer["search_id"]) is None


def test_each_query_of_a_batch_has_its_own(client: TestClient, runtime: Runtime) -> None:
    answer = client.post("/search", json={"queries": ["red", "blue", "red"], "k": 3}).json()
    assert len(set(answer["search_ids"])) == 3
    for query, name, hits in zip(
        ["red", "blue", "red"], answer["search_ids"], answer["results"], strict=True
    ):
        assert remembered(runtime, name) == SearchShown("default", 0, query, tuple(hit["id"] for hit in hits))


def test_an_admin_reads_frequent_queries_and_those_without_results(client: TestClient) -> None:
    """The other tests searched in these collections, too, but in a third one only this test."""
    client.post("/collections/third/documents", json={"documents": [{"id": "a", "text": "red river"}]})
    path = "/collections/third/search"
    for query in ("river", "RIVER", "stone", "stone", "stone"):
        assert client.get(path, params={"q": query, "mode": "lexical"}).status_code == 200
    client.post(path, json={"queries": ["river", "hill"], "mode": "lexical"})
    version = client.get("/info").json()["model_version"]
    compared = client.get(path, params={"q": "valley"}, headers={"x-model-version": version})
    assert compared.status_code == 200
    assert client.get("/collections/third/searches").json() == {
        "searches": 7,
        "frequent": [{"query": "river", "searches": 3}, {"query": "stone", "searches": 3}],
        "without_results": [{"query": "stone", "searches": 3}, {"query": "hill", "searches": 1}],
    }
    assert client.delete("/collections/third/events", params={"query": "stone"}).status_code == 200
    assert client.get("/collections/third/searches").json()["searches"] == 4
    client.delete("/collections/third")
    assert client.get("/collections/third/searches").status_code == 404
    client.post("/collections/third/documents", json={"documents": [{"id": "a", "text": "red river"}]})
    assert client.get("/collections/third/searches").json()["searches"] == 0
    client.delete("/collections/third")


def test_with_events_off_no_search_is_named(tmp_path: Path, tiny_models_dir: Path) -> None:
    with serving(new_settings(tmp_path, tiny_models_dir, events=False)) as client:
        client.post("/documents", json={"documents": [{"id": "a", "text": "red"}]})
        assert set(client.get("/search?q=red").json()) == {"query", "model", "mode", "took_ms", "hits"}
        assert set(client.post("/search", json={"queries": ["red"]}).json()) == {"model", "results"}
        answer = client.get("/searches")
        assert (answer.status_code, "SIMILE_EVENTS=0" in answer.json()["error"]) == (409, True)

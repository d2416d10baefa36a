"""Reading a service for a retraining: documents, judgments and events of one collection or several."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.parts.rerankers import publish_reranker
from tests.service.keyed import KEYS, bearer, keys_file, line
from tests.service.process import Service
from tests.waiting import until
from training.errors import TrainingError
from training.retraining.clicks import used_at
from training.retraining.documents import documents_at
from training.retraining.judgements import CONTRADICTED, UNTRUSTED, Judgment, judged, judgments_at
from training.text.service import (
    ALL,
    Searches,
    fetch_count,
    fetch_explained,
    fetch_info,
    fetch_reranked,
    fetch_reranker,
    fetch_searches,
)

OTHER = "sk-another-writer"
TEXTS = {
    "default": {"a": "red river", "count": "blue stone"},
    "tickets": {"a": "reset the password", "b": "close my account"},
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("read")
    keys = keys_file(folder, line("other", "write", OTHER))
    with Service(folder, tiny_models_dir, SIMILE_API_KEYS_FILE=str(keys)) as service:
        for name, texts in TEXTS.items():
            documents = [{"id": id, "text": text} for id, text in texts.items()]
            path = f"/collections/{name}/documents"
            answer = service.client.post(path, json={"documents": documents}, headers=bearer(KEYS["writer"]))
            answer.raise_for_status()
            for key, relevant in ((KEYS["writer"], True), (OTHER, False), (KEYS["boss"], False)):
                given = {"query": f"in {name}", "id": "a", "relevant": relevant}
                answer = service.client.post(f"/collections/{name}/feedback", json=given, headers=bearer(key))
                answer.raise_for_status()
        yield f"http://127.0.0.1:{service.port}"


@pytest.fixture(autouse=True)
def _with_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMILE_SERVICE_KEY", KEYS["reader"])


def test_the_default_collection_is_read_unless_others_are_named(url: str) -> None:
    assert [document.id for document in documents_at(url).kept] == ["a", "count"]
    assert [document.text for document in documents_at(url, ("tickets",)).kept] == [
        *TEXTS["tickets"].values()
    ]
    assert {judgment.query for judgment in judgments_at(url)} == {"in default"}


def test_all_collections_are_read_and_equal_ids_are_two_documents(url: str) -> None:
    found = documents_at(url, ALL)
    assert {(document.collection, document.id): document.text for document in found.kept} == {
        ("default", "a"): "red river",
        ("default", "count"): "blue stone",
        ("tickets", "collection:tickets/a"): "reset the password",
        ("tickets", "collection:tickets/b"): "close my account",
    }
    assert fetch_count(url, ALL) == 4
    assert fetch_searches(url) == Searches(mode=None, passages=True), "nobody told the service anything"


@pytest.mark.long
def test_events_become_judgments_of_their_collection(tmp_path: Path, tiny_models_dir: Path) -> None:
    with Service(tmp_path, tiny_models_dir, SIMILE_SEARCH_MODE="hybrid", SIMILE_PASSAGES="0") as service:
        for path in ("", "/collections/tickets"):
            documents = [{"id": id, "text": f"{id} river"} for id in ("a", "b", "c")]
            service.client.post(f"{path}/documents", json={"documents": documents}).raise_for_status()
        for at in range(8):
            user = {"user": f"visitor-{at % 2}"}
            requested = {"q": "a river", "k": "3", "fields": "", "mode": "dense"} | user
            answer = service.client.get("/collections/tickets/search", params=requested).json()
            shown = [hit["id"] for hit in answer["hits"]]
            event = {"search_id": answer["search_id"], "id": shown[1], "type": "click"}
            service.client.post("/collections/tickets/events", json=event).raise_for_status()
        url = f"http://127.0.0.1:{service.port}"
        used = used_at(url, ALL, 1.0, 3, 2)
        found, line, queries = used[:3]
        assert used_at(url, ALL, 1.0, 3, 3).dropped == {"single visitor": 1}
        known = {document.id: document.id for document in documents_at(url, ALL).kept}
        assert used_at(url, ("default",), None, 3, 2)[:2] == ([], "no events")
        assert fetch_searches(url) == Searches(mode="hybrid", passages=False)
    first, second = (f"collection:tickets/{id}" for id in shown[:2])
    users = {each.user for each in found}
    assert (len(users), {len(user) for user in users}) == (2, {32})
    expected = [
        Judgment("a river", id, id == second, "", of_use=True, user=user)
        for id in (first, second)
        for user in users
    ]
    assert sorted(found) == sorted(expected)
    assert queries == {"tickets": ("a river",)}
    assert line == "8 searches with events (position bias 1): 1 answer, 1 document passed over"
    made = judged(found, known, 0.5)
    assert {**made.train, **made.dev, **made.held} == {"a river": [second]}
    assert made.keys == {}, "without keys nobody else could ever judge there"
    single = judged(found, known, 0.5, ("boss",)).keys
    assert [*single] == ["a river"], "the word of another key is trusted"
    assert made.negatives == {"a river": [first]}


def test_rows_of_a_key_that_is_untrusted_count_for_nothing(tmp_path: Path, tiny_models_dir: Path) -> None:
    keys = keys_file(tmp_path, line("page", "write", OTHER, "", "", "untrusted"))
    with Service(tmp_path, tiny_models_dir, SIMILE_API_KEYS_FILE=str(keys)) as service:
        url = f"http://127.0.0.1:{service.port}"
        documents = {"documents": [{"id": id, "text": f"{id} river"} for id in ("a", "b")]}
        service.client.post("/documents", json=documents, headers=bearer(KEYS["writer"])).raise_for_status()
        for key, id in ((KEYS["writer"], "a"), (OTHER, "b")):
            events = [
                {"search_id": f"{id}{at}", "query": "q", "id": id, "type": "click", "shown": ["a", "b"]}
                | {"user": f"v{at}"}
                for at in range(4)
            ]
            given = {"query": "judged", "id": id, "relevant": True}
            for path, body in (("/events", {"events": events}), ("/feedback", given)):
                service.client.post(path, json=body, headers=bearer(key)).raise_for_status()
        used, said = used_at(url, ALL, 1.0, 3, 2), list(judgments_at(url, ALL))
    assert {(each.query, each.id, each.relevant, each.key) for each in used.judgements} == {
        ("q", "a", True, "writer")
    }
    assert used.dropped == {"untrusted key": 1}
    assert [(each.id, each.trusted) for each in said] == [("a", True), ("b", False)]
    made = judged([*used.judgements, *said], {"a": "a", "b": "b"}, 0.5)
    assert made.answers == {"judged": ["a"], "q": ["a"]}
    assert made.counts[UNTRUSTED] == 1


def test_judgments_come_with_their_keys_and_the_majority_counts(url: str) -> None:
    found = list(judgments_at(url, ALL))
    assert found == [
        Judgment(f"in {name}", id, relevant, key)
        for name, id in (("default", "a"), ("tickets", "collection:tickets/a"))
        for key, relevant in (("writer", True), ("other", False), ("boss", False))
    ]
    known = {document.id: document.id for document in documents_at(url, ALL).kept}
    assert judged(found, known, 0.5)[:2] == ({}, {})
    of_two = [judgment for judgment in found if judgment.key != "boss"]
    assert judged(of_two, known, 0.5).counts[CONTRADICTED] == 2


def test_the_scores_of_a_reranker_are_read_where_it_orders_the_hits_by_default(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    with Service(tmp_path, tiny_models_dir, SIMILE_RERANK_COLLECTIONS="tickets") as service:
        url, texts = f"http://127.0.0.1:{service.port}", TEXTS["tickets"]
        documents = [{"id": id, "text": text} for id, text in texts.items()]
        service.client.post(
            "/collections/tickets/documents", json={"documents": documents}
        ).raise_for_status()
        assert fetch_reranker(url, "tickets") is None, "none is active"
        version = publish_reranker(tmp_path / "models")
        service.client.post(f"/models/{version}/activate").raise_for_status()
        until(lambda: fetch_reranker(url, "tickets") == version)
        assert fetch_reranker(url, "default") is None
        queries, encoder = ["my password", "account"], str(fetch_info(url)["model_version"])
        every = [*fetch_reranked(url, "tickets", queries, 60, version, encoder)]
        for query, found in zip(queries, every, strict=True):
            body = {"query": query, "texts": [*texts.values()]}
            ranks = service.client.post("/rerank", json=body).json()
            expected = {[*texts][rank["index"]]: rank["score"] for rank in ranks}
            assert found == pytest.approx(expected, abs=1e-6)
        with pytest.raises(TrainingError, match="does not rerank with another"):
            [*fetch_reranked(url, "tickets", queries, 60, "another", encoder)]
        assert len([*fetch_explained(url, "tickets", queries, 60, encoder)]) == 2
        searches = service.client.get("/collections/tickets/searches").json()
        assert searches == {"searches": 0, "frequent": [], "without_results": []}, "no user searched"
        other = f"{encoder[:-8]}00000000"
        for fetch in (fetch_explained, partial(fetch_reranked, reranker=version)):
            with pytest.raises(TrainingError, match=f"There is no version '{other}'"):
                [*fetch(url, "tickets", queries, 60, version=other)]

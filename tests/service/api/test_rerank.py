"""The routes of the reranker, in the shapes of TEI, Jina and Cohere."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from models.reranker import Pair, Reranker
from models.store import ModelStore
from service.app import create_app
from service.runtime.runtime import Runtime
from service.settings import Settings
from tests.parts.rerankers import publish_reranker
from tests.service.conftest import new_settings, wait_until_ready
from tests.waiting import until

QUERY = "red river"
TEXTS = ["the cat sleeps", "a stone market letter", "green garden", "open the account", "blue [SEP] window"]
TOLERANCE = 1e-5


class Place:
    """A service with three rerankers, of which the first is active. The third is a classifier."""

    def __init__(self, client: TestClient, runtime: Runtime, versions: list[str]) -> None:
        self.client, self.runtime, self.versions = client, runtime, versions

    def open(self, version: str) -> Reranker:
        return ModelStore(self.runtime.store.root).open_reranker(version)

    def activate(self, version: str) -> None:
        assert self.client.post(f"/models/{version}/activate").status_code in {200, 202}
        until(lambda: self.runtime.active.reranker.version == version)

    def post(self, path: str, **body: Any) -> Any:
        answer = self.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("rerank")
    settings: Settings = new_settings(folder, tiny_models_dir)
    versions = [publish_reranker(folder / "models", seed) for seed in range(2)]
    versions.append(publish_reranker(folder / "models", labels=("no", "yes", "neutral")))
    app = create_app(settings)
    with TestClient(app) as client:
        wait_until_ready(client)
        yield Place(client, app.state.runtime, versions)


@pytest.fixture
def ranking(place: Place) -> Place:
    place.activate(place.versions[0])
    return place


@pytest.fixture
def classifying(place: Place) -> Place:
    place.activate(place.versions[2])
    return place


def expected(place: Place, *, normalize: bool = True, query: str = QUERY) -> np.ndarray[Any, Any]:
    pairs = [Pair(query, text) for text in TEXTS]
    return place.open(place.versions[0]).score(pairs, normalize=normalize)[:, 0]


@pytest.mark.parametrize("raw", [False, True])
def test_rerank_returns_tei_s_shape_best_first(ranking: Place, raw: bool) -> None:
    found = ranking.post("/rerank", query=QUERY, texts=TEXTS, raw_scores=raw, return_text=True)
    scores = expected(ranking, normalize=not raw)
    assert [rank["index"] for rank in found] == np.argsort(-scores, kind="stable").tolist()
    assert [set(rank) for rank in found] == [{"index", "score", "text"}] * len(TEXTS)
    for rank in found:
        assert rank["score"] == pytest.approx(scores[rank["index"]], abs=TOLERANCE, rel=1e-4)
        assert rank["text"] == TEXTS[rank["index"]]


def test_rerank_leaves_texts_out_unless_they_are_requested(ranking: Place) -> None:
    assert set(ranking.post("/rerank", query=QUERY, texts=TEXTS)[0]) == {"index", "score"}


def test_an_answer_names_the_reranker_and_counts_its_tokens(ranking: Place) -> None:
    answer = ranking.client.post("/rerank", json={"query": QUERY, "texts": TEXTS})
    assert answer.headers["x-model-version"] == ranking.versions[0]
    rows = ranking.open(ranking.versions[0]).tokenize([Pair(QUERY, text) for text in TEXTS])
    assert int(answer.headers["x-compute-tokens"]) == sum(len(row.ids) for row in rows)
    characters = sum(len(QUERY) + len(text) for text in TEXTS)
    assert int(answer.headers["x-compute-characters"]) == characters


def test_long_texts_are_truncated_or_refused(ranking: Place) -> None:
    long = "red " * 100
    answer = ranking.client.post("/rerank", json={"query": QUERY, "texts": ["a", long]})
    assert answer.headers["x-truncated"] == "1"
    refused = ranking.client.post("/rerank", json={"query": QUERY, "texts": ["a", long], "truncate": False})
    assert refused.status_code == 422
    assert "Input 1 has" in refused.json()["error"]


@pytest.mark.parametrize(("path", "shows"), [("/v1/rerank", True), ("/v2/rerank", False)])
def test_documents_are_reranked_in_cohere_s_and_jina_s_shape(ranking: Place, path: str, shows: bool) -> None:
    documents = [{"text": text} if at % 2 else text for at, text in enumerate(TEXTS)]
    found = ranking.post(path, query=QUERY, documents=documents, top_n=3, model="rerank-v3.5")
    order = np.argsort(-expected(ranking), kind="stable").tolist()
    assert [each["index"] for each in found["results"]] == order[:3]
    texts = [each.get("document", {}).get("text") for each in found["results"]]
    assert texts == [TEXTS[at] if shows else None for at in order[:3]]
    assert found["results"][0]["relevance_score"] == pytest.approx(expected(ranking).max(), abs=TOLERANCE)
    assert found["usage"]["total_tokens"] > 0
    assert found["meta"]["api_version"]["version"] == path[2]
    assert found["model"] == ranking.versions[0]
    other = ranking.post(path, query=QUERY, documents=documents, return_documents=not shows)
    assert len(other["results"]) == len(TEXTS)
    assert ("document" in other["results"][0]) is not shows


def test_predict_returns_labels_in_tei_s_shape(classifying: Place) -> None:
    pairs = [["red river", "green garden"], ["a cat", "a stone"]]
    scores = classifying.open(classifying.versions[2]).score([Pair(*pair) for pair in pairs])
    found = classifying.post("/predict", inputs=pairs)
    labels = ["no", "yes", "neutral"]
    for row, predictions in zip(scores, found, strict=True):
        assert [each["label"] for each in predictions] == [labels[at] for at in np.argsort(-row)]
        assert [each["score"] for each in predictions] == pytest.approx(
            sorted(row, reverse=True), abs=TOLERANCE
        )
    first = classifying.post("/predict", inputs=pairs[0])
    assert [each["label"] for each in first] == [each["label"] for each in found[0]]


def test_predict_reads_texts_pairs_and_batches_of_both(classifying: Place) -> None:
    reranker = classifying.open(classifying.versions[2])
    text, pair = "red river", ["green garden", "a stone"]

    def scores(found: list[dict[str, Any]]) -> list[float]:
        labelled = {each["label"]: each["score"] for each in found}
        return [labelled[label] for label in ("no", "yes", "neutral")]

    alone = pytest.approx(reranker.score([text])[0], abs=TOLERANCE)
    together = pytest.approx(reranker.score([Pair(*pair)])[0], abs=TOLERANCE)
    assert scores(classifying.post("/predict", inputs=text)) == alone
    assert scores(classifying.post("/predict", inputs=[text])) == alone
    assert scores(classifying.post("/predict", inputs=pair)) == together
    batch = classifying.post("/predict", inputs=[[text], pair, [text], [pair[0]]])
    assert [scores(each) for each in batch[:3]] == [alone, together, alone]
    assert scores(batch[3]) == pytest.approx(reranker.score([pair[0]])[0], abs=TOLERANCE)
    assert scores(classifying.post("/predict", inputs=[[text]])[0]) == alone
    long = classifying.client.post("/predict", json={"inputs": [[text], ["word " * 50]], "truncate": False})
    assert (long.status_code, "Input 1 has" in long.json()["error"]) == (422, True)


def test_predict_names_a_single_output_as_tei_does(ranking: Place) -> None:
    [found] = ranking.post("/predict", inputs=[QUERY, TEXTS[0]])
    assert found["label"] == "LABEL_0"
    assert found["score"] == pytest.approx(expected(ranking)[0], abs=TOLERANCE)


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/rerank", {"query": "", "texts": ["a"]}, 400, "query is empty"),
        ("/rerank", {"query": " ", "texts": ["a"]}, 400, "query is empty"),
        ("/rerank", {"query": "a", "texts": []}, 400, "texts is an empty list"),
        ("/rerank", {"query": "a", "texts": ["b", ""]}, 400, "texts[1]"),
        ("/rerank", {"query": "a", "texts": ["b", 1]}, 422, "texts[1]"),
        ("/rerank", {"query": "a" * 10_001, "texts": ["b"]}, 422, "SIMILE_MAX_QUERY_CHARACTERS"),
        ("/rerank", {"query": "a", "texts": ["b"] * 2049}, 422, "SIMILE_MAX_INPUTS"),
        ("/rerank", {"query": "a", "texts": ["b"], "raw_scores": "yes"}, 422, "raw_scores"),
        ("/rerank", {"texts": ["b"]}, 422, "query"),
        ("/v1/rerank", {"query": "a", "documents": [{"title": "b"}]}, 400, "documents[0]"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": 0}, 400, "top_n"),
        ("/v2/rerank", {"query": "a", "documents": []}, 400, "documents is an empty list"),
        ("/v2/rerank", {"query": "a", "documents": ["b", {"text": " "}]}, 400, "documents[1]"),
        ("/predict", {"inputs": ""}, 400, "inputs"),
        ("/predict", {"inputs": 1}, 422, "inputs"),
        ("/predict", {"inputs": ["a", "b", "c"]}, 422, "two texts"),
        ("/predict", {"inputs": [["a", "b"], "c"]}, 422, "inputs[1]"),
        ("/predict", {"inputs": [["a", "b"], []]}, 422, "inputs[1]"),
        ("/predict", {"inputs": [["a", "b"], [""]]}, 400, "inputs[1][0]"),
        ("/predict", {"inputs": []}, 400, "inputs is an empty list"),
    ],
)
def test_bad_requests_are_refused_with_what_is_wrong(
    ranking: Place, path: str, body: dict[str, Any], status: int, words: str
) -> None:
    answer = ranking.client.post(path, json=body)
    assert answer.status_code == status, answer.text
    assert words in answer.text
    assert ("detail" in answer.json()) == (path == "/v1/rerank"), "where Jina's clients read it"


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_a_classifier_cannot_rank(classifying: Place, path: str) -> None:
    answer = classifying.client.post(path, json={"query": "a", "texts": ["b"], "documents": ["b"]})
    assert answer.status_code == 409
    assert "POST /predict" in answer.text


def test_the_wrong_kind_of_version_is_refused_on_each_route(ranking: Place) -> None:
    client, reranker = ranking.client, ranking.versions[0]
    encoder = ranking.runtime.active.generation.version
    body = {"query": "a", "texts": ["b"]}
    assert client.post("/rerank", json=body | {"model": reranker}).status_code == 200
    for named, words in ((encoder, "is an encoder"), (ranking.versions[1], "is not the active reranker")):
        for answer in (
            client.post("/rerank", json=body | {"model": named}),
            client.post("/rerank", json=body, headers={"x-model-version": named}),
        ):
            assert answer.status_code == 409
            assert words in answer.text
    unknown = client.post("/rerank", json=body | {"model": "20260101T000000-none-00000000"})
    assert unknown.status_code == 404
    for answer in (
        client.post("/embed", json={"inputs": "a", "model": reranker}),
        client.post("/embed", json={"inputs": "a"}, headers={"x-model-version": reranker}),
        client.post("/v1/embeddings", json={"input": "a", "model": reranker}),
        client.get("/search", params={"q": "a"}, headers={"x-model-version": reranker}),
        client.post(f"/models/{reranker}/keep"),
    ):
        assert answer.status_code == 409, answer.text
        assert "is a reranker" in answer.text


def test_versions_and_info_show_the_reranker(ranking: Place) -> None:
    models = ranking.client.get("/models").json()
    kinds = {each["version"]: each["kind"] for each in models["models"]}
    assert [kinds[version] for version in ranking.versions] == ["reranker"] * 3
    assert kinds[models["active"]] == "encoder"
    states = {each["version"]: each["state"] for each in models["models"]}
    assert states[ranking.versions[0]] == "active"
    assert models["reranker"]["active"] == models["reranker"]["wanted"] == ranking.versions[0]
    info = ranking.client.get("/info").json()
    assert info["reranker"]["version"] == ranking.versions[0]
    assert info["reranker"]["labels"] == info["reranker"]["collections"] == []


def test_without_a_reranker_each_route_says_how_to_get_one(place: Place) -> None:
    place.activate(place.versions[0])
    place.runtime.store.request_reranker(None)
    until(lambda: place.runtime.active.reranker.version is None)
    for path, body in (
        ("/rerank", {"query": "a", "texts": ["b"]}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/v2/rerank", {"query": "a", "documents": ["b"]}),
        ("/predict", {"inputs": ["a", "b"]}),
    ):
        answer = place.client.post(path, json=body)
        assert answer.status_code == 409
        assert "models import" in answer.text
        assert "/activate" in answer.text
    assert place.client.get("/info").json()["reranker"] is None
    assert place.client.get("/ready").status_code == 200


def test_each_route_describes_its_own_body(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    for path, required in (("/rerank", ["query", "texts"]), ("/v1/rerank", ["query", "documents"])):
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        name = body["$ref"].rpartition("/")[2]
        assert document["components"]["schemas"][name]["required"] == required

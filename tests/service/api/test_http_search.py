"""`/search`: lexical, hybrid and by id, in pages, and with selected fields."""

import json
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from starlette.testclient import TestClient

from models.search.fusion import fuse
from models.search.terms import FUNCTION_WORDS
from service.corpus import query
from service.runtime.runtime import Runtime
from service.settings import Settings
from service.store.sqlite.schema import DATABASE
from tests.parts.documents import put_texts as put
from tests.parts.faults import broken
from tests.service.fakes import sqlite_of

WORDS = (
    "red green blue river stone market letter engine garden bridge paper window forest harbour cat dog"
).split()
CORPUS = {
    f"doc-{at:03}": f"{WORDS[at % 16]} {WORDS[at // 16 % 16]} {WORDS[at * 7 % 16]} {'number ' * (at % 3)}"
    for at in range(120)
}


@pytest.fixture(scope="module", autouse=True)
def _filled(running: TestClient) -> None:
    documents = [
        {"id": id, "text": text, "metadata": {"n": at, "at": {"x": at % 5, "y": [at]}, "tag": "t"}}
        for at, (id, text) in enumerate(CORPUS.items())
    ]
    assert running.post("/documents", json={"documents": documents}).status_code == 200


def answer(client: TestClient, **requested: object) -> dict[str, object]:
    response = client.get("/search", params=requested)  # type: ignore[arg-type]
    assert response.status_code == 200, response.text
    found: dict[str, object] = response.json()
    return found


def hits(client: TestClient, **requested: object) -> list[tuple[str, float]]:
    return [(hit["id"], hit["score"]) for hit in answer(client, **requested)["hits"]]  # type: ignore[attr-defined]


def delete(client: TestClient, *ids: str) -> None:
    for id in ids:
        assert client.delete(f"/documents/{id}").json()["deleted"] == 1


def test_a_search_by_words_finds_the_documents_that_have_them(client: TestClient) -> None:
    found = hits(client, q="a harbour or cats", mode="lexical", k=1000)
    assert sorted(id for id, _ in found) == [
        id for id, text in CORPUS.items() if {"harbour", "cat"} & {*text.split()}
    ]
    assert found == sorted(found, key=lambda hit: (-hit[1], hit[0])), "ties by id"
    scores = [score for _, score in found]
    assert min(scores) > 0
    assert len(set(scores)) < len(scores), "there are ties"
    for k in (1, 2, 5, 13):
        assert hits(client, q="a harbour or cats", mode="lexical", k=k) == found[:k]
    posted = client.post("/search", json={"queries": ["harbour cat", "none"], "mode": "lexical", "k": 1000})
    assert [[(hit["id"], hit["score"]) for hit in one] for one in posted.json()["results"]] == [found, []]


def test_a_search_by_words_asks_no_model(
    client: TestClient, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime.active.generation.encoder, "forward", broken)
    monkeypatch.setattr(runtime.batcher, "embed", broken)
    response = client.get("/search", params={"q": "harbour", "mode": "lexical"})
    assert response.status_code == 200
    assert response.json()["mode"] == "lexical"
    assert (
        response.headers["x-model-version"] == response.json()["model"] == runtime.active.generation.version
    )
    assert response.headers["x-compute-tokens"] == "0"
    monkeypatch.undo()


def test_words_are_searched_while_the_index_is_rebuilt(
    client: TestClient, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime.active.generation, "is_complete", False)
    assert len(hits(client, q="harbour", mode="lexical")) == 10
    for mode in ("dense", "hybrid"):
        assert client.get("/search", params={"q": "harbour", "mode": mode}).status_code == 503


@pytest.mark.sqlite("it looks into SQLite's file")
def test_words_follow_every_write(client: TestClient, settings: Settings) -> None:
    put(client, {"東京": "東京は日本の首都です", "서울": "서울은 한국의 수도입니다"})
    assert [id for id, _ in hits(client, q="東京", mode="lexical")] == ["東京"]
    assert [id for id, _ in hits(client, q="서울", mode="lexical")] == ["서울"]
    put(client, {"東京": "京都の寺"})
    assert hits(client, q="東京", mode="lexical") == []
    assert [id for id, _ in hits(client, q="寺", mode="lexical")] == ["東京"]
    delete(client, "東京", "서울")
    assert hits(client, q="寺 서울", mode="lexical") == []
    store = sqlite3.connect(settings.data_dir / DATABASE)
    kept = store.execute("SELECT id FROM lexical_1_docsize").fetchall()
    assert kept == store.execute("SELECT revision FROM documents ORDER BY revision").fetchall()
    store.close()


def test_words_and_metadata_filters_go_together(client: TestClient) -> None:
    everything = hits(client, q="harbour cat", mode="lexical", k=1000)
    for filter, passes in (('{"n": {"$lt": 40}}', range(40)), ('{"at.x": 2}', range(2, 120, 5))):
        ids = {f"doc-{at:03}" for at in passes}
        for k in (3, 1000):
            found = hits(client, q="harbour cat", mode="lexical", k=k, filter=filter)
            assert found == [hit for hit in everything if hit[0] in ids][:k]
    assert hits(client, q="harbour", mode="lexical", filter='{"n": 7000}') == []


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_a_search_among_documents_that_are_named(client: TestClient, mode: str) -> None:
    ids = ["doc-003", "doc-077", "doc-119", "nowhere"]
    everything = hits(client, q="harbour cat", mode=mode, k=1000)
    found = hits(client, q="harbour cat", mode=mode, k=1000, filter=json.dumps({"$ids": ids}))
    assert [id for id, *_ in found] == [id for id, *_ in everything if id in ids]


@pytest.mark.parametrize(
    "query", ['"', "NOT river", "text:river", "river*", "^river", "river NEAR stone", "{a"]
)
def test_what_would_be_syntax_is_words(client: TestClient, query: str) -> None:
    plain = " ".join(word for word in WORDS if word in query)
    found = hits(client, q=query, mode="lexical", k=1000)
    assert found == (hits(client, q=plain, mode="lexical", k=1000) if plain else [])
    assert "near" not in FUNCTION_WORDS


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_a_document_being_updated_is_never_missing(client: TestClient, mode: str, filtered: bool) -> None:
    """Filter, index and store are read in one state. Otherwise an update in between could hide a hit."""
    ids = [f"u-{number}" for number in range(12)]
    options = {"filter": json.dumps({"$ids": ids})} if filtered else {}
    put(client, dict.fromkeys(ids, "zebra river"))
    stop = threading.Event()

    def update(number: int) -> None:
        step = 0
        while not stop.is_set():
            step += 1
            put(client, {ids[(number * 5 + step) % 12]: f"zebra {WORDS[(number + step) % 16]}"})

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(update, number) for number in range(2)]
        try:
            for _ in range(100):
                found = {id for id, _ in hits(client, q="zebra", mode=mode, k=1000, **options)}
                assert {*ids} <= found
        finally:
            stop.set()
        for writer in writers:
            writer.result()
    delete(client, *ids)


@pytest.mark.usefixtures("_fused")
def test_a_hybrid_score_is_the_sum_of_both_in_their_ranges(client: TestClient, runtime: Runtime) -> None:
    query = "harbour cat in the river"
    near = dict(hits(client, q=query, mode="dense", k=1000))
    worded = dict(hits(client, q=query, mode="lexical", k=1000))
    floor = min(runtime.active.generation.encoder.unrelated, *near.values())
    best, least = max(near.values()), min(near.values())
    text = client.get(f"/documents/{max(worded, key=worded.__getitem__)}").json()["text"]
    cover = sum(term in text.lower() for term in ("harbour", "cat", "river")) / 3
    assert 0 < cover < 1
    weight = 0.5 * cover ** ((best - least) / (best - floor))
    expected = {
        id: 0.5 * (score - floor) / (best - floor) + weight * worded.get(id, 0) / max(worded.values())
        for id, score in near.items()
    }
    found = hits(client, q=query, mode="hybrid", k=1000)
    assert len(found) == len(CORPUS)
    np.testing.assert_allclose([score for _, score in found], [expected[id] for id, _ in found], atol=2e-6)
    assert found == sorted(found, key=lambda hit: (-hit[1], hit[0]))
    assert hits(client, q=query, mode="hybrid", k=7) == found[:7]
    filtered = {id for id, _ in hits(client, q=query, mode="hybrid", k=1000, filter='{"n": {"$gte": 90}}')}
    assert filtered == {f"doc-{at:03}" for at in range(90, 120)}


def test_fusing_by_hand() -> None:
    fused = fuse({1: 0.5, 2: 0.2, 3: -0.7}, {2: 6.0, 4: 3.0}, 0.8)
    assert {id: round(float(score), 6) for id, score in fused.items()} == {
        1: 0.8,
        2: 0.8,  # 0.8 · 0.9 / 1.2 + 0.2
        3: 0.0,
        4: 0.1,
    }
    assert fuse({}, {}) == {}


def test_a_ranking_of_equal_scores_does_not_vanish() -> None:
    assert fuse({1: -1.0}, {}) == {1: np.float32(0.5)}
    assert fuse({}, {1: 3.0}) == {1: np.float32(0.5)}
    assert fuse({1: 0.9}, {2: 7.0}, 0.7) == {1: np.float32(0.7), 2: np.float32(1.0)}
    assert fuse({1: 0.4, 2: 0.4}, {2: 0.1}) == {1: np.float32(0.5), 2: np.float32(1.0)}


def test_cosines_far_above_those_of_unrelated_texts_decide_little() -> None:
    """Cosines of texts that the model cannot read are high and hardly differ."""
    near, worded = {1: 0.9, 2: 0.8, 3: 0.7}, {3: 5.0}
    assert fuse(near, worded, 0.5, 0.1) == pytest.approx({1: 0.5, 2: 0.4375, 3: 0.875})
    assert fuse(near, {4: 5.0}, 0.5, 0.1)[4] == np.float32(0.875), "as near as the last one"
    assert fuse(near, worded, 0.5, 0.75) == pytest.approx({1: 0.5, 2: 0.25, 3: 0.5})


def test_keywords_count_less_if_the_best_hit_has_few_of_the_terms() -> None:
    near = {1: 0.9, 2: 0.5, 3: 0.1}
    assert fuse(near, {3: 5.0}, 0.6, 0.1, 0.25)[3] == np.float32(0.4 * 0.25)
    assert fuse(near, {3: 5.0}, 0.6, -0.7, 0.25)[3] == np.float32(0.6 * 0.5 + 0.4 * 0.25**0.5)
    flat = {1: 0.9, 2: 0.9}
    assert fuse(flat, {2: 5.0}, 0.6, 0.1, 0.25)[2] == np.float32(1), "cosines that say nothing"


def test_a_document_of_only_one_ranking_is_a_hit(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "CANDIDATES", 5)
    near = {id for id, _ in hits(client, q="harbour", mode="dense", k=5)}
    worded = {id for id, _ in hits(client, q="harbour", mode="lexical", k=5)}
    found = {id for id, _ in hits(client, q="harbour", mode="hybrid", k=5)}
    assert found <= near | worded
    deeper = hits(client, q="harbour", mode="hybrid", k=6)
    assert len(deeper) == 6


def test_a_setting_says_the_mode_unless_the_search_does_or_only_dense_can_answer_it(
    client: TestClient, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answer(client, q="harbour")["mode"] == "hybrid"
    assert answer(client, q="harbour", passages="false")["mode"] == "hybrid"
    assert answer(client, q="harbour", min_score=0.0)["mode"] == "dense"
    assert answer(client, id="doc-017")["mode"] == "dense"
    requested = {mode: hits(client, q="harbour", mode=mode) for mode in ("dense", "lexical", "hybrid")}
    assert hits(client, q="harbour") == requested["hybrid"]
    settings = runtime.settings.model_copy(update={"search_mode": "dense"})
    monkeypatch.setattr(runtime, "settings", settings)
    assert answer(client, q="harbour")["mode"] == "dense"
    assert hits(client, q="harbour") == requested["dense"]
    assert hits(client, q="harbour", mode="lexical") == requested["lexical"]
    found = client.post("/search", json={"queries": ["harbour"]}).json()["results"][0]
    assert [(hit["id"], hit["score"]) for hit in found] == requested["dense"]
    of_ids = client.post("/search", json={"queries": [{"id": "doc-017"}], "min_score": -1})
    assert of_ids.status_code == 200
    words = runtime.settings.model_copy(update={"search_mode": "lexical"})
    monkeypatch.setattr(runtime, "settings", words)
    assert answer(client, q="harbour")["mode"] == "lexical"
    assert answer(client, q="harbour", passages="false")["mode"] == "dense", "words know no passages"
    refused = client.get("/search", params={"q": "harbour", "mode": "hybrid", "min_score": 0.5})
    assert refused.status_code == 422


def test_what_is_like_a_document_is_found_by_its_vector_without_the_model(
    client: TestClient, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_text = [hit for hit in hits(client, q=CORPUS["doc-017"], mode="dense", k=21) if hit[0] != "doc-017"]

    monkeypatch.setattr(runtime.batcher, "embed", broken)
    requested = answer(client, id="doc-017", k=20)
    found = hits(client, id="doc-017", k=20)
    posted = client.post("/search", json={"queries": [{"id": "doc-017"}, {"id": "doc-001"}], "k": 20}).json()
    first = hits(client, id="doc-001", k=20, filter='{"n": {"$lt": 3}}')
    monkeypatch.undo()
    assert requested["id"] == "doc-017"
    assert "query" not in requested
    assert len(found) == 20
    assert [id for id, _ in found] == [id for id, _ in by_text[:20]]
    np.testing.assert_allclose([score for _, score in found], [score for _, score in by_text[:20]], atol=1e-5)
    assert [(hit["id"], hit["score"]) for hit in posted["results"][0]] == found
    assert "doc-001" not in {hit["id"] for hit in posted["results"][1]}
    assert sorted(id for id, _ in first) == ["doc-000", "doc-002"]


def test_a_document_that_is_not_there_is_404_and_named(client: TestClient) -> None:
    for response in (
        client.get("/search", params={"id": "none-such"}),
        client.post("/search", json={"queries": [{"id": "doc-001"}, {"id": "none-such"}]}),
    ):
        assert response.status_code == 404
        assert response.json()["error_type"] == "NotFound"
        assert "none-such" in response.json()["error"]


@pytest.mark.sqlite("it looks into SQLite's file")
def test_a_document_without_a_vector_is_a_conflict(client: TestClient, runtime: Runtime) -> None:
    put(client, {"bare": "red river"})

    def forget(transaction: object) -> None:
        transaction.connection.execute(  # type: ignore[attr-defined]
            "DELETE FROM vectors WHERE revision = (SELECT revision FROM documents WHERE id = 'bare')"
        )

    sqlite_of(runtime.corpus).writer.submit(forget).result()
    response = client.get("/search", params={"id": "bare"})
    assert (response.status_code, response.json()["error_type"]) == (409, "Conflict")
    assert "has no vector" in response.json()["error"]
    delete(client, "bare")


@pytest.mark.parametrize(
    ("mode", "requested"),
    [(mode, {"q": "harbour cat"}) for mode in ("dense", "lexical", "hybrid")]
    + [("dense", {"id": "doc-001"})],
)
def test_pages_make_up_the_whole_list(client: TestClient, mode: str, requested: dict[str, str]) -> None:
    everything = hits(client, **requested, mode=mode, k=1000)
    pages = [hits(client, **requested, mode=mode, k=7, offset=offset) for offset in range(0, 140, 7)]
    assert [hit for page in pages for hit in page] == everything
    assert hits(client, **requested, mode=mode, offset=10_000) == []
    if "q" in requested:
        body = {"queries": [requested["q"]], "mode": mode, "k": 3, "offset": 2}
        [posted] = client.post("/search", json=body).json()["results"]
        assert [(hit["id"], hit["score"]) for hit in posted] == everything[2:5]


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        (["text"], {"text": CORPUS["doc-007"]}),
        (["metadata"], {"metadata": {"n": 7, "at": {"x": 2, "y": [7]}, "tag": "t"}}),
        (["metadata.n"], {"metadata": {"n": 7}}),
        (["metadata.at.x", "metadata.tag"], {"metadata": {"at": {"x": 2}, "tag": "t"}}),
        (["metadata.at.x", "metadata.at"], {"metadata": {"at": {"x": 2, "y": [7]}}}),
        (["metadata.at", "metadata.at.x"], {"metadata": {"at": {"x": 2, "y": [7]}}}),
        (["metadata.at.y.0", "metadata.tag.t", "metadata.none.n"], {"metadata": {}}),
        (["metadata.n", "metadata", "text"], None),
        ([], {}),
    ],
)
def test_fields_say_what_a_hit_shows(
    client: TestClient, fields: list[str], shown: dict[str, object] | None
) -> None:
    filter = {"n": 7}
    [whole] = answer(client, q="river", filter='{"n": 7}')["hits"]  # type: ignore[misc]
    expected = whole if shown is None else {"id": "doc-007", "score": whole["score"], **shown}  # type: ignore[has-type]
    [one] = answer(client, q="river", filter='{"n": 7}', fields=",".join(fields))["hits"]  # type: ignore[misc]
    assert one == expected  # type: ignore[has-type]
    body = {"queries": ["river"], "filter": filter, "fields": fields}
    assert client.post("/search", json=body).json()["results"] == [[expected]]


def test_texts_that_are_not_shown_do_not_count_as_an_answers_size(
    client: TestClient, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = runtime.settings.model_copy(update={"max_answer_mb": 1})
    put(client, dict.fromkeys(["long", "other"], "quokka " + "x" * 700_000))
    with monkeypatch.context() as patch:
        patch.setattr(runtime, "settings", few)
        refused = client.get("/search", params={"q": "quokka", "mode": "lexical"})
        assert refused.status_code == 422
        assert "SIMILE_MAX_ANSWER_MB" in refused.json()["error"]
        assert [id for id, _ in hits(client, q="quokka", mode="lexical", fields="metadata")] == [
            "long",
            "other",
        ]
    delete(client, "long", "other")

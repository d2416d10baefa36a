"""The reranker orders the best hits of any search, in a limited time, and never makes a search fail."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from models.reranker import Pair, Reranker
from models.search import terms
from models.search.ranking import MAX_RANKED, Ranking, RerankerWeight
from models.store import ModelStore
from service.app import create_app
from service.batching.batcher import Batcher
from service.corpus import reranking
from service.corpus.query import RERANK_WORK, Search
from service.corpus.search import find
from service.errors import Overloaded, Timeout
from service.ranking import Orders
from service.runtime.runtime import Runtime
from service.settings import Settings
from service.store.values import TooMuch
from tests.parts.rerankers import broken, nan, no_memory, publish_reranker
from tests.service.conftest import new_settings, wait_until_ready
from tests.waiting import until

WORDS = "red green blue river stone market letter engine garden bridge".split()
TEXTS = {
    f"d{at:02}": f"{WORDS[at % 10]} river {WORDS[at // 10]} {'cat ' * (at % 4)}".strip() for at in range(60)
}
QUERY = "green river"
MODES = ["dense", "lexical", "hybrid"]


class Place:
    def __init__(self, client: TestClient, runtime: Runtime, versions: list[str]) -> None:
        self.client, self.runtime, self.versions = client, runtime, versions

    def activate(self, version: str) -> None:
        assert self.client.post(f"/models/{version}/activate").status_code in {200, 202}
        until(lambda: self.runtime.active.reranker.version == version)

    def search(self, path: str = "/search", q: str = QUERY, **options: Any) -> dict[str, Any]:
        answer = self.client.get(path, params={"q": q, **options})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def ids(self, **options: Any) -> list[str]:
        return [hit["id"] for hit in self.search(**options)["hits"]]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("reranking")
    settings = new_settings(
        folder, tiny_models_dir, rerank_seconds=30, rerank_collections="default-on, other"
    )
    versions = [publish_reranker(folder / "models", seed) for seed in range(2)]
    versions.append(publish_reranker(folder / "models", labels=("no", "yes")))
    app = create_app(settings)
    with TestClient(app) as client:
        wait_until_ready(client)
        for path in ("/documents", "/collections/default-on/documents"):
            documents = [{"id": id, "text": text, "metadata": {"n": 1}} for id, text in TEXTS.items()]
            assert client.post(path, json={"documents": documents}).status_code == 200
        yield Place(client, app.state.runtime, versions)


@pytest.fixture
def place(shared: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    shared.activate(shared.versions[0])
    shared.runtime.corpus._reranking._recent._recent.clear()
    monkeypatch.setattr(shared.runtime.corpus._reranking, "_seconds", 30.0)
    return shared


def in_order_of_scores(
    place: Place, ids: list[str], query: str = QUERY
) -> tuple[list[str], dict[str, float]]:
    reranker = ModelStore(place.runtime.store.root).open_reranker(place.versions[0])
    scores = reranker.score([Pair(query, TEXTS[id]) for id in ids])[:, 0]
    order = [ids[at] for at in np.argsort(-scores, kind="stable")]
    return order, dict(zip(ids, scores.tolist(), strict=True))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rerank_k", [1, 7, 20, 60])
def test_the_best_hits_of_every_mode_are_ordered_by_the_reranker(
    place: Place, mode: str, rerank_k: int
) -> None:
    before = place.search(mode=mode, k=40)["hits"]
    found = place.search(mode=mode, k=40, rerank="true", rerank_k=rerank_k)
    top = place.ids(mode=mode, k=rerank_k)
    order, scores = in_order_of_scores(place, top)
    rest = [hit["id"] for hit in before if hit["id"] not in top]
    assert [hit["id"] for hit in found["hits"]] == [*order, *rest][:40]
    assert found["reranker"] == place.versions[0]
    assert "warnings" not in found
    first_stage = {hit["id"]: hit["score"] for hit in before}
    for at, hit in enumerate(found["hits"]):
        if hit["id"] in first_stage:
            assert hit["score"] == first_stage[hit["id"]], "the score of the search stays"
        if at < len(order):
            assert hit["search_place"] == top.index(hit["id"]) + 1
            assert hit["rerank_score"] == pytest.approx(scores[hit["id"]], abs=1e-5)
        else:
            assert not {"rerank_score", "search_place"} & set(hit)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("k", "rerank_k"), [(3, 10), (10, 20), (7, 20), (15, 20), (10, 5), (30, 20)])
def test_pages_neither_repeat_nor_skip_a_hit(place: Place, mode: str, k: int, rerank_k: int) -> None:
    options = {"mode": mode, "rerank": "true", "rerank_k": rerank_k}
    whole = place.ids(k=60, **options)
    pages = [id for offset in range(0, 60, k) for id in place.ids(k=k, offset=offset, **options)]
    assert pages == whole
    assert len(set(pages)) == len(pages)


def test_several_queries_are_reranked_each(place: Place) -> None:
    queries = [QUERY, "stone garden"]
    answer = place.client.post("/search", json={"queries": queries, "rerank": True, "mode": "hybrid"}).json()
    assert answer["reranker"] == place.versions[0]
    for query, hits in zip(queries, answer["results"], strict=True):
        top = place.ids(q=query, mode="hybrid", k=20)
        assert [hit["id"] for hit in hits] == in_order_of_scores(place, top, query)[0][:10]


def test_a_collection_may_rerank_by_default_and_a_request_decides(place: Place) -> None:
    path = "/collections/default-on/search"
    assert place.search(path)["reranker"] == place.versions[0]
    assert "reranker" not in place.search(path, rerank="false")
    assert "reranker" not in place.search()
    # A search by id has no text, so the default does not apply.
    answer = place.client.get(path, params={"id": "d01"})
    assert answer.status_code == 200
    assert "reranker" not in answer.json()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"id": "d01", "rerank": "true"}, "reads the text of a query"),
        ({"q": "a", "rerank": "yes"}, "rerank"),
        ({"q": "a", "rerank": "true", "rerank_k": 0}, "rerank_k"),
        ({"q": "a", "rerank": "true", "rerank_k": 201}, "rerank_k"),
        ({"q": "a", "rerank": "true", "rerank_k": "many"}, "rerank_k"),
    ],
)
def test_wrong_options_are_refused(place: Place, options: dict[str, Any], words: str) -> None:
    answer = place.client.get("/search", params=options)
    assert answer.status_code == 422
    assert words in answer.json()["error"]


def test_vectors_cannot_be_reranked_and_the_pairs_of_all_queries_are_bounded(place: Place) -> None:
    generation = place.runtime.active.generation
    vector = [1.0] * generation.encoder.dimension
    body: dict[str, Any] = {"queries": [vector], "model": generation.version, "rerank": True}
    assert place.client.post("/search", json=body).status_code == 422
    body = {"queries": ["a"] * 10, "rerank": True, "rerank_k": 200}
    answer = place.client.post("/search", json=body)
    assert answer.status_code == 422
    assert "SIMILE_MAX_CANDIDATES" in answer.json()["error"]


def test_hits_keep_the_fields_that_were_requested(place: Place) -> None:
    [first, *_] = place.search(rerank="true", fields="metadata")["hits"]
    assert set(first) == {"id", "score", "metadata", "rerank_score", "search_place"}


def test_the_tokens_of_pairs_are_charged(place: Place) -> None:
    plain = place.client.get("/search", params={"q": QUERY})
    reranked = place.client.get("/search", params={"q": QUERY, "rerank": "true"})
    name = "x-compute-tokens"
    assert int(reranked.headers[name]) > int(plain.headers[name]) + 20


def test_without_a_reranker_a_search_answers_and_says_so(place: Place) -> None:
    place.runtime.store.request_reranker(None)
    until(lambda: place.runtime.active.reranker.version is None)
    found = place.search(rerank="true", mode="dense")
    assert "reranker" not in found
    assert any("No reranker is active" in each for each in found["warnings"])
    assert [hit["id"] for hit in found["hits"]] == place.ids(mode="dense")
    assert "rerank_score" not in found["hits"][0]


def test_a_classifier_orders_no_hits(place: Place) -> None:
    place.activate(place.versions[2])
    found = place.search(rerank="true", mode="dense")
    assert any("several labels" in each for each in found["warnings"])
    assert [hit["id"] for hit in found["hits"]] == place.ids(mode="dense")


def learn(
    place: Place, monkeypatch: pytest.MonkeyPatch, weight: float | None, fingerprint: str | None = None
) -> None:
    """Installs a ranking with a weight for the active reranker, or for the one with `fingerprint`."""
    assert place.runtime.active.reranker.current is not None
    own = place.runtime.active.reranker.current.reranker.manifest.fingerprint
    reranker = None if weight is None else RerankerWeight(fingerprint=fingerprint or own, weight=weight)
    ranking = Ranking(weights={"length": 1.0, "cover": 0.5, "hybrid": 0.4}, reranker=reranker)
    rankings = place.runtime.active.generation.rankings
    monkeypatch.setattr(rankings, "_learned", {"default": ranking})
    monkeypatch.setattr(rankings, "orders", Orders())
    monkeypatch.setattr(rankings, "_ignored", set())


def add_scores(
    place: Place, hits: list[dict[str, Any]], weight: float, scored: set[str] | None = None
) -> dict[str, float]:
    """Returns the ranking score of each scored hit, plus the weighted logit of the reranker.

    Both are compared by their deviations. Hits that the ranking did not score have its lowest score.
    """
    reranker = ModelStore(place.runtime.store.root).open_reranker(place.versions[0])
    hits = [hit for hit in hits if scored is None or hit["id"] in scored]
    sums = [sum(hit["contributions"].values()) if "contributions" in hit else np.nan for hit in hits]
    ranked = np.nan_to_num(sums, nan=np.nanmin(sums))
    logits = reranker.score([Pair(QUERY, TEXTS[hit["id"]]) for hit in hits], normalize=False)[:, 0]
    both = ranked + weight * ranked.std() * (logits - logits.mean()) / logits.std()
    return dict(zip((hit["id"] for hit in hits), both.tolist(), strict=True))


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0, 1e6])
@pytest.mark.parametrize("rerank_k", [7, 20, 60])
def test_a_learned_weight_adds_the_reranker_to_the_ranking(
    place: Place, monkeypatch: pytest.MonkeyPatch, weight: float, rerank_k: int
) -> None:
    learn(place, monkeypatch, weight)
    options: dict[str, Any] = {"mode": "hybrid", "k": 60, "explain": "true"}
    plain = place.search(**options)["hits"]
    expected = add_scores(place, plain[:rerank_k], weight)
    order = sorted(expected, key=expected.__getitem__, reverse=True)
    found = place.search(rerank="true", rerank_k=rerank_k, **options)["hits"]
    assert [hit["id"] for hit in found] == [*order, *(hit["id"] for hit in plain[rerank_k:])]
    for at, hit in enumerate(found):
        if at < rerank_k and hit["search_place"] <= MAX_RANKED:
            assert sum(hit["contributions"].values()) == pytest.approx(
                expected[hit["id"]], rel=1e-4, abs=1e-4
            )
        elif "contributions" in hit:
            assert "reranker" not in hit["contributions"]
    ranked = [hit["id"] for hit in plain[:rerank_k]]
    alone, _ = in_order_of_scores(place, ranked)
    assert {0.0: order == ranked, 1.0: order not in (ranked, alone), 1e6: order == alone}.get(weight, True)


@pytest.mark.parametrize("k", [3, 7, 20])
def test_pages_of_a_weighted_reranker_neither_repeat_nor_skip_a_hit(
    place: Place, monkeypatch: pytest.MonkeyPatch, k: int
) -> None:
    learn(place, monkeypatch, 1.0)
    options: dict[str, Any] = {"mode": "hybrid", "rerank": "true"}
    whole = place.ids(k=60, **options)
    assert [id for offset in range(0, 60, k) for id in place.ids(k=k, offset=offset, **options)] == whole
    place.runtime.corpus._reranking._recent._recent.clear()
    assert place.ids(k=k, offset=k, **options) == whole[k : 2 * k], "the ranking scores are remembered"


@pytest.mark.parametrize("other", ["fingerprint", "mode", "passages", "off", "weight"])
def test_without_its_weight_a_reranker_orders_alone(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, other: str
) -> None:
    fingerprint = "0" * 64 if other == "fingerprint" else None
    learn(place, monkeypatch, None if other == "weight" else 0.0, fingerprint)
    options: dict[str, Any] = {"mode": "dense" if other == "mode" else "hybrid", "k": 20}
    options |= {"passages": "false"} if other == "passages" else {}
    if other == "off":
        settings = place.runtime.settings.model_copy(update={"ranking": False})
        monkeypatch.setattr(place.runtime, "settings", settings)
    order, _ = in_order_of_scores(place, place.ids(**options))
    for _ in range(2):
        assert place.ids(rerank="true", **options) == order
    said = [line for line in caplog.messages if "is ignored" in line]
    assert len(said) == (other == "fingerprint"), "once"
    assert all("'default'" in line and "00000000" in line for line in said)


def test_with_a_weight_too_hits_without_a_score_keep_their_places(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn(place, monkeypatch, 1.0)
    plain = place.search(mode="hybrid", k=20, explain="true")["hits"]
    original = Reranker.forward

    def partly(self: Reranker, ids: Any, **options: Any) -> Any:
        found = original(self, ids, **options)
        found[[len(row) % 2 == 0 for row in ids]] = np.nan
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Reranker, "forward", partly)
        hits = place.search(mode="hybrid", k=20, rerank="true", explain="true")["hits"]
    scored = {hit["id"] for hit in hits if "rerank_score" in hit}
    assert 1 < len(scored) < 20
    expected = add_scores(place, plain, 1.0, scored)
    again = iter(sorted(scored, key=expected.__getitem__, reverse=True))
    assert [hit["id"] for hit in hits] == [next(again) if hit["id"] in scored else hit["id"] for hit in plain]
    assert all(("reranker" in hit["contributions"]) == (hit["id"] in scored) for hit in hits)
    monkeypatch.setattr(Reranker, "forward", nan)
    assert place.ids(q="river red", mode="hybrid", k=20, rerank="true") == place.ids(
        q="river red", mode="hybrid", k=20
    )


def test_a_stage_that_is_late_leaves_its_order_to_be_weighed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranking fails, so hits have the hybrid order, and a reranker that counts nothing keeps it."""
    learn(place, monkeypatch, 0.0)
    plain = place.search(mode="hybrid", k=60, explain="true")["hits"]
    order = [hit["id"] for hit in sorted(plain[:MAX_RANKED], key=lambda hit: -hit["features"]["hybrid"])]
    monkeypatch.setattr(place.runtime.active.generation.rankings, "orders", Orders())
    monkeypatch.setattr("service.ranking.build", lambda *_: 1 / 0)
    found = place.search(mode="hybrid", k=20, rerank="true")
    assert [hit["id"] for hit in found["hits"]] == order[:20]
    assert any("second stage of the search failed" in each for each in found["warnings"])
    assert all("rerank_score" in hit for hit in found["hits"])


def untokenizable(self: Reranker, *_: object, **__: object) -> Any:
    raise RuntimeError("the tokenizer broke")


def too_few(self: Reranker, ids: Any, **_: object) -> Any:
    return np.zeros((0, 1), np.float32)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("forward", nan),
        ("forward", no_memory),
        ("forward", broken),
        ("tokenize", untokenizable),
        ("forward", too_few),
    ],
)
def test_a_reranker_that_fails_costs_its_order_and_not_the_search(
    place: Place, monkeypatch: pytest.MonkeyPatch, name: str, fault: Callable[..., Any]
) -> None:
    expected = place.ids(mode="hybrid", k=20)
    monkeypatch.setattr(Reranker, name, fault)
    found = place.search(mode="hybrid", k=20, rerank="true")
    assert [hit["id"] for hit in found["hits"]] == expected
    assert any("It scored 0 of 20 hits" in each for each in found["warnings"])
    assert place.client.get("/health").status_code == 200
    assert place.client.get("/ready").status_code == 200
    assert "simile_unreranked_searches_total 0.0" not in place.client.get("/metrics").text


def test_a_hit_without_a_score_keeps_its_place(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before = place.ids(mode="dense", k=20)
    bad = len(
        ModelStore(place.runtime.store.root)
        .open_reranker(place.versions[0])
        .tokenize([Pair(QUERY, TEXTS[before[3]])])[0]
        .ids
    )
    original = Reranker.forward

    def partly(self: Reranker, ids: Any, **options: Any) -> Any:
        found = original(self, ids, **options)
        found[[len(row) == bad for row in ids]] = np.nan
        return found

    monkeypatch.setattr(Reranker, "forward", partly)
    found = place.search(mode="dense", k=20, rerank="true")
    hits = found["hits"]
    unscored = [at for at, hit in enumerate(hits) if "rerank_score" not in hit]
    assert unscored, "some pairs have no score"
    assert 3 in unscored
    assert [hits[at]["id"] for at in unscored] == [before[at] for at in unscored]
    scores = [hit["rerank_score"] for hit in hits if "rerank_score" in hit]
    assert scores == sorted(scores, reverse=True)
    assert any(f"It scored {20 - len(unscored)} of 20 hits" in each for each in found["warnings"])


def test_a_reranker_that_hangs_delays_a_search_by_its_limit_alone_and_pages_stay_the_same(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = place.ids(mode="hybrid", k=20)
    monkeypatch.setattr(place.runtime.corpus._reranking, "_seconds", 0.05)
    gate, original = threading.Event(), Reranker.forward

    def hanging(self: Reranker, ids: Any, **options: Any) -> Any:
        gate.wait()
        return original(self, ids, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Reranker, "forward", hanging)
        try:
            began = time.monotonic()
            found = place.search(mode="hybrid", k=10, rerank="true")
            assert time.monotonic() - began < 10
            assert [hit["id"] for hit in found["hits"]] == expected[:10]
            assert any("SIMILE_RERANK_SECONDS" in each for each in found["warnings"])
            assert place.client.get("/health").status_code == 200
            # More searches than workers: all are answered.
            for _ in range(4):
                assert place.ids(mode="hybrid", k=10, rerank="true") == expected[:10]
        finally:
            gate.set()
    monkeypatch.setattr(place.runtime.corpus._reranking, "_seconds", 30.0)
    assert place.ids(mode="hybrid", k=10, offset=10, rerank="true") == expected[10:20], "as its first page"
    first = place.ids(mode="hybrid", k=10, rerank="true")
    order, _ = in_order_of_scores(place, expected)
    assert first == order[:10], "a new first page is ordered"
    assert place.ids(mode="hybrid", k=10, offset=10, rerank="true") == order[10:]


def test_a_search_that_scores_more_hits_replaces_the_order_of_a_late_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = place.ids(mode="hybrid", k=20)
    original, scored = Batcher.score, 7

    async def partly(self: Batcher, *arguments: Any) -> Any:
        answer, _ = await original(self, *arguments)
        answer.vectors[scored:] = np.nan
        return answer, Timeout("late")

    monkeypatch.setattr(Batcher, "score", partly)
    for scored, known in ((7, 7), (14, 14), (3, 14)):  # noqa: B007  `partly` reads it
        found = place.search(mode="hybrid", k=20, rerank="true")
        order, _ = in_order_of_scores(place, before[:known])
        assert [hit["id"] for hit in found["hits"]] == [*order, *before[known:]]
        assert sum("rerank_score" in hit for hit in found["hits"]) == known
        assert any(f"It scored {known} of 20 hits" in each for each in found["warnings"])
    monkeypatch.setattr(Batcher, "score", original)
    complete = place.search(mode="hybrid", k=20, rerank="true")
    monkeypatch.setattr(Batcher, "score", partly)
    assert place.search(mode="hybrid", k=20, rerank="true")["hits"] == complete["hits"]
    assert "warnings" not in place.search(mode="hybrid", k=20, rerank="true")


def test_searches_are_answered_while_the_reranker_is_replaced(place: Place) -> None:
    stop, failures, versions = threading.Event(), list[str](), set[str]()

    def ask() -> None:
        while not stop.is_set():
            answer = place.client.get("/search", params={"q": QUERY, "rerank": "true"})
            if answer.status_code != 200 or "warnings" in answer.json():
                failures.append(answer.text)
            else:
                versions.add(answer.json()["reranker"])

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for version in (place.versions[1], place.versions[0], place.versions[1]):
            place.activate(version)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures, failures[0]
    assert versions == set(place.versions[:2])


@pytest.mark.parametrize("mode", MODES)
def test_a_long_text_is_scored_by_its_best_passage(place: Place, mode: str) -> None:
    long = f"{'animal sleeps. ' * 300}green river {'animal sleeps. ' * 300}"
    seen = list[Pair]()
    put = place.client.post(
        "/documents", json={"documents": [{"id": "long", "title": "Notes", "text": long}]}
    )
    assert put.status_code == 200
    original = Reranker.tokenize

    def noting(self: Reranker, pairs: Any, **options: Any) -> Any:
        seen.extend(pairs)
        return original(self, pairs, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Reranker, "tokenize", noting)
        place.search(q=f"green river {mode}", mode=mode, rerank="true", rerank_k=60)
    place.client.delete("/documents/long")
    [pair] = [pair for pair in seen if "animal" in pair.text]
    assert pair.text.startswith("Notes\n")
    assert len(pair.text) < 1100
    if mode == "lexical":
        assert "green river" in pair.text


@pytest.fixture(scope="module")
def long_texts(shared: Place) -> str:
    """A collection of 200 long texts, in which only keyword search finds no passages."""
    path = "/collections/long/documents"
    text = " ".join(WORDS * 160)
    for start in range(0, 200, 20):
        documents = [{"id": f"l{at}", "text": f"{text} n{at}"} for at in range(start, start + 20)]
        assert shared.client.post(path, json={"documents": documents}).status_code == 200
    return "/collections/long/search"


LONG_QUERY = "river " + " ".join(f"word{at}" for at in range(1100))


@pytest.mark.parametrize(
    ("q", "options"),
    [
        (LONG_QUERY, {"mode": "lexical", "rerank_k": 200}),
        (LONG_QUERY, {"mode": "lexical", "rerank_k": 200, "k": 1, "fields": ""}),
        (LONG_QUERY, {"mode": "dense", "passages": "false", "rerank_k": 200}),
        (LONG_QUERY, {"mode": "hybrid", "passages": "false", "rerank_k": 150}),
        ("river stone", {"mode": "lexical", "rerank_k": 200}),
        (" ".join(WORDS), {"mode": "hybrid", "rerank_k": 200}),
    ],
)
def test_choosing_passages_counts_in_the_time_of_the_reranker(
    place: Place, long_texts: str, monkeypatch: pytest.MonkeyPatch, q: str, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(place.runtime.corpus._reranking, "_seconds", 0.05)
    began = time.monotonic()
    expected = place.search(long_texts, q=q, **options)["hits"]
    plain, began = time.monotonic() - began, time.monotonic()
    found = place.search(long_texts, q=q, rerank="true", **options)
    assert time.monotonic() - began < plain + 1.5
    assert len(found["hits"]) == len(expected) > 0


def test_passages_that_there_was_no_time_to_choose_leave_their_hits_in_place(
    place: Place, long_texts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0] * 9 + [31.0])  # The start and eight hits, then the end of the 30 s.
    parsed, original = list[str](), terms.parse_query

    def noting(query: str) -> terms.Query:
        parsed.append(query)
        return original(query)

    expected = place.ids(mode="lexical", k=20)
    monkeypatch.setattr(reranking, "clock", lambda: next(times, 0.0))
    monkeypatch.setattr(reranking, "parse_query", noting)
    found = place.search(mode="lexical", k=20, rerank="true")
    assert any("took longer" in each and "It scored 8 of 20 hits" in each for each in found["warnings"])
    assert parsed == [QUERY], "each query is parsed once, although there are 20 texts"
    unscored = [at for at, hit in enumerate(found["hits"]) if "rerank_score" not in hit]
    assert unscored == [*range(8, 20)]
    assert [found["hits"][at]["id"] for at in unscored] == [expected[at] for at in unscored]


@pytest.mark.parametrize("word", ["zebra", "Zebras", "zebra crossing", "the zebra", "one zebra two"])
def test_the_window_with_most_terms_is_read_wherever_it_is(place: Place, word: str) -> None:
    seen, original = list[Pair](), Reranker.tokenize
    rows = [{"id": "late", "text": f"{'animal sleeps. ' * 300}a zebra {'animal sleeps. ' * 300}"}]
    path = "/collections/zebras"
    assert place.client.post(f"{path}/documents", json={"documents": rows}).status_code == 200

    def noting(self: Reranker, pairs: Any, **options: Any) -> Any:
        seen.extend(pairs)
        return original(self, pairs, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Reranker, "tokenize", noting)
        place.search(f"{path}/search", q=word, mode="lexical", rerank="true")
    assert ["zebra" in pair.text for pair in seen] == [True]


def test_a_failure_while_passages_are_chosen_costs_the_order_and_not_the_search(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(query: str) -> terms.Query:
        raise RuntimeError("no terms")

    expected = place.ids(mode="dense")
    monkeypatch.setattr(reranking, "parse_query", fail)
    found = place.search(mode="dense", rerank="true")
    assert [hit["id"] for hit in found["hits"]] == expected
    assert any("The reranker failed" in each for each in found["warnings"])


@pytest.mark.parametrize("options", [{}, {"k": 5}, {"rerank_k": 200}, {"offset": 5}, {"fields": ["title"]}])
@pytest.mark.parametrize(("mode", "count"), [("hybrid", 100), ("dense", 600), ("lexical", 40)])
def test_a_collections_default_never_refuses_a_search(
    place: Place, mode: str, count: int, options: dict[str, Any]
) -> None:
    """The limit allows 28 to 33 queries with 20 pairs each."""
    path, body = "/collections/default-on/search", {"queries": [QUERY] * count, "mode": mode, **options}
    answer = place.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert "reranker" not in found
    assert any("SIMILE_MAX_CANDIDATES" in each for each in found["warnings"])
    plain = place.client.post(path, json=body | {"rerank": False}).json()
    assert found["results"] == plain["results"]
    assert "warnings" not in plain
    refused = place.client.post(path, json=body | {"rerank": True})
    assert refused.status_code == 422
    assert "SIMILE_MAX_CANDIDATES" in refused.json()["error"]


@pytest.mark.parametrize("rerank", [None, True, False])
@pytest.mark.parametrize("options", [{}, {"rerank_k": 200}, {"mode": "hybrid", "k": 1000, "offset": 10}])
def test_the_smallest_limit_of_candidates_allows_one_query(
    place: Place, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], rerank: bool | None
) -> None:
    [least] = Settings.model_fields["max_candidates"].metadata
    settings = place.runtime.settings.model_copy(update={"max_candidates": least.ge})
    monkeypatch.setattr(place.runtime, "settings", settings)
    body = {"queries": [QUERY], "rerank": rerank, **options}
    answer = place.client.post("/collections/default-on/search", json=body)
    assert answer.status_code == 200, answer.text
    assert ("reranker" in answer.json()) == (rerank is not False)


@pytest.mark.parametrize(("offset", "pairs"), [(0, 20), (19, 20), (20, 0), (21, 0), (500, 0)])
def test_only_pages_with_reranked_hits_cost_pairs(offset: int, pairs: int) -> None:
    search = Search(mode="lexical", offset=offset, rerank_k=20)
    assert search.cost == search.work + pairs * RERANK_WORK


@pytest.mark.parametrize("error", [TooMuch(), Overloaded("too many bytes")])
def test_candidates_that_are_too_large_are_not_read(
    place: Place, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    expected = place.ids(k=3, fields="")

    def find_small(*args: Any, **options: Any) -> Any:
        if "text" in options["search"].columns:
            raise error
        return find(*args, **options)

    monkeypatch.setattr("service.corpus.corpus.find", find_small)
    found = place.search(k=3, fields="", rerank="true")
    assert [hit["id"] for hit in found["hits"]] == expected
    assert any("too large to be reranked" in each for each in found["warnings"])


@pytest.mark.parametrize("timeout_ms", [1000, 1500])
@pytest.mark.parametrize("mode", MODES)
def test_a_reranker_that_hangs_leaves_time_to_answer_before_the_deadline(
    place: Place, monkeypatch: pytest.MonkeyPatch, mode: str, timeout_ms: int
) -> None:
    expected, gate, original = place.ids(mode=mode), threading.Event(), Reranker.forward

    def hanging(self: Reranker, ids: Any, **options: Any) -> Any:
        gate.wait()
        return original(self, ids, **options)

    params = {"q": QUERY, "mode": mode, "rerank": "true"}
    headers = {"x-timeout-ms": str(timeout_ms)}
    with monkeypatch.context() as patched:
        patched.setattr(Reranker, "forward", hanging)
        try:
            answer = place.client.get("/search", params=params, headers=headers)
        finally:
            gate.set()
    assert answer.status_code == 200, answer.text
    assert [hit["id"] for hit in answer.json()["hits"]] == expected
    assert any("x-timeout-ms" in each for each in answer.json()["warnings"])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("offset", [0, 3])
def test_reranked_hits_are_highlighted_and_explained(place: Place, mode: str, offset: int) -> None:
    options: dict[str, Any] = {"mode": mode, "k": 7, "offset": offset, "highlight": "true", "explain": "true"}
    plain = {hit["id"]: hit for hit in place.search(**options | {"k": 60, "offset": 0})["hits"]}
    reranked = place.search(rerank="true", **options)["hits"]
    assert len(reranked) == 7
    for hit in reranked:
        for name in ("highlights", "snippet", "explanation"):
            assert hit[name] == plain[hit["id"]][name]
    hidden = place.search(rerank="true", fields="", **options)["hits"]
    assert [hit["snippet"] for hit in hidden] == [hit["snippet"] for hit in reranked]
    assert not any("text" in hit for hit in hidden)

"""The second stage of hybrid search: order, pages, explanations, faults, and the memory of judged queries."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from models.encoder import Encoder
from models.files.fsync import replace_text
from models.manifest import Manifest
from models.search.features import FEATURES, VERSION
from models.search.ranking import MAX_RANKED, MAX_RECALLED, Ranking, get_default
from service import ranking as stage
from service.active import Generation
from service.auth.keys import UNTRUSTED, Role
from service.batching.batcher import HANGS
from service.batching.request import Lane
from service.cli.keys import add
from service.corpus import judged
from service.corpus.search import RECALLED_TOGETHER
from service.errors import Backend, Unhealthy
from service.ranking import read_rankings
from service.runtime.runtime import Runtime
from service.store.scheduling import Abandoned
from service.store.values import Judgment
from tests.service.conftest import new_settings, serving
from tests.waiting import LIMIT, until

WORDS = "red green blue river stone market letter engine garden bridge".split()
TEXTS = {f"d{at:03}": f"{WORDS[at % 10]} {WORDS[at // 10]} {'long ' * (at % 4)}" for at in range(100)}
QUERY = "green river"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a search wait for its memory, however busy the machine is."""
    monkeypatch.setattr(judged, "WAIT_SECONDS", LIMIT)


@pytest.fixture(scope="module", autouse=True)
def _filled(running: TestClient) -> None:
    fill(running)


def fill(client: TestClient) -> None:
    documents = [{"id": id, "text": text} for id, text in TEXTS.items()]
    assert client.post("/documents", json={"documents": documents}).status_code == 200


def answer(client: TestClient, query: str = QUERY, **options: Any) -> dict[str, Any]:
    body = {"queries": [query], "mode": "hybrid", "fields": [], "k": 100, **options}
    response = client.post("/search", json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def hits(client: TestClient, query: str = QUERY, **options: Any) -> list[dict[str, Any]]:
    [found] = answer(client, query, **options)["results"]
    return found  # type: ignore[no-any-return]


def ids(client: TestClient, query: str = QUERY, **options: Any) -> list[str]:
    return [hit["id"] for hit in hits(client, query, **options)]


def in_hybrid_order(client: TestClient, query: str = QUERY) -> list[str]:
    found = hits(client, query, explain=True)[:MAX_RANKED]
    return [hit["id"] for hit in sorted(found, key=lambda hit: -float(hit["features"]["hybrid"]))]


@pytest.fixture
def by_length(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> Ranking:
    """Installs a ranking that puts long texts first."""
    ranking = Ranking(weights={"length": 5.0, "hybrid": 0.1})
    learned = runtime.active.generation.rankings
    monkeypatch.setattr(learned, "_learned", {"default": ranking})
    return ranking


@pytest.fixture
def hybrid(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids in the order of hybrid search without its second stage."""
    with monkeypatch.context() as patched:
        patched.setattr("service.corpus.search.Search.is_ranked", False)
        return ids(client)


def test_a_ranking_orders_the_candidates_and_leaves_the_others(
    client: TestClient, hybrid: list[str], by_length: Ranking
) -> None:
    found = hits(client)
    assert {hit["id"] for hit in found[:MAX_RANKED]} == {*hybrid[:MAX_RANKED]}
    assert [hit["id"] for hit in found[MAX_RANKED:]] == hybrid[MAX_RANKED:]
    assert "long long long" in TEXTS[found[0]["id"]]
    scores = [hit["score"] for hit in found]
    assert scores == sorted(scores, reverse=True)
    np.testing.assert_allclose(scores[:MAX_RANKED], 2 - np.arange(MAX_RANKED) / MAX_RANKED)
    assert scores[MAX_RANKED] < 1
    [listed] = client.get("/collections").json()["collections"]
    assert (listed["name"], listed["ranked"]) == ("default", True)


def test_pages_neither_repeat_nor_skip_a_hit(client: TestClient, by_length: Ranking) -> None:
    whole = ids(client)
    assert [id for offset in range(0, 100, 7) for id in ids(client, k=7, offset=offset)] == whole[:100]


@pytest.mark.parametrize("late_page", [0, 1])
def test_pages_stay_consistent_if_one_of_them_is_late(
    client: TestClient,
    hybrid: list[str],
    by_length: Ranking,
    runtime: Runtime,
    monkeypatch: pytest.MonkeyPatch,
    late_page: int,
) -> None:
    runtime.active.generation.rankings.orders._recent.clear()
    found: list[str] = []
    for page in range(3):
        with monkeypatch.context() as patched:
            if page == late_page:
                times = iter(range(100))
                patched.setattr(stage, "clock", lambda times=times: float(next(times)))
            given = answer(client, k=20, offset=20 * page)
        found += [hit["id"] for hit in given["results"][0]]
        if page == late_page == 0:
            [warning] = given["warnings"]
            assert "SIMILE_RANK_SECONDS" in warning
            assert "hybrid order" in warning
        else:
            assert "warnings" not in given
    assert len({*found}) == 60
    assert (found == hybrid[:60]) == (late_page == 0)


def test_a_stage_that_fails_leaves_the_hybrid_order(
    client: TestClient,
    hybrid: list[str],
    by_length: Ranking,
    runtime: Runtime,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(*_: object) -> None:
        raise ArithmeticError("broken")

    def unranked() -> float:
        return runtime.metrics.unranked._value.get()  # type: ignore[no-any-return]

    monkeypatch.setattr(stage, "build", fails)
    runtime.active.generation.rankings.orders._recent.clear()
    before = unranked()
    given = answer(client)
    assert unranked() == before + 1
    assert [hit["id"] for hit in given["results"][0]] == hybrid
    assert given["warnings"] == [
        "The second stage of the search failed; the log says why. The hits are in hybrid order."
    ]
    assert "ArithmeticError" in caplog.text or "broken" in caplog.text
    single = client.get("/search", params={"q": QUERY, "mode": "hybrid"}).json()
    assert "The second stage of the search failed" in single["warnings"][0]


def test_a_failure_does_not_spoil_the_order_of_earlier_pages(
    client: TestClient, by_length: Ranking, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ids(client)
    with monkeypatch.context() as patched:
        patched.setattr(stage, "build", None)
        given = answer(client, k=10)
    assert [hit["id"] for hit in given["results"][0]] == whole[:10]
    assert given["warnings"][0].endswith("The hits are in the order of the last such search.")
    assert ids(client, k=10, offset=10) == whole[10:20]


def test_a_client_that_left_spoils_no_page(
    client: TestClient, by_length: Ranking, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ids(client)
    with monkeypatch.context() as patched:

        def left() -> None:
            raise Abandoned

        patched.setattr(stage, "pause", left)
        assert client.post("/search", json={"queries": [QUERY], "mode": "hybrid"}).status_code == 500
    assert ids(client, k=10, offset=10) == whole[10:20]


def test_a_score_that_is_not_finite_is_a_failure(
    client: TestClient, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = Ranking(weights={"hybrid": 1e308, "length": 1e308, "dense": 1e308})
    monkeypatch.setattr(runtime.active.generation.rankings, "_learned", {"default": huge})
    given = answer(client)
    assert "failed" in given["warnings"][0]


def test_long_texts_end_within_the_time_of_the_stage(
    client: TestClient, by_length: Ranking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock advances by 6 s each time it is read. The stage reads it before every candidate."""
    times = iter(np.arange(0, 1000, 6.0))
    monkeypatch.setattr(stage, "clock", lambda: float(next(times)))
    answer(client, "never searched before")
    assert next(times) == 42, "six looks, then it was late"


def test_an_explanation_has_the_features_and_their_parts_in_the_score(
    client: TestClient, by_length: Ranking
) -> None:
    found = hits(client, explain=True)
    assert all("features" in hit for hit in found[:MAX_RANKED])
    assert not any("features" in hit or "contributions" in hit for hit in found[MAX_RANKED:])
    features = np.array([[hit["features"][name] for name in FEATURES] for hit in found[:MAX_RANKED]])
    scores = by_length.score(features)
    assert (np.diff(scores) <= 1e-9).all()
    for hit, score in zip(found, scores, strict=False):
        assert sum(hit["contributions"].values()) == pytest.approx(score, abs=1e-6)
    assert [hit["id"] for hit in found] == ids(client)


def test_vectors_and_keywords_of_an_explanation_are_those_of_the_other_modes(client: TestClient) -> None:
    dense = {hit["id"]: hit["score"] for hit in hits(client, mode="dense")}
    lexical = {hit["id"]: hit["score"] for hit in hits(client, mode="lexical")}
    for hit in hits(client, explain=True)[:MAX_RANKED]:
        assert hit["features"]["dense"] == pytest.approx(dense[hit["id"]], abs=1e-5)
        assert hit["features"]["bm25"] == pytest.approx(lexical.get(hit["id"], 0), abs=1e-5)


@pytest.mark.parametrize("mode", ["dense", "lexical"])
def test_only_hits_of_hybrid_search_have_features(client: TestClient, mode: str) -> None:
    found = hits(client, mode=mode, explain=True)
    assert found
    assert not any("features" in hit for hit in found)


def test_a_text_without_candidates_has_no_hits(client: TestClient, by_length: Ranking) -> None:
    none = client.get("/search", params={"q": QUERY, "mode": "hybrid", "filter": '{"x": 1}'})
    assert none.json()["hits"] == []


def test_the_stage_can_be_turned_off(tmp_path: Path, tiny_models_dir: Path, hybrid: list[str]) -> None:
    with serving(new_settings(tmp_path, tiny_models_dir, ranking=False)) as client:
        fill(client)
        assert ids(client) == hybrid
        found = hits(client, explain=True)
        assert [hit["id"] for hit in found] == hybrid
        assert found[0]["score"] <= 1
        assert found[0]["features"]["length"] > 0
        judge(client, QUERY, hybrid[-1], True)
        assert ids(client, explain=True) == hybrid


def judge(client: TestClient, query: str, id: str, relevant: bool, **headers: str) -> None:
    body = {"query": query, "id": id, "relevant": relevant}
    assert client.post("/feedback", json=body, headers=headers).status_code == 200


def forget(client: TestClient) -> None:
    assert client.delete("/feedback", params={"query": QUERY}).status_code == 200


@pytest.fixture
def _forgotten(client: TestClient) -> Iterator[None]:
    yield
    forget(client)


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list that grows whenever the judgments of a collection are read."""
    reads: list[str] = []
    combine = judged._combine

    def counted(*given: Any) -> judged.Answers:
        reads.append("read")
        return combine(*given)

    monkeypatch.setattr(judged, "_combine", counted)
    return reads


@pytest.fixture
def keep(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Awaitable[None]]:
    """Stops the background task of judged queries, and returns what it does for a generation."""

    async def nothing(*_: object) -> None:
        pass

    original = runtime.corpus.judged._keep
    monkeypatch.setattr(runtime.corpus.judged, "_keep", nothing)
    return original


@pytest.mark.usefixtures("_forgotten")
def test_a_judgment_counts_in_the_next_search_and_is_forgotten_exactly(client: TestClient) -> None:
    before = hits(client)
    last, first = before[MAX_RANKED - 1]["id"], before[0]["id"]
    judge(client, QUERY, last, True)
    assert hits(client)[0]["id"] == last
    judge(client, QUERY, first, False)
    assert ids(client).index(first) > 0
    judge(client, QUERY, last, False)
    assert ids(client)[0] != last
    forget(client)
    assert hits(client) == before


@pytest.mark.parametrize(
    ("typed", "syntax", "same"),
    [("greeen rivver", False, "green river"), ("green river -engine", True, "green river")],
)
@pytest.mark.parametrize("place", [MAX_RANKED - 1, MAX_RANKED + 5])
def test_a_judgment_counts_for_a_query_that_is_searched_as_another_text(
    client: TestClient, typed: str, syntax: bool, same: str, place: int
) -> None:
    before = ids(client, typed, syntax=syntax)
    assert before
    judge(client, typed, before[place], True)
    best = hits(client, typed, syntax=syntax, explain=True)[0]
    assert best["id"] == before[place]
    assert best["features"]["memory_best"] == pytest.approx(1, abs=1e-5)
    other = hits(client, same, explain=True)
    assert all(hit["features"]["memory_best"] < 0.999 for hit in other if "features" in hit)
    pages = [
        hit["id"] for at in range(0, 100, 10) for hit in hits(client, typed, syntax=syntax, offset=at, k=10)
    ]
    assert [*dict.fromkeys(pages)] == pages
    assert client.delete("/feedback", params={"query": typed}).status_code == 200


@pytest.mark.usefixtures("_forgotten")
def test_a_judgment_counts_wherever_the_document_was(client: TestClient) -> None:
    before = ids(client, k=200)
    late, later = before[MAX_RANKED + 5], before[-1]
    judge(client, QUERY, late, True)
    judge(client, QUERY, later, True)
    found = ids(client, k=200)
    assert {*found[:2]} == {late, later}
    assert sorted(found) == sorted(before)
    assert found[MAX_RANKED + 2 :] == [id for id in before[MAX_RANKED:] if id not in (late, later)]
    for size in (7, 26, 50, 52, 60):  # Pages neither repeat nor skip a hit.
        pages = [ids(client, k=size, offset=at) for at in range(0, len(before), size)]
        assert [id for page in pages for id in page] == found
    judge(client, QUERY, later, False)
    assert ids(client, k=200)[0] == late


@pytest.mark.usefixtures("_forgotten")
def test_judged_documents_that_are_candidates_or_deleted_displace_no_others(client: TestClient) -> None:
    before = ids(client, k=200)
    late = max(before[MAX_RANKED:])
    for id in [id for id in before[:MAX_RANKED] if id < late][:MAX_RECALLED]:
        judge(client, QUERY, id, True)
    judge(client, QUERY, late, True)
    assert late in ids(client)[: MAX_RECALLED + 1]
    forget(client)
    gone = [{"id": f"a{at}", "text": "gone"} for at in range(RECALLED_TOGETHER)]  # More than one statement.
    assert client.post("/documents", json={"documents": gone}).status_code == 200
    for document in gone:
        judge(client, QUERY, document["id"], True)
    judge(client, QUERY, late, True)
    where = {"filter": json.dumps({"$ids": [document["id"] for document in gone]})}
    assert client.delete("/documents", params=where).json()["deleted"] == len(gone)
    assert ids(client)[0] == late


@pytest.mark.parametrize("page", [10, 55, 60])
def test_a_judgment_between_two_pages_makes_them_neither_repeat_nor_skip_a_hit(
    client: TestClient, by_length: Ranking, page: int
) -> None:
    whole = ids(client, k=200)
    begin = ids(client, k=page)
    judge(client, QUERY, whole[-1], True)
    assert begin + ids(client, k=200, offset=page) == whole
    whole = ids(client, k=200)
    begin = ids(client, k=page)
    forget(client)
    assert begin + ids(client, k=200, offset=page) == whole


def test_a_judgment_before_a_stage_that_fails_repeats_no_hit(
    client: TestClient, by_length: Ranking, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ids(client, k=200)
    judge(client, QUERY, whole[-1], True)
    with monkeypatch.context() as patched:
        patched.setattr(stage, "build", None)
        begin = ids(client, k=10)
    pages = begin + ids(client, k=200, offset=10)
    assert sorted(pages) == sorted(whole)
    forget(client)


@pytest.mark.usefixtures("_forgotten")
def test_a_judgment_counts_again_if_its_document_is_stored_again(client: TestClient) -> None:
    tenth = ids(client)[9]
    judge(client, QUERY, tenth, True)
    assert client.delete(f"/documents/{tenth}").json()["deleted"] == 1
    assert tenth not in ids(client)
    document = {"documents": [{"id": tenth, "text": TEXTS[tenth]}]}
    assert client.post("/documents", json=document).status_code == 200
    assert ids(client)[0] == tenth


@pytest.mark.usefixtures("_forgotten")
@pytest.mark.usefixtures("keep")
def test_a_search_waits_once_for_its_memory(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    before, waits = hits(client), list[float]()
    wait_for = asyncio.wait_for

    def counted(reading: Awaitable[Any], seconds: float) -> Awaitable[Any]:
        waits.append(seconds)
        return wait_for(reading, seconds)

    async def is_slow(*_: object) -> None:
        await asyncio.sleep(0.1)

    monkeypatch.setattr(judged, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(asyncio, "wait_for", counted)
    monkeypatch.setattr(judged.JudgedQueries, "_read", is_slow)
    judge(client, QUERY, before[9]["id"], True)
    assert hits(client) == before
    assert waits.count(0.01) == 1


@pytest.mark.usefixtures("_forgotten")
def test_two_keys_that_disagree_say_nothing(client: TestClient, runtime: Runtime) -> None:
    before = hits(client)
    tenth = before[9]["id"]
    judge(client, QUERY, tenth, True)
    assert hits(client) != before
    assert client.portal is not None
    client.portal.call(runtime.corpus.store.judge, [Judgment(QUERY, tenth, False)], "default", "other")
    assert hits(client) == before


@pytest.mark.usefixtures("_forgotten")
def test_a_visitor_of_two_keys_has_one_vote(client: TestClient, runtime: Runtime) -> None:
    first, tenth = ids(client)[0], ids(client)[9]

    def vote(key: str, relevant: bool, visitor: str, query: str = QUERY) -> None:
        given = [Judgment(query, tenth, relevant, visitor=visitor)]
        assert client.portal is not None
        client.portal.call(runtime.corpus.store.judge, given, "default", key)

    vote("a", False, "v")
    vote("b", True, "v")
    assert ids(client)[0] == tenth, "the newest judgment of a visitor counts"
    vote("a", False, "v")
    assert tenth not in ids(client)[:10]
    vote("b", True, "w")
    assert ids(client)[0] == first, "two visitors are tied"
    vote("c", True, "")
    vote("c", False, "", f" {QUERY}")
    assert tenth not in ids(client)[:10], "the newest judgment of a key counts"
    assert client.delete("/feedback", params={"id": tenth}).status_code == 200


@pytest.mark.usefixtures("_forgotten")
def test_a_query_on_which_the_model_fails_stops_no_other(
    client: TestClient,
    runtime: Runtime,
    keep: Callable[..., Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    embed, failing, calls = runtime.corpus.judged._embed_queries, "fails", list[str]()

    async def fails(generation: Generation, queries: Sequence[str], lane: Lane | None) -> Any:
        calls.extend(queries)
        if failing in queries:
            raise Backend("The model failed.")
        return await embed(generation, queries, lane)

    monkeypatch.setattr(runtime.corpus.judged, "_embed_queries", fails)
    tenth, ninth = ids(client)[9], ids(client)[8]
    judge(client, failing, tenth, True)
    judge(client, QUERY, tenth, True)
    assert ids(client)[0] == tenth
    judge(client, QUERY, tenth, False)
    judge(client, QUERY, ninth, True)
    assert ids(client)[0] == ninth
    assert caplog.text.count("on which the model fails: 1") == 1
    assert calls.count(failing) == 2, "with the other query, and alone"
    assert client.portal is not None
    failing = ""
    client.portal.call(keep, runtime.active.generation, ["default"])
    assert ids(client, "fails")[0] != tenth, "not yet"
    monkeypatch.setattr(judged, "AGAIN_SECONDS", 0.0)
    client.portal.call(keep, runtime.active.generation, ["default"])
    assert ids(client, "fails")[0] == tenth
    assert not runtime.corpus.judged.latest(runtime.active.generation, "default").failed
    assert client.delete("/feedback", params={"query": "fails"}).status_code == 200


@pytest.mark.usefixtures("_forgotten")
@pytest.mark.usefixtures("keep")
def test_a_model_that_fails_on_all_queries_is_asked_again(
    client: TestClient, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ids(client)

    async def fails(*_: object) -> None:
        raise Backend("The model failed.")

    with monkeypatch.context() as patched:
        patched.setattr(runtime.corpus.judged, "_embed_queries", fails)
        judge(client, "marble stone", before[9], True)
        judge(client, "garden market", before[9], True)
        assert ids(client) == before
    assert ids(client, "marble stone")[0] == before[9]
    assert client.delete("/feedback", params={"id": before[9]}).status_code == 200


@pytest.mark.usefixtures("_forgotten", "keep")
def test_a_batch_that_hangs_is_not_split(
    client: TestClient, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, calls = ids(client), list[int]()

    async def hangs(_: Generation, queries: Sequence[str], __: Lane | None) -> Any:
        calls.append(len(queries))
        raise Backend(HANGS)

    monkeypatch.setattr(runtime.corpus.judged, "_embed_queries", hangs)
    for query in ("marble stone", "garden market"):
        judge(client, query, before[9], True)
    assert ids(client) == before
    assert calls == [2]
    monkeypatch.undo()
    assert client.delete("/feedback", params={"id": before[9]}).status_code == 200


def test_a_collection_that_cannot_be_read_stops_no_other(
    client: TestClient, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    async def fails(_: Generation, collection: str) -> judged.Remembered:
        read.append(collection)
        if collection == "broken":
            raise Unhealthy("Every worker hangs.")
        return judged.Remembered()

    monkeypatch.setattr(runtime.corpus.judged, "_read", fails)
    assert client.portal is not None
    client.portal.call(runtime.corpus.judged._keep, runtime.active.generation, ["broken", "other"])
    assert read == ["broken", "other"]


def test_many_new_queries_are_embedded_in_the_background(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judged, "WAITED", 0)
    monkeypatch.setattr(judged, "EVERY_SECONDS", 0.01)
    with serving(new_settings(tmp_path, tiny_models_dir)) as client:
        fill(client)
        tenth = ids(client)[9]
        judge(client, QUERY, tenth, True)
        until(lambda: ids(client)[0] == tenth)


def test_judgments_are_remembered_after_a_restart(tmp_path: Path, tiny_models_dir: Path) -> None:
    settings = new_settings(tmp_path, tiny_models_dir)
    with serving(settings) as client:
        fill(client)
        tenth = ids(client)[9]
        judge(client, QUERY, tenth, True)
    with serving(settings) as client:
        assert ids(client)[0] == tenth


def test_judgments_of_an_untrusted_key_do_not_count(tmp_path: Path, tiny_models_dir: Path) -> None:
    file = tmp_path / "keys"
    trusted, untrusted = add(file, "a", Role.ADMIN), add(file, "b", Role.WRITE, trust=UNTRUSTED)
    with serving(new_settings(tmp_path, tiny_models_dir, api_keys_file=file)) as client:
        client.headers["authorization"] = f"Bearer {trusted}"
        fill(client)
        before = hits(client)
        judge(client, QUERY, before[9]["id"], True, authorization=f"Bearer {untrusted}")
        assert hits(client) == before
        judge(client, QUERY, before[8]["id"], True)
        assert hits(client)[0]["id"] == before[8]["id"]


def test_a_key_that_becomes_untrusted_does_not_count_any_more(tmp_path: Path, tiny_models_dir: Path) -> None:
    file = tmp_path / "keys"
    admin, page = add(file, "admin", Role.ADMIN), add(file, "page", Role.WRITE)
    with serving(new_settings(tmp_path, tiny_models_dir, api_keys_file=file)) as client:
        client.headers["authorization"] = f"Bearer {admin}"
        fill(client)
        before = hits(client)
        judge(client, QUERY, before[9]["id"], True, authorization=f"Bearer {page}")
        assert hits(client) != before
        lines = file.read_text().splitlines()
        marked = [f"{line}:::{UNTRUSTED}" if line.startswith("page:") else line for line in lines]
        replace_text(file, "\n".join(marked) + "\n")
        until(lambda: hits(client) == before)


@pytest.mark.usefixtures("keep")
def test_memories_of_collections_are_apart(
    client: TestClient, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = count_reads(monkeypatch)
    for name in ("left", "right"):
        documents = [{"id": id, "text": text} for id, text in TEXTS.items()]
        assert client.post(f"/collections/{name}/documents", json={"documents": documents}).status_code == 200

    def found(name: str) -> list[str]:
        body = {"queries": [QUERY], "mode": "hybrid", "k": 20, "fields": []}
        return [
            hit["id"] for hit in client.post(f"/collections/{name}/search", json=body).json()["results"][0]
        ]

    before = found("right")
    assert found("left") == before
    judged_left = {"query": QUERY, "id": before[9], "relevant": True}
    assert client.post("/collections/left/feedback", json=judged_left).status_code == 200
    reads.clear()
    assert found("right") == before
    assert not reads, "its judgments are the same"
    assert found("left")[0] == before[9]
    assert reads
    judged_right = {"query": QUERY, "id": before[8], "relevant": True}
    assert client.post("/collections/right/feedback", json=judged_right).status_code == 200
    assert found("right")[0] == before[8]
    everywhere = {"query": QUERY, "collection": "*"}
    assert client.delete("/feedback", params=everywhere).status_code == 200
    assert found("left") == found("right") == before
    assert client.portal is not None
    state = partial(client.portal.call, runtime.corpus.store.judgment_state)
    assert state("left") not in ("", state("right"))
    for name in ("left", "right"):
        assert client.delete(f"/collections/{name}").status_code == 200
        assert state(name) == ""


GOOD = {"weights": {"hybrid": 2}}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (GOOD, ""),
        (GOOD | {"fingerprint": "own"}, ""),
        (GOOD | {"fingerprint": "0" * 64}, "the encoder 00000000"),
        (GOOD | {"features": VERSION + 1}, f"features of version {VERSION + 1}"),
        (GOOD | {"format": 2}, "malformed"),
        ("{", "malformed"),
        (None, "cannot be read"),
    ],
)
def test_a_ranking_of_another_format_or_encoder_is_ignored(
    encoder: Encoder, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: Any, reason: str
) -> None:
    manifest: Manifest = encoder.manifest
    path = tmp_path / "ranking" / "letters.json"
    if content is not None:
        path.parent.mkdir()
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_text(text.replace('"own"', f'"{manifest.fingerprint}"'))
    named = manifest.model_copy(update={"files": manifest.files | {"ranking/letters.json": "0" * 64}})
    rankings = read_rankings(tmp_path, named)
    assert (rankings["letters"] is get_default()) == bool(reason)
    assert rankings["letters"].weights == (GOOD["weights"] if not reason else rankings["others"].weights)
    assert reason in caplog.text

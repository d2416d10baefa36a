"""Live tests of versions with another encoder: building, testing, and cleaning up after each way to end."""

import random
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from models.encoder import Encoder
from models.search import passages
from service.errors import Conflict, Unhealthy
from service.lifecycle import live_tests
from service.lifecycle.builder import HARMLESS
from service.lifecycle.live_tests import LiveTests
from service.lifecycle.sequential import MIN_ACCEPT, MIN_REJECT, Standing
from service.runtime import watchdog
from service.store.sql.connection import fetch_column
from tests.parts.faults import before_passes
from tests.parts.places import DOCUMENTS, Place, break_model, count_embedded
from tests.service.lifecycle.test_capacity import second_version, write
from tests.service.lifecycle.test_live_tests import start, state
from tests.service.swapping import TEXTS, Oracle
from tests.waiting import LIMIT, until

UNLIKE = TEXTS[100:]  # Queries that are no documents.
MIB = 2**20


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_tests, "LOOK_SECONDS", 0.02)


@pytest.fixture
def client(place: Place) -> Iterator[TestClient]:
    with place.serving(live_test=1) as client:
        place.fill()
        yield client


def find(client: Any, query: str, at: str = "", **params: Any) -> dict[str, Any]:
    answer = client.get(f"{at}/search", params={"q": query, "mode": "dense", "k": "10"} | params)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def rank(oracle: Oracle, version: str, query: str, documents: dict[str, str]) -> list[str]:
    vectors = oracle.of(version)
    return sorted(documents, key=lambda name: (-float(vectors[documents[name]] @ vectors[query]), name))


def check_drafted(hits: list[str], rankings: list[list[str]]) -> None:
    """Checks that the hits are the first ones of two rankings, drafted in turn."""
    assert len({*hits}) == len(hits)
    depths = [0, 0]
    for at, hit in enumerate(hits):
        before = {*hits[:at]}
        heads = [next(id for id in ranking if id not in before) for ranking in rankings]
        assert hit in heads, (at, hit, heads)
        depths = [depth + (hit == head) for depth, head in zip(depths, heads, strict=True)]
    assert abs(depths[0] - depths[1]) <= 1, "the sides choose in turn"


def is_tested(place: Place, candidate: str, active: str = "", documents: dict[str, str] = DOCUMENTS) -> bool:
    """Returns whether a search is interleaved, and checks that its hits are of both versions, or of one."""
    query = UNLIKE[0]
    hits = [hit["id"] for hit in find(place.client, query)["hits"]]
    rankings = [rank(place.oracle, version, query, documents) for version in (active or place.a, candidate)]
    assert rankings[0][:10] != rankings[1][:10]
    if hits == rankings[0][:10]:
        return False
    check_drafted(hits, rankings)
    return True


def click_until_over(
    client: Any,
    oracle: Oracle,
    candidate: str,
    liked: str,
    first: int = 0,
    queries: Sequence[str] = UNLIKE,
    at: str = "",
) -> dict[str, Any]:
    """Clicks, as new visitors, on the hits that the version `liked` likes best, until the test is over.

    `at` is the path of a collection.
    """
    vectors = oracle.of(liked)
    for number in range(first, first + 1000):
        query = queries[number % len(queries)]
        found = find(client, query, at, user=f"visitor-{number}")
        likes = {hit["id"]: float(vectors[hit["text"]] @ vectors[query]) for hit in found["hits"]}
        event = {"search_id": found["search_id"], "id": max(likes, key=likes.__getitem__), "type": "click"}
        assert client.post(f"{at}/events", json=event).status_code == 200
        if number % 10 == 0 and (told := state(client, candidate))["ended"]:
            return told
    raise AssertionError(state(client, candidate))


def find_until_over(client: Any, candidate: str) -> dict[str, Any]:
    """Searches for one query after the other, until the test is over. Returns its state."""
    queries = cycle(UNLIKE)

    def is_over() -> bool:
        find(client, next(queries))
        return state(client, candidate)["ended"] is not None

    until(is_over)
    return state(client, candidate)


def generations(place: Place) -> list[str]:
    """Returns the states of the stored generations."""
    sql = "SELECT state FROM generations ORDER BY number"
    store = place.app.state.runtime.corpus.store
    assert place.client.portal is not None
    found: list[str] = place.client.portal.call(store.readers.own, lambda it: fetch_column(it, sql))
    return found


def until_dropped(place: Place, version: str) -> None:
    """Waits until neither the memory nor the store has anything of a version."""
    active = place.app.state.runtime.active

    def is_dropped() -> bool:
        shown = place.state(version)
        if shown["loaded"] or shown["state"] in ("building", "ready"):
            return False  # A build that was just stopped can still begin its generation.
        return active.followers == () and generations(place) == ["active"]

    place.until(is_dropped)


def until_running(client: httpx2.Client, version: str) -> None:
    until(lambda: state(client, version)["state"] == "running", lambda: client.get("/models").text)


def test_a_better_encoder_wins_with_the_vectors_that_the_test_has_built(
    place: Place, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.lifecycle.builder.STEP_DOCUMENTS", 20)
    release = place.hold(monkeypatch, place.b, 20)
    assert start(client, place.b)["state"] == "preparing"
    place.until(lambda: place.state(place.b)["done"] == 20)
    told = state(client, place.b)
    assert (told["state"], told["says"]) == ("preparing", f"{place.b} is being built: 20 of 60 documents.")
    assert not is_tested(place, place.b)
    release.set()
    until_running(client, place.b)
    place.until(lambda: is_tested(place, place.b))
    embedded = count_embedded(monkeypatch)
    told = click_until_over(place.client, place.oracle, place.b, place.b)
    assert (told["state"], told["wins"] / told["decided"] > 0.8) == ("accepted", True)
    assert told["decided"] >= MIN_ACCEPT
    place.until_active(place.b)
    assert place.everything() == DOCUMENTS
    assert embedded == [], "the activation uses the vectors of the test"
    assert place.has('simile_live_test_seconds_count{side="candidate"}')
    place.rollback(place.a)


def test_a_worse_encoder_is_rejected_and_leaves_nothing(place: Place, client: TestClient) -> None:
    start(client, place.b)
    until_running(client, place.b)
    told = click_until_over(place.client, place.oracle, place.b, place.a)
    assert (told["state"], place.active()) == ("rejected", place.a)
    assert MIN_REJECT <= told["decided"] < MIN_ACCEPT
    until_dropped(place, place.b)
    assert not is_tested(place, place.b)
    start(client, place.c)
    until_running(client, place.c)
    place.until(lambda: is_tested(place, place.c))


@pytest.mark.parametrize("built", [0, 60])
def test_a_stopped_test_leaves_nothing(
    place: Place, client: TestClient, monkeypatch: pytest.MonkeyPatch, built: int
) -> None:
    release = place.hold(monkeypatch, place.b, built)
    start(client, place.b)
    if built:
        until_running(client, place.b)
    else:
        place.until(lambda: place.state(place.b)["state"] == "building")
    stopped = client.delete(f"/models/{place.b}/test").json()
    assert stopped["state"] == "stopped"
    until_dropped(place, place.b)
    release.set()


@pytest.mark.parametrize("built", [20, 60])
def test_a_restart_goes_on_with_the_stored_vectors(
    place: Place, monkeypatch: pytest.MonkeyPatch, built: int
) -> None:
    monkeypatch.setattr("service.lifecycle.builder.STEP_DOCUMENTS", 20)
    release = place.hold(monkeypatch, place.b, built)
    with place.serving(live_test=1) as client:
        place.fill()
        begun = start(client, place.b)
        place.until(lambda: place.state(place.b)["done"] == built)
        if built == len(DOCUMENTS):
            until_running(client, place.b)
            place.until(lambda: is_tested(place, place.b))
            begun = state(client, place.b)
    embedded = count_embedded(monkeypatch)
    release.set()
    with place.serving(live_test=1) as client:
        until_running(client, place.b)
        place.until(lambda: is_tested(place, place.b))
        assert len({*embedded} & {*DOCUMENTS.values()}) == len(DOCUMENTS) - built
        assert (state(client, place.b)["started"] == begun["started"]) or built < len(DOCUMENTS)


def test_a_search_in_progress_keeps_the_candidate_open(
    place: Place, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(client, place.b)
    until_running(client, place.b)
    place.until(lambda: is_tested(place, place.b))
    [candidate] = place.app.state.runtime.active.followers
    corpus, begun, release = place.app.state.runtime.corpus, threading.Event(), threading.Event()
    search = corpus.store.search

    async def held(work: Any, **how: Any) -> Any:
        def wait(snapshot: Any) -> Any:
            if work.keywords.get("rival"):
                begun.set()
                assert release.wait(60)
            return work(snapshot)

        return await search(wait, **how)

    monkeypatch.setattr(corpus.store, "search", held)
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(is_tested(place, place.b)))
    thread.start()
    assert begun.wait(60)
    client.delete(f"/models/{place.b}/test")
    place.until(lambda: place.app.state.runtime.active.followers == ())
    assert candidate.retired
    assert candidate._borrowers == 1
    release.set()
    thread.join()
    assert len(found) == 1
    assert candidate._borrowers == 0


def test_both_sides_see_writes_and_deletions(place: Place, client: TestClient) -> None:
    start(client, place.b)
    until_running(client, place.b)
    documents, query = {**DOCUMENTS}, UNLIKE[0]
    for at, text in enumerate(UNLIKE[1:30]):
        if at % 3 == 2:
            gone = rank(place.oracle, place.b, query, documents)[0]
            assert client.delete(f"/documents/{gone}").status_code == 200
            del documents[gone]
        else:
            documents[f"new-{at}"] = text
            place.put({f"new-{at}": text})
        is_tested(place, place.b, documents=documents)  # The new document may still be missing on one side.
    place.until(lambda: is_tested(place, place.b, documents=documents))


def test_a_candidate_that_lacks_a_document_is_not_compared(
    place: Place, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(client, place.b)
    until_running(client, place.b)
    place.until(lambda: is_tested(place, place.b))
    failed = threading.Event()

    async def fill_nothing(*_: Any) -> None:
        failed.set()

    monkeypatch.setattr("service.lifecycle.builder.CatchUp._fill", fill_nothing)
    break_model(monkeypatch, place.b)
    text = UNLIKE[1]  # The vector of UNLIKE[0] is cached.
    assert place.put({"new": text}).status_code == 200
    assert failed.wait(LIMIT)
    monkeypatch.undo()
    hits = [hit["id"] for hit in find(client, text)["hits"]]
    assert hits == rank(place.oracle, place.a, text, DOCUMENTS | {"new": text})[:10]
    assert client.delete("/documents/new").status_code == 200
    place.until(lambda: is_tested(place, place.b))


def test_a_hit_shows_the_passage_of_the_version_that_found_it(
    place: Place, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passages, "MIN_DEFAULT", 16)
    rng, query = random.Random(5), UNLIKE[0]
    place.put({f"long-{at}": ". ".join(rng.sample(TEXTS, 150)) for at in range(30)})

    def list_passages(k: int, version: str = "") -> dict[str, Any]:
        params = {"q": query, "mode": "dense", "k": str(k)}
        headers = {"x-model-version": version} if version else {}
        found = client.get("/search", params=params, headers=headers).json()["hits"]
        return {hit["id"]: hit.get("passage") for hit in found}

    start(client, place.b)
    until_running(client, place.b)
    place.until_followed()
    own, theirs = list_passages(30, place.a), list_passages(30, place.b)
    place.until(lambda: bool(list_passages(30).keys() - own.keys()))
    found = list_passages(30)
    assert all(found[id] == (own if id in own else theirs)[id] for id in found)
    assert any(theirs[id] for id in found.keys() - own.keys())
    assert any(own[id] != theirs[id] for id in own.keys() & theirs.keys())


def test_too_little_memory_refuses_a_test_and_later_lets_it_wait(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = write(tmp_path / "machine", second_version(str(500 * MIB), 500 * MIB - 1000))
    monkeypatch.setattr("service.lifecycle.swap.MACHINE", machine)
    monkeypatch.setattr("service.lifecycle.swap.MEMORY_LOOK_SECONDS", 0.05)
    with place.serving(live_test=1) as client:
        place.fill()
        refused = client.post(f"/models/{place.b}/test")
        assert refused.status_code == 507
        assert "does not fit beside the active version" in refused.json()["error"]
        assert "need about" in refused.json()["error"]
        assert "SIMILE_MEMORY_CHECK=0" in refused.json()["error"]
        assert client.get(f"/models/{place.b}/test").status_code == 404
        write(machine, second_version(str(500 * MIB), 0))
        start(client, place.b)
        until_running(client, place.b)
    write(machine, second_version(str(500 * MIB), 500 * MIB - 1000))
    with place.serving(live_test=1) as client:
        until(lambda: "need about" in state(client, place.b)["says"])
        assert "Paused: " in state(client, place.b)["says"]
        assert not is_tested(place, place.b)
        write(machine, second_version(str(500 * MIB), 0))
        place.until(lambda: is_tested(place, place.b))


def test_another_build_refuses_a_test(
    place: Place, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = place.hold(monkeypatch, place.b, 20)
    client.post(f"/models/{place.b}/activate")
    place.until(lambda: place.state(place.b)["state"] == "building")
    refused = client.post(f"/models/{place.c}/test")
    assert refused.status_code == 409
    assert f"{place.b} is being activated" in refused.json()["error"]
    release.set()
    place.until_active(place.b)


def test_an_accepted_candidate_stays_loaded_until_it_is_requested(
    place: Place, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller, looks, released = place.app.state.runtime.controller, [0], threading.Event()
    find_tested, activate = controller.find_tested, LiveTests._activate

    async def find_and_count() -> str:
        looks[0] += 1
        return str(await find_tested())

    async def activate_later(*given: Any) -> None:
        if not released.is_set():
            raise Unhealthy("The store is away.")
        await activate(*given)

    start(client, place.b)
    until_running(client, place.b)
    controller.find_tested = find_and_count
    monkeypatch.setattr(LiveTests, "_activate", activate_later)
    monkeypatch.setattr(live_tests, "decide", lambda _: Standing(100, 100, 9.0, "accepted"))
    until(lambda: state(client, place.b)["state"] == "accepted")
    seen = looks[0]
    place.until(lambda: looks[0] > seen + 2)
    assert place.state(place.b)["loaded"] is True
    released.set()
    place.until_active(place.b)


def test_a_candidate_that_hangs_ends_its_test(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the active version then answers, and the service stays healthy."""
    ill: list[str] = []
    monkeypatch.setattr(watchdog, "end", ill.append)
    released = threading.Event()
    with place.serving(live_test=1, hang_seconds=1, workers=1) as client:
        place.fill()
        start(client, place.b)
        until_running(client, place.b)

        def hang(encoder: Encoder, _: Any) -> None:
            if encoder.manifest.version == place.b:
                released.wait(LIMIT)

        before_passes(monkeypatch, hang)
        try:
            found = find_until_over(client, place.b)
            assert found["state"] == "stopped"
            assert found["says"].endswith("in time (SIMILE_HANG_SECONDS).")
            find(client, UNLIKE[-1])
            assert not ill
            assert client.get("/models").json()["active"] == place.a
        finally:
            released.set()


def test_a_candidate_that_embeds_too_slowly_is_rejected(
    place: Place, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_tests, "TIMED", 2)
    monkeypatch.setattr("service.api.search.TESTED_SECONDS", 0.4)
    start(client, place.b)
    until_running(client, place.b)

    def embed_slowly(encoder: Encoder, _: Any) -> None:
        if encoder.manifest.version == place.b:
            time.sleep(0.5)

    before_passes(monkeypatch, embed_slowly)
    found = find_until_over(client, place.b)
    assert found["state"] == "rejected"
    assert found["says"].endswith("Its searches take more than 2 times as long.")


def test_a_test_that_begins_to_run_while_it_is_stopped_is_stopped(
    place: Place, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state changes between the read and the write of the stop."""
    start(client, place.b)
    until_running(client, place.b)
    store = place.app.state.runtime.corpus.store
    replace, fails = store.replace_live_test, iter([True])

    async def lose(before: str | None, after: str) -> bool:
        return not next(fails, False) and await replace(before, after)

    monkeypatch.setattr(store, "replace_live_test", lose)
    assert client.delete(f"/models/{place.b}/test").json()["state"] == "stopped"
    assert state(client, place.b)["state"] == "stopped"


def test_an_activation_pauses_and_ends_a_test(
    place: Place, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(client, place.b)
    until_running(client, place.b)
    release = place.hold(monkeypatch, place.c, 0)
    client.post(f"/models/{place.c}/activate")
    place.until_state(place.c, "building")
    until(lambda: f"Paused: {place.c} is being built: 0 of 60 doc" in state(client, place.b)["says"])
    assert not is_tested(place, place.b)
    client.post(f"/models/{place.a}/activate")
    place.until(lambda: is_tested(place, place.b))
    release.set()
    place.activate(place.c)
    until(lambda: state(client, place.b)["state"] == "stopped")
    assert place.c in state(client, place.b)["says"]
    place.activate(place.a)
    start(client, place.b)
    until_running(client, place.b)
    place.rollback(place.c)
    until(lambda: state(client, place.b)["state"] == "stopped")
    assert generations(place).count("building") == 0


def test_the_previous_version_can_be_tested_and_stays_for_a_rollback(
    place: Place, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.activate(place.b)
    embedded = count_embedded(monkeypatch)
    start(client, place.a)
    until_running(client, place.a)
    place.until(lambda: is_tested(place, place.a, active=place.b))
    assert {*embedded} == {HARMLESS.text}, "the warming pass"
    client.delete(f"/models/{place.a}/test")
    place.rollback(place.a)
    assert place.everything() == DOCUMENTS


def test_one_more_version_is_loaded(place: Place, client: TestClient) -> None:
    assert client.post(f"/models/{place.c}/keep").status_code == 202
    place.until_state(place.c, "ready")
    start(client, place.b)
    until_running(client, place.b)
    place.until_state(place.c, "candidate")
    place.until(lambda: client.post(f"/models/{place.c}/keep").status_code == 409)
    assert "is being tested" in client.post(f"/models/{place.c}/keep").json()["error"]


def test_a_candidate_that_cannot_be_opened_ends_its_test(
    place: Place, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_model(monkeypatch, place.b)
    start(client, place.b)
    until(lambda: state(client, place.b)["state"] == "stopped")
    assert place.state(place.b)["state"] == "failed"
    until_dropped(place, place.b)
    monkeypatch.undo()
    monkeypatch.setattr(live_tests, "LOOK_SECONDS", 0.02)
    start(client, place.b)
    until_running(client, place.b)


def test_a_failing_candidate_fails_no_search(
    place: Place, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(client, place.b)
    until_running(client, place.b)
    place.until(lambda: is_tested(place, place.b))
    break_model(monkeypatch, place.b)
    assert not is_tested(place, place.b)
    monkeypatch.undo()
    place.until(lambda: is_tested(place, place.b))

    def fail(*_: object) -> None:
        raise Conflict("This version is not loaded any more.")

    monkeypatch.setattr("service.corpus.search.find_moments", fail)
    assert not is_tested(place, place.b)
    event = {"search_id": find(client, UNLIKE[0])["search_id"], "id": "d1", "type": "click"}
    assert client.post("/events", json=event).status_code == 200
    assert state(client, place.b)["decided"] == 0


def test_a_night_with_another_encoder_is_tested(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later version waits until the test ends."""
    with place.serving(live_test=1, activate="test") as client:
        place.fill()
        place.store.request(place.b)
        until(lambda: client.get(f"/models/{place.b}/test").status_code == 200)
        release = place.hold(monkeypatch, place.c, 0)  # Its test would hide the result of the first.
        place.store.request(place.c)
        assert state(client, place.b)["state"] == "running"
        place.until(lambda: is_tested(place, place.b))
        assert click_until_over(place.client, place.oracle, place.b, place.a)["state"] == "rejected"
        release.set()
        until(lambda: client.get(f"/models/{place.c}/test").status_code == 200)
        place.until(lambda: is_tested(place, place.c))
        assert click_until_over(place.client, place.oracle, place.c, place.c, 2000)["state"] == "accepted"
        place.until_active(place.c)

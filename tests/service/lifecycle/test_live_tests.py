"""Live tests over HTTP: clicks activate the better version, and everything else ends a test cleanly."""

import asyncio
import json
import shutil
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from benchmarks.live_week import add_version
from models.manifest import FUSION, SearchDefaults
from models.publishing.publish import publish
from models.search.ranking import Ranking
from models.store import ModelStore
from models.tokens.late import DIMENSIONS
from service.auth.keys import UNTRUSTED
from service.lifecycle import live_tests
from service.lifecycle.sequential import MIN_ACCEPT, MIN_REJECT
from tests.parts.places import Place
from tests.service.keyed import KEYS, bearer, keys_file, line
from tests.tiny import tiny_source
from tests.waiting import LIMIT, until

WORDS = "red green blue river stone market letter engine garden bridge".split()
TEXTS = {f"d{at:02}": f"{WORDS[at % 10]} {WORDS[at // 10]} {'long ' * (at % 4)}" for at in range(60)}
QUERIES = [f"{a} {b}" for a in WORDS for b in WORDS if a < b]
LONG, SHORT = (
    Ranking(weights={"length": 5.0, "hybrid": 0.1}),
    Ranking(weights={"length": -5.0, "hybrid": 0.1}),
)
Like = Callable[[str], float]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A service whose active version ranks short texts first, and whose candidate ranks long texts first."""
    monkeypatch.setattr(live_tests, "LOOK_SECONDS", 0.02)
    store = ModelStore(tmp_path / "models")
    plain = publish(store, tiny_source(tmp_path / "source")).version
    short, long = (add_version(store, plain, ranking=ranking) for ranking in (SHORT, LONG))
    place = Place(tmp_path, [plain, short, long])
    place.a, place.b, place.c = plain, short, long
    store.request(short)
    return place


@pytest.fixture
def client(place: Place) -> Iterator[TestClient]:
    with place.serving(live_test=1) as client:
        place.put(TEXTS)
        yield client


def prefers_long(id: str) -> float:
    return len(TEXTS[id.removeprefix("t")])


def prefers_short(id: str) -> float:
    return -len(TEXTS[id])


def choose(
    client: httpx2.Client, at: int, like: Like, headers: dict[str, str] | None = None
) -> dict[str, str]:
    """Searches as a new visitor. Returns the fields of an event about the hit that the visitor likes best."""
    sent = {"query": QUERIES[at % len(QUERIES)], "user": f"visitor-{at}"}
    params = {"q": sent["query"], "k": "10", "user": sent["user"]}
    answer = client.get("/search", params=params, headers=headers)
    assert answer.status_code == 200, answer.text
    best = max(answer.json()["hits"], key=lambda hit: like(hit["id"]))
    return sent | {"search_id": answer.json()["search_id"], "id": best["id"]}


def report(client: httpx2.Client, event: dict[str, str], headers: dict[str, str] | None = None) -> None:
    stored = client.post("/events", json=event | {"type": "click"}, headers=headers)
    assert stored.json() == {"stored": 1, "refused": []}, stored.text


def click(client: httpx2.Client, at: int, like: Like, headers: dict[str, str] | None = None) -> None:
    """Searches as a new visitor, and clicks on the hit that this visitor likes best."""
    report(client, choose(client, at, like, headers), headers)


def state(client: httpx2.Client, version: str) -> dict[str, Any]:
    answer = client.get(f"/models/{version}/test")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def start(client: httpx2.Client, version: str) -> dict[str, Any]:
    answer = client.post(f"/models/{version}/test")
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def click_until_over(client: httpx2.Client, version: str, like: Like, first: int = 0) -> dict[str, Any]:
    for at in range(first, first + 1000):
        click(client, at, like)
        if at % 10 == 0 and (found := state(client, version))["state"] != "running":
            return found
    raise AssertionError(state(client, version))


def ids(client: httpx2.Client, **params: Any) -> list[str]:
    chosen: dict[str, Any] = {"q": QUERIES[0], "k": 60, "fields": ""} | params
    answer = client.get("/search", params=chosen)
    return [hit["id"] for hit in answer.json()["hits"]]


def test_a_better_ranking_wins_and_becomes_active(place: Place, client: TestClient) -> None:
    begun = start(client, place.c)
    assert (begun["state"], begun["active"], begun["collections"]) == ("running", place.b, ["default"])
    assert begun["says"] == (
        "The candidate wins 0 of 0 decided searches; so far, nothing shows that it is better."
    )
    click(client, 5000, prefers_long)
    until(lambda: "1 of 1 decided search;" in state(client, place.c)["says"])
    found = click_until_over(client, place.c, prefers_long)
    assert found["state"] == "accepted"
    assert found["decided"] >= MIN_ACCEPT
    assert found["wins"] / found["decided"] > 0.8
    assert "so it was activated" in found["says"]
    place.until_active(place.c)
    assert state(client, place.c) == found, "the verdict stays"
    listed = {one["version"]: one["live_test"] for one in client.get("/models").json()["models"]}
    assert listed == {place.a: None, place.b: None, place.c: found}
    assert client.get(f"/models/{place.c}").json()["live_test"] == found
    assert client.get("/models/no-version").status_code == 404
    [event] = client.get("/events", params={"limit": 1}).json()["events"]
    assert {"side", "test"}.isdisjoint(event)


def test_a_worse_ranking_is_rejected_and_the_active_version_stays(place: Place, client: TestClient) -> None:
    start(client, place.c)
    found = click_until_over(client, place.c, prefers_short)
    assert (found["state"], place.active()) == ("rejected", place.b)
    assert MIN_REJECT <= found["decided"] < MIN_ACCEPT
    assert found["says"].endswith("decided searches and was rejected. The active version wins more.")
    assert ids(client) == ids(client, explain="true")
    assert start(client, place.a)["state"] == "running", "another test may begin"
    assert client.get(f"/models/{place.c}/test").status_code == 404


def test_thumbs_count_for_the_side_that_chose_the_hit(place: Place, client: TestClient) -> None:
    start(client, place.c)

    def judge(at: int, *, relevant: bool) -> None:
        judgment = choose(client, at, prefers_long) | {"relevant": relevant}
        stored = client.post("/feedback", json={"feedback": [judgment, judgment | {"id": "absent"}]})
        assert stored.json()["stored"] == 1, stored.text

    for at in range(20):
        judge(at, relevant=False)
    assert state(client, place.c)["decided"] == 0
    assert client.get("/events/count").json()["count"] == 0
    for at in range(20, 60):
        judge(at, relevant=True)
    found = state(client, place.c)
    assert (found["wins"] / found["decided"], found["decided"] > 20) == (1, True)
    events = client.get("/events", params={"limit": 100}).json()["events"]
    assert {event["type"] for event in events} == {"convert"}
    judgment = choose(client, 60, prefers_long) | {"relevant": True}
    client.delete(f"/models/{place.c}/test").raise_for_status()
    until(lambda: not place.app.state.runtime.live_tests.is_running)
    assert client.post("/feedback", json=judgment).json()["stored"] == 1
    assert client.get("/events/count").json()["count"] == len(events), "no test, no outcome"


def test_search_settings_are_tested_too(place: Place) -> None:
    search = {"default": SearchDefaults(mode="lexical", weight=0.0, fusion=FUSION)}
    lexical = add_version(place.store, place.b, search=search, ranking=None)
    with place.serving(live_test=1) as client:
        place.put(TEXTS)
        answers = {mode: ids(client, mode=mode) for mode in ("hybrid", "lexical")}
        start(client, lexical)
        answer = client.get("/search", params={"q": QUERIES[0], "k": 60}).json()
        scores = [hit["score"] for hit in answer["hits"]]
        assert answer["mode"] == "hybrid", "as without a test"
        assert scores == sorted(scores, reverse=True)
        assert {hit["id"] for hit in answer["hits"]} == {*answers["hybrid"]} | {*answers["lexical"]}
        place.client.delete(f"/models/{lexical}/test")


def test_pages_neither_repeat_nor_skip_a_hit(place: Place, client: TestClient) -> None:
    plain, other = ids(client), ids(client, q=QUERIES[1])
    start(client, place.c)
    whole = ids(client)
    assert whole != plain
    assert sorted(whole) == sorted(plain)
    assert [id for offset in range(0, 60, 7) for id in ids(client, k=7, offset=offset)] == whole
    marked = client.get("/search", params={"q": QUERIES[0], "k": 60, "highlight": "true"}).json()["hits"]
    assert [hit["id"] for hit in marked] == whole
    visitors = {tuple(ids(client, user=f"visitor-{at}")) for at in range(20)}
    assert len(visitors) > 1, "the coins differ"
    client.delete(f"/models/{place.c}/test").raise_for_status()
    assert (ids(client), ids(client, q=QUERIES[1])) == (plain, other)


class Held:
    """Holds the next look of the live tests after it has read the state, and the look after that.

    Args:
        place: The service.
        monkeypatch: Patches its live tests.
        has_read: Whether the present look is held elsewhere, after it has read the state.
    """

    def __init__(self, place: Place, monkeypatch: pytest.MonkeyPatch, *, has_read: bool = False) -> None:
        self.read, self.resumed, self.over, self.released = (threading.Event() for _ in range(4))
        tests, store = place.app.state.runtime.live_tests, place.app.state.runtime.corpus.store
        look, read = tests.look, store.live_test
        is_looking = False

        async def held_look() -> None:
            nonlocal is_looking
            if self.resumed.is_set():
                self.over.set()
                assert await asyncio.to_thread(self.released.wait, LIMIT)
            is_looking = True
            await look()
            is_looking = False

        async def held_read() -> str | None:
            is_held = is_looking and not self.read.is_set()
            text: str | None = await read()
            if is_held:
                self.read.set()
                assert await asyncio.to_thread(self.resumed.wait, LIMIT)
            return text

        if has_read:
            self.read.set()
        monkeypatch.setattr(tests, "look", held_look)
        monkeypatch.setattr(store, "live_test", held_read)
        assert self.read.wait(LIMIT)

    def finish(self, client: httpx2.Client) -> list[str]:
        """Resumes the look. Returns the hits after its end, before the next one."""
        self.resumed.set()
        assert self.over.wait(LIMIT)
        found = ids(client)
        self.released.set()
        return found


def test_a_look_that_read_the_state_before_a_stop_does_not_resume_the_test(
    place: Place, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ids(client)
    start(client, place.c)
    held = Held(place, monkeypatch)
    client.delete(f"/models/{place.c}/test").raise_for_status()
    assert held.finish(client) == plain


def test_a_look_that_read_the_state_before_a_start_does_not_drop_the_test(
    place: Place, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ids(client)
    held = Held(place, monkeypatch)
    start(client, place.c)
    assert held.finish(client) != plain


def test_a_look_that_ends_a_stopped_test_does_not_drop_the_next_one(
    place: Place, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ids(client)
    start(client, place.c)
    ending, ended = threading.Event(), threading.Event()

    async def find_a_reason(_: object) -> str:
        ending.set()
        assert await asyncio.to_thread(ended.wait, LIMIT)
        return "injected"

    with monkeypatch.context() as patched:
        patched.setattr(place.app.state.runtime.live_tests, "_find_end", find_a_reason)
        assert ending.wait(LIMIT)
    held = Held(place, monkeypatch, has_read=True)
    client.delete(f"/models/{place.c}/test").raise_for_status()
    start(client, place.c)
    held.resumed.set()
    ended.set()
    assert held.finish(client) != plain
    assert state(client, place.c)["state"] == "running"


def test_a_stop_while_a_candidate_is_opened_ends_the_test(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place.serving(live_test=1) as client:
        place.put(TEXTS)
        plain = ids(client)
        start(client, place.c)
    opening, opened = threading.Event(), threading.Event()
    original = live_tests.LiveTests._open

    def slowly(self: live_tests.LiveTests, version: str) -> Any:
        opening.set()
        assert opened.wait(LIMIT)
        return original(self, version)

    monkeypatch.setattr(live_tests.LiveTests, "_open", slowly)
    with place.serving(live_test=1) as client:
        assert opening.wait(LIMIT)
        held = Held(place, monkeypatch, has_read=True)
        client.delete(f"/models/{place.c}/test").raise_for_status()
        held.resumed.set()
        opened.set()
        assert held.finish(client) == plain


def test_searches_that_a_test_must_not_change_are_answered_as_before(
    place: Place, client: TestClient
) -> None:
    plain = ids(client)
    start(client, place.c)
    assert ids(client, explain="true") == plain
    untested = client.get("/search", params={"q": QUERIES[0], "explain": "true"}).json()
    tested = client.get("/search", params={"q": QUERIES[0]}).json()
    assert len(untested["search_id"]) == len(tested["search_id"]), "a client cannot tell them apart"
    for headers in ({"x-model-version": place.b}, {"x-timeout-ms": "1900"}):
        answer = client.get("/search", params={"q": QUERIES[0], "k": 60}, headers=headers)
        assert [hit["id"] for hit in answer.json()["hits"]] == plain
    body = {"queries": [QUERIES[0], QUERIES[1]], "k": 60}
    assert [hit["id"] for hit in client.post("/search", json=body).json()["results"][0]] == plain


def test_a_share_of_zero_turns_tests_off(place: Place) -> None:
    with place.serving() as client:
        refused = client.post(f"/models/{place.c}/test")
        assert refused.status_code == 409
        assert "SIMILE_LIVE_TEST" in refused.json()["error"]


def test_a_version_that_cannot_be_tested_is_refused(place: Place, client: TestClient) -> None:
    same = add_version(place.store, place.b, search={"nowhere": SearchDefaults(mode="dense", weight=1.0)})
    projection = b64encode(bytes(2 * DIMENSIONS * 32))
    late = add_version(place.store, place.b, ranking=Ranking(weights={"length": 1.0}, late=projection))
    reasons = {
        place.b: "is active",
        late: "compares token vectors",
        same: "nothing is there to compare",
        "20260101T000000-none-00000000": "There is no version",
    }
    for version, reason in reasons.items():
        refused = client.post(f"/models/{version}/test")
        assert refused.status_code == (404 if "no version" in reason else 409)
        assert reason in refused.json()["error"]
    start(client, place.c)
    refused = client.post(f"/models/{place.a}/test")
    assert (refused.status_code, place.c in refused.json()["error"]) == (409, True)


def test_a_restart_resumes_a_test(place: Place) -> None:
    with place.serving(live_test=1) as client:
        place.put(TEXTS)
        begun = start(client, place.c)
        for at in range(40):
            click(client, at, prefers_long)
        before = state(client, place.c)
        tested = ids(client)
        pending = [choose(client, at, prefers_long) for at in range(50, 60)]
    with place.serving(live_test=1) as client:
        until(lambda: ids(client) == tested)
        after = state(client, place.c)
        assert (after["decided"], after["started"]) == (before["decided"], begun["started"])
        for event in pending:
            report(client, event)
        assert state(client, place.c)["decided"] > after["decided"], "of searches before the restart"
        assert click_until_over(client, place.c, prefers_long, 100)["state"] == "accepted"
        place.until_active(place.c)


def test_requested_versions_are_tested_before_they_become_active(place: Place) -> None:
    """As in unattended nights: the trainer requests versions, and clicks decide about each of them."""
    with place.serving(live_test=1, activate="test") as client:
        place.put(TEXTS)
        place.store.request(place.c)
        until(lambda: client.get(f"/models/{place.c}/test").status_code == 200)
        assert click_until_over(client, place.c, prefers_long)["state"] == "accepted"
        place.until_active(place.c)
        place.store.request(place.a)
        until(lambda: client.get(f"/models/{place.a}/test").status_code == 200)
        assert click_until_over(client, place.a, prefers_long, 2000)["state"] == "rejected"
        reason = place.until_state(place.a, "failed")["reason"]
        assert reason == "Rejected by a live test. The active version wins more."


def test_a_test_pauses_while_a_version_is_built(
    place: Place, client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    another = publish(place.store, tiny_source(tmp_path / "another", seed=5)).version
    plain = ids(client)
    start(client, place.c)
    tested = ids(client)
    assert tested != plain
    release = place.hold(monkeypatch, another, 0)
    client.post(f"/models/{another}/activate")
    place.until_state(another, "building")
    assert ids(client) == plain
    assert f"Paused: {another} is being " in state(client, place.c)["says"]
    client.post(f"/models/{place.b}/activate")
    place.until_state(another, "candidate")
    assert ids(client) == tested
    release.set()


def test_another_active_version_ends_a_test(place: Place, client: TestClient) -> None:
    place.activate(place.a)
    place.activate(place.b)
    start(client, place.c)
    place.rollback(place.a)
    until(lambda: state(client, place.c)["state"] == "stopped")
    assert state(client, place.c)["says"].endswith(f"{place.a} became active.")
    plain = ids(client)
    assert plain == ids(client, explain="true")


def test_a_deleted_collection_ends_a_test(place: Place) -> None:
    search = {"books": SearchDefaults(mode="lexical", weight=0.0)}
    other = add_version(place.store, place.b, search=search)
    with place.serving(live_test=1) as client:
        place.put(TEXTS)
        place.put(TEXTS, "/collections/books")
        assert start(client, other)["collections"] == ["books"]
        client.delete("/collections/books").raise_for_status()
        until(lambda: state(client, other)["state"] == "stopped")
        assert "The collection books was deleted." in state(client, other)["says"]


def test_a_candidate_that_was_deleted_ends_a_test_after_a_restart(place: Place) -> None:
    with place.serving(live_test=1) as client:
        start(client, place.c)
    shutil.rmtree(place.store.folder(place.c))
    with place.serving(live_test=1) as client:
        until(lambda: state(client, place.c)["state"] == "stopped")
        assert place.active() == place.b


def test_a_slower_candidate_is_rejected(place: Place, client: TestClient) -> None:
    start(client, place.c)
    for _ in range(live_tests.TIMED):
        place.app.state.runtime.live_tests.note_seconds((0.1, 0.3))
    until(lambda: state(client, place.c)["state"] == "rejected")
    assert "2 times as long" in state(client, place.c)["says"]
    line = f'simile_live_test_seconds_count{{side="candidate"}} {live_tests.TIMED}.0'
    assert place.has(line)


def test_events_of_untrusted_keys_and_other_visitors_do_not_count(place: Place, tmp_path: Path) -> None:
    tenant = json.dumps({"collections": ["default"], "filter": {"tenant": "acme"}})
    more = [
        line("doubtful", "write", "sk-doubtful", "", "", UNTRUSTED),
        line("acme", "write", "sk-acme", "", "", "", tenant),
    ]
    with place.serving(live_test=1, api_keys_file=keys_file(tmp_path, *more)) as client:
        boss = bearer(KEYS["boss"])
        place.put(TEXTS, headers=boss)
        documents = [{"id": f"t{id}", "text": text} for id, text in TEXTS.items()]
        acme = bearer("sk-acme")
        client.post("/documents", json={"documents": documents}, headers=acme).raise_for_status()
        answers = [
            client.get("/search", params={"q": QUERIES[0], "k": 60}, headers=acme).json()["hits"]
            for _ in range(2)
            if client.post(f"/models/{place.c}/test", headers=boss).status_code in {201, 409}
        ]
        assert answers[0] == answers[1], "a tenant of a shared collection decides nothing, and sees no test"
        seen, hidden = (client.get(f"/models/{place.c}", headers=key).json() for key in (boss, acme))
        assert (seen["live_test"]["state"], hidden["live_test"]) == ("running", None)

        def decided() -> int:
            return int(client.get(f"/models/{place.c}/test", headers=boss).json()["decided"])

        for at in range(20):
            click(client, at, prefers_long, bearer("sk-doubtful"))
        assert decided() == 0
        found = client.get("/search", params={"q": QUERIES[0], "user": "one"}, headers=boss).json()
        sent = [
            {"search_id": found["search_id"], "id": hit["id"], "type": "click", "user": "two"}
            for hit in found["hits"]
        ]
        client.post("/events", json={"events": sent}, headers=boss).raise_for_status()
        assert decided() == 0
        for event in sent:
            event.update(user="one", event_id=f"of {event['id']}")
        client.post("/events", json={"events": sent}, headers=boss).raise_for_status()
        assert decided() == 1, "a query of a visitor counts once"

"""While one key sends a flood of writes, another key's write is committed before the flood's last one."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.errors import Storage
from service.store.scheduling import WriteQueue, caller
from service.store.sql.feedback import DELETED_ROWS
from service.store.sql.methods import STEP_EVENTS
from service.store.sqlite.store import SqliteStore
from service.store.values import Document, Embedding, Event, EventLimits, Judgment, Selection
from tests import postgres
from tests.service.conftest import new_settings, serving
from tests.service.keyed import bearer, keys_file, line
from tests.waiting import LIMIT, until

VECTOR = Embedding(np.full(4, 0.5, np.float32), truncated=False)
NO_LIMITS = EventLimits()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    """A SQLite or PostgreSQL store with the documents d and e. One thread runs the writes in order."""
    if postgres.chosen:
        from service.store.postgres.store import PostgresStore
        from tests.parts.stores import manifest

        opened: Any = PostgresStore(postgres.new_database(), [], connections=4, answer_seconds=0)
        version: Any = manifest("a")
        version.dimension = 4
    else:
        from types import SimpleNamespace

        (tmp_path / "data").mkdir()
        opened = SqliteStore(tmp_path / "data")
        version = SimpleNamespace(version="a", fingerprint="a", dimension=4)
    opened.start(lambda _: None, lambda _: None)
    active = opened.activate(version, "fp32")
    documents = [Document("d", "one"), Document("e", "two")]
    asyncio.run(opened.put(documents, {active: {0: VECTOR, 1: VECTOR}}))
    yield opened
    opened.close()


def events(key: str, count: int, id: str = "d", prefix: str = "") -> list[Event]:
    return [
        Event(search_id="s", query="q", id=id, type="click", event_id=f"{prefix}{n}", at=1.0, key=key)
        for n in range(count)
    ]


def listed(store: Any, key: str) -> list[int]:
    """Returns the sequence numbers of a key's events."""
    rows, _ = asyncio.run(store.list_events(0, 1_000_000, Selection(key=key), inf))
    return [number for number, _ in rows]


async def as_key(name: str, work: Coroutine[Any, Any, Any]) -> Any:
    caller.set(name)  # sets it in this task only
    return await work


class Held:
    """Holds the writing thread until `release`, so that later jobs wait together."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._inside, self._release = threading.Event(), threading.Event()
        store.writer.submit(self._hold)
        assert self._inside.wait(LIMIT)

    def _hold(self, _: object) -> None:
        self._inside.set()
        self._release.wait(LIMIT)

    async def until_waiting(self, jobs: int) -> None:
        queue = self._store.writer._queue
        await asyncio.to_thread(until, lambda: queue.qsize() >= jobs, pause=0.001)

    def release(self) -> None:
        self._release.set()


async def flood(
    store: Any, works: list[Coroutine[Any, Any, Any]], bobs: Coroutine[Any, Any, Any]
) -> list[str]:
    """Submits `works` with the key ann, then `bobs` with the key bob. Returns the jobs' keys in order."""
    held = Held(store)
    order: list[str] = []
    submit = store.writer.submit

    def noting(job: Any, **how: bool) -> Any:
        name = caller.get()

        def noted(given: Any) -> Any:
            order.append(name)
            return job(given)

        return submit(noted, **how)

    store.writer.submit = noting
    ann = [asyncio.create_task(as_key("ann", work)) for work in works]
    await held.until_waiting(len(works))
    bob = asyncio.create_task(as_key("bob", bobs))
    await held.until_waiting(len(works) + 1)
    held.release()
    await asyncio.gather(bob, *ann)
    store.writer.submit = submit
    return order


def test_events_of_a_flood_let_another_keys_event_between_their_steps(store: Any) -> None:
    many = 2 * STEP_EVENTS + 1
    works = [store.record_events(events("ann", many, prefix=f"{n}-"), NO_LIMITS) for n in range(3)]
    asyncio.run(flood(store, works, store.record_events(events("bob", 1), NO_LIMITS)))
    [number] = listed(store, "bob")
    anns = listed(store, "ann")
    assert len(anns) == 3 * many, "each is stored, and once"
    assert sum(one < number for one in anns) == STEP_EVENTS, "it came after one step of all of them"


@pytest.mark.parametrize("kind", ["judgments", "forget events", "forget judgments", "delete", "delete many"])
def test_another_keys_write_is_done_before_a_floods_last(store: Any, kind: str) -> None:
    if kind == "judgments":
        requests = [[Judgment(f"{n}-{at}", "d", True) for at in range(300)] for n in range(3)]
        flooded = [store.judge(request, "default", "ann", None) for request in requests]
        before = {asyncio.run(store.judge([Judgment("q", "d", True)], "default", "bob", None))[0]}
        bobs = store.judge([Judgment("late", "d", True)], "default", "bob", None)
        asyncio.run(flood(store, flooded, bobs))
        rows, _ = asyncio.run(store.judgements(max(before), 10_000, Selection(), inf))
        assert [said.key for _, said in rows].index("bob") == 300, "after one request of the flood"
        assert len(rows) == 901
        return
    count = DELETED_ROWS + 1
    if kind == "forget judgments":
        judged = [Judgment(f"{at}", "d", True) for at in range(count)]
        asyncio.run(store.judge(judged, "default", "ann", None))
        work = store.forget_judgments(Selection(key="ann"), "ann")
    else:
        asyncio.run(store.record_events(events("ann", count), NO_LIMITS))
        works: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
            "forget events": lambda: store.forget_events(Selection(key="ann"), "ann"),
            "delete": lambda: store.delete_one("d", "default"),
            "delete many": lambda: deleted(store),
        }
        work = works[kind]()
    bobs = store.record_events(events("bob", 1, id="e"), NO_LIMITS)
    assert asyncio.run(flood(store, [work], bobs)) == ["ann", "bob", "ann"], "it waited for all steps"
    assert listed(store, "ann") == []
    assert len(listed(store, "bob")) == 1
    assert asyncio.run(store.count_judgments(Selection())) == 0
    assert asyncio.run(store.count(None, "default")) == (1 if kind.startswith("delete") else 2)


async def deleted(store: Any) -> None:
    """Deletes the document d as `Corpus.delete` does."""
    revisions, _ = await store.matching(None, "default")
    done = 0
    while done < 1:
        done += (await store.delete_some(revisions[:1], "default")).done


def test_what_comes_while_rows_are_forgotten_in_steps_stays(store: Any) -> None:
    asyncio.run(store.record_events(events("ann", DELETED_ROWS + 1), NO_LIMITS))
    late = store.record_events(events("ann", 1, prefix="late"), NO_LIMITS)
    asyncio.run(flood(store, [store.forget_events(Selection(key="ann"), None)], late))
    assert len(listed(store, "ann")) == 1


def test_a_step_that_fails_says_how_far_it_came_and_the_same_events_sent_again_are_stored_once(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    some = type(store)._record_some

    async def failing(self: Any, given: list[Event], limits: EventLimits, within: None) -> Any:
        steps.append(len(given))
        if len(steps) == 2:
            raise Storage("The disk is full.")
        return await some(self, given, limits, within)

    given = events("ann", STEP_EVENTS + 3)
    monkeypatch.setattr(type(store), "_record_some", failing)
    with pytest.raises(Storage, match=f"The first {STEP_EVENTS} of {STEP_EVENTS + 3} events were handled"):
        asyncio.run(store.record_events(given, NO_LIMITS))
    assert len(listed(store, "ann")) == STEP_EVENTS
    again = asyncio.run(store.record_events(given, NO_LIMITS))
    assert (again.new, again.refused) == ([*range(STEP_EVENTS, STEP_EVENTS + 3)], {})
    assert len(listed(store, "ann")) == STEP_EVENTS + 3


def test_callers_take_turns_and_a_barrier_comes_after_all_that_waited() -> None:
    queue: WriteQueue[str] = WriteQueue()

    def put(name: str, *jobs: str, alone: bool = False) -> None:
        token = caller.set(name)
        for job in jobs:
            queue.put(job, alone=alone)
        caller.reset(token)

    put("ann", "a1", "a2", "a3")
    put("bob", "b1")
    queue.put("barrier", last=True)
    put("bob", "b2")
    put("eve", "e1")
    taken = [queue.get(wait=False) for _ in range(7)]
    assert taken == [(job, False) for job in ("a1", "b1", "e1", "a2", "b2", "a3", "barrier")]
    put("ann", "alone 1", "alone 2", alone=True)
    put("ann", "other")
    assert queue.get(wait=False) == ("alone 1", True)
    assert queue.get(wait=False) == ("other", False), "an alone one runs, and no other may"
    assert queue.get(wait=False) is None
    queue.end_alone()
    assert queue.get(wait=False) == ("alone 2", True)
    queue.close()
    assert queue.get() is None


def test_a_key_that_has_too_many_events_waiting_is_refused_and_others_are_not(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    keys = keys_file(tmp_path, line("ann", "write", "sk-ann"), line("bob", "write", "sk-bob"))
    settings = new_settings(tmp_path, tiny_models_dir, api_keys_file=keys, max_queue_events=5)
    event = {"search_id": "s", "query": "q", "id": "d", "type": "click"}

    def send(key: str, count: int, route: str = "events") -> Any:
        rows: list[dict[str, Any]] = [event | {"event_id": f"{n}"} for n in range(count)]
        if route == "feedback":
            rows = [{"query": f"{n}", "id": "d", "relevant": True} for n in range(count)]
        return client.post(f"/{route}", json={route: rows}, headers=bearer(key))

    with serving(settings) as client, ThreadPoolExecutor(4) as pool:
        documents = {"documents": [{"id": "d", "text": "a red river"}]}
        assert client.post("/documents", json=documents, headers=bearer("sk-bob")).status_code == 200
        assert send("sk-ann", 8).json()["stored"] == 8, "one request alone is never refused"
        store = client.app.state.runtime.corpus.store  # type: ignore[attr-defined]
        inside, release = threading.Event(), threading.Event()

        def hold(_: object) -> None:
            inside.set()
            release.wait(LIMIT)

        store.writer.submit(hold, **({"alone": True} if postgres.chosen else {}))
        assert inside.wait(LIMIT)
        waiting = [pool.submit(send, "sk-ann", 4)]
        until(lambda: store.writer._queue.qsize() == 1)
        for route in ("events", "feedback"):
            refused = send("sk-ann", 2, route)
            assert (refused.status_code, refused.json()["error_type"]) == (429, "Overloaded")
            assert int(refused.headers["retry-after"]) >= 1
            assert "The key 'ann' has 4 events and judgments waiting" in refused.json()["error"]
            assert "SIMILE_MAX_QUEUE_EVENTS" in refused.json()["error"]
        waiting += [pool.submit(send, "sk-ann", 1), pool.submit(send, "sk-bob", 5)]
        until(lambda: store.writer._queue.qsize() == 3)
        release.set()
        assert [one.result().json()["stored"] for one in waiting] == [4, 1, 5]
        assert send("sk-ann", 6, "feedback").json()["stored"] == 6

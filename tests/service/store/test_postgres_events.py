"""Events in PostgreSQL are deleted with their document, also when both are written at once."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from service.errors import NotFound
from service.store.values import Document, Event, EventLimits, Selection
from tests.service.store.test_postgres import Place, hold_commits, waiting

pytest.importorskip("psycopg", reason="needs the extra postgres")

from service.store.postgres import writes
from service.store.postgres.connection import Connection, Raw
from tests.waiting import until

EVENT = Event(search_id="s", query="q", id="a", type="click", event_id="1", at=0.0)


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    made.put(Document("a", "text"))
    yield made
    made.store.close()


def until_it_waits(future: Future[Any], raw: Raw, count: int) -> None:
    """Wait until `count` transactions wait for a lock, or it has not waited."""
    until(lambda: future.done() or waiting(raw) == count, pause=0)


def events_left(place: Place) -> int:
    return asyncio.run(place.store.count_events(Selection()))


def test_a_delete_finds_the_event_that_is_being_stored(place: Place) -> None:
    with ThreadPoolExecutor(2) as pool, place.store.pool.connection() as gate:
        hold_commits(gate, "events")
        storing = pool.submit(asyncio.run, place.store.record_events([EVENT], EventLimits()))
        until_it_waits(storing, gate, 1)
        deleting = pool.submit(asyncio.run, place.store.delete_one("a", "default"))
        until_it_waits(deleting, gate, 2)
        gate.execute("SELECT pg_advisory_unlock(1)")
        assert storing.result().new == [0]
        assert deleting.result()[0] == 1
    assert events_left(place) == 0


def test_an_event_of_a_document_that_is_being_deleted_is_refused(place: Place) -> None:
    with ThreadPoolExecutor(1) as pool, place.store.pool.connection() as raw:
        with raw.transaction():
            assert writes.delete_one(Connection(raw), "a", "default")[0] == 1
            storing = pool.submit(asyncio.run, place.store.record_events([EVENT], EventLimits()))
            until_it_waits(storing, raw, 1)
        assert isinstance(storing.result().refused[0], NotFound)
    assert events_left(place) == 0

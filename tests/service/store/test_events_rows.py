"""Jobs on the table of events: limits over several keys, and deletion in steps."""

import sqlite3
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

import pytest

from service.store.sql.feedback import (
    DELETED_ROWS,
    count_events,
    expire_events,
    list_events,
    list_judgments,
    store_events,
)
from service.store.sqlite.schema import connect, migrate
from service.store.values import Event, EventLimits, Selection


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    migrate(tmp_path / "simile.db")
    connection = connect(tmp_path / "simile.db")
    connection.execute(
        "INSERT INTO documents (collection, id, text, metadata) VALUES ('default', 'd', 't', '{}')"
    )
    yield connection
    connection.close()


def reported(key: str, count: int, at: float = 0.0) -> list[Event]:
    return [
        Event(search_id="s", query="q", id="d", type="click", event_id=f"{n}", at=at, key=key)
        for n in range(count)
    ]


def test_the_limit_in_all_holds_for_several_keys_together(connection: sqlite3.Connection) -> None:
    first = store_events(connection, reported("ann", 6), EventLimits(in_all=8))
    second = store_events(connection, reported("bob", 6), EventLimits(in_all=8))
    assert (first.new, first.refused) == ([*range(6)], {})
    assert second.new == [0, 1]
    assert [*second.refused] == [2, 3, 4, 5]
    assert all(
        "There are 8 events in all (SIMILE_MAX_EVENTS)" in str(error) for error in second.refused.values()
    )


def test_room_that_was_freed_is_room_though_numbers_grow(connection: sqlite3.Connection) -> None:
    limits = EventLimits(per_key=5)
    assert len(store_events(connection, reported("ann", 9), limits).new) == 5
    connection.execute("DELETE FROM events WHERE event_id IN ('1', '2', '3')")
    assert len(store_events(connection, reported("bob", 9), limits).new) == 5, "another key's do not count"
    assert store_events(connection, reported("ann", 9), limits).new == [1, 2, 3]


@pytest.mark.long
def test_old_events_are_deleted_in_steps(connection: sqlite3.Connection) -> None:
    store_events(connection, reported("ann", DELETED_ROWS + 1, at=10.0), EventLimits())
    store_events(connection, reported("bob", 3, at=20.0), EventLimits())
    assert expire_events(connection, 20.0) is True
    assert count_events(connection, Selection()) == 4
    assert expire_events(connection, 20.0) is False
    assert count_events(connection, Selection()) == 3
    assert expire_events(connection, 20.0) is False


@pytest.mark.parametrize("read", [list_events, list_judgments])
@pytest.mark.parametrize(
    "selection", [Selection("default"), Selection(key="ann"), Selection("default", key="ann"), Selection()]
)
def test_a_page_is_read_in_order_and_never_sorted(
    connection: sqlite3.Connection, selection: Selection, read: Any
) -> None:
    run: list[str] = []
    connection.set_trace_callback(run.append)
    assert read(connection, 0, 10, selection, inf) == ([], False)
    connection.set_trace_callback(None)
    [query] = run
    plan = [step[3] for step in connection.execute(f"EXPLAIN QUERY PLAN {query}")]
    assert any("rowid>?)" in step for step in plan), plan
    assert not any("ORDER BY" in step for step in plan), plan


def test_a_page_ends_at_its_bytes_and_has_one_event_at_least(connection: sqlite3.Connection) -> None:
    store_events(connection, reported("ann", 5), EventLimits())
    [[(_, first)], _] = list_events(connection, 0, 1, Selection(), inf)
    size = len("s" + "q" + "d" + "click" + first.event_id + "[]" + "ann" + "default")
    pages = {
        bytes: list_events(connection, 0, 10, Selection(), bytes)
        for bytes in (0, 2 * size, 3 * size - 1, 5 * size)
    }
    lengths = {bytes: len(found) for bytes, (found, _) in pages.items()}
    assert lengths == {0: 1, 2 * size: 2, 3 * size - 1: 2, 5 * size: 5}
    assert [more for _, more in pages.values()] == [True, True, True, False]

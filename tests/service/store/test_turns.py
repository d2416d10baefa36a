"""Reads take turns. The tests count steps and do not measure time."""

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.store import scheduling
from service.store.scheduling import READERS, Turn, Turns, pause
from service.store.sqlite.documents import count
from service.store.sqlite.reader import HEAVY, Readers
from service.store.sqlite.schema import migrate
from tests.service.fakes import run, until
from tests.waiting import LIMIT

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture
def documents(tmp_path: Path) -> Iterator[Readers]:
    path = tmp_path / "simile.db"
    migrate(path)
    documents = Readers(path)
    yield documents
    documents.close()


@pytest.fixture(autouse=True)
def _no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends every slice of time at once, so that the tests do not depend on the machine's speed."""
    monkeypatch.setattr(scheduling, "SLICE_SECONDS", 0.0)


class Long:
    """A read that counts steps, with a pause after each, until `stop` is set."""

    def __init__(self) -> None:
        self.steps = 0
        self.stop = threading.Event()

    def __call__(self, _: sqlite3.Connection) -> int:
        while not self.stop.is_set():
            self.steps += 1
            pause()
        return self.steps


def in_sql(connection: sqlite3.Connection) -> None:
    connection.execute(ENDLESS).fetchone()


@pytest.mark.parametrize("endless", [Long, lambda: in_sql])
def test_reads_without_end_let_a_short_one_through(documents: Readers, endless: object) -> None:
    async def read() -> None:
        long = [
            asyncio.ensure_future(documents.read(endless()))  # type: ignore[operator]
            for _ in range(2 * READERS)
        ]
        await until(lambda: documents._turns.waiting >= READERS)
        assert [await documents.read(count) for _ in range(5)] == [0] * 5
        assert not any(task.done() for task in long)
        for task in long:
            task.cancel()
        await asyncio.gather(*long, return_exceptions=True)
        assert await documents.read(count) == 0

    run(read)


def test_each_of_many_reads_goes_on(documents: Readers) -> None:
    async def read() -> None:
        reads = [Long() for _ in range(2 * READERS)]
        tasks = [asyncio.ensure_future(documents.read(one)) for one in reads]
        await until(lambda: all(one.steps > 3 for one in reads))
        for one in reads:
            one.stop.set()
        assert all(steps > 3 for steps in await asyncio.gather(*tasks))

    run(read)


def test_no_more_reads_run_at_a_time_than_there_are_readers(documents: Readers) -> None:
    running, most = 0, 0
    lock = threading.Lock()

    def counted(_: sqlite3.Connection) -> None:
        nonlocal running, most
        for _step in range(50):
            with lock:
                running += 1
                most = max(most, running)
            with lock:
                running -= 1
            pause()

    async def read() -> None:
        await asyncio.gather(*(documents.read(counted) for _ in range(3 * READERS)))

    run(read)
    assert 1 <= most <= READERS
    assert (documents._turns._free, documents._turns.waiting) == (READERS, 0)


def test_the_services_own_reads_wait_for_no_client(documents: Readers) -> None:
    """The service's reads run even if clients' endless reads occupy all readers for clients."""
    go = threading.Event()

    async def read() -> None:
        held = [asyncio.ensure_future(documents.read(lambda _: go.wait(LIMIT))) for _ in range(2 * READERS)]
        await until(lambda: documents._turns.waiting == READERS)
        assert [await documents.own(count) for _ in range(5)] == [0] * 5
        assert not any(task.done() for task in held)
        go.set()
        await asyncio.gather(*held)

    run(read)


def test_heavy_reads_leave_threads_for_others(documents: Readers) -> None:
    async def read() -> None:
        reads = [Long() for _ in range(HEAVY + 3)]
        tasks = [asyncio.ensure_future(documents.read(one, heavy=True)) for one in reads]
        await until(lambda: sum(one.steps > 0 for one in reads) == HEAVY)
        assert await documents.read(count) == 0
        assert sum(one.steps > 0 for one in reads) == HEAVY
        for one in reads:
            one.stop.set()
        await asyncio.gather(*tasks)

    run(read)


def test_an_abandoned_read_in_the_line_leaves_it(documents: Readers) -> None:
    go = threading.Event()
    began: list[object] = []

    async def read() -> None:
        held = [asyncio.ensure_future(documents.read(lambda _: go.wait(LIMIT))) for _ in range(READERS)]
        await until(lambda: documents._turns._free == 0)
        late = asyncio.ensure_future(documents.read(began.append))
        await until(lambda: documents._turns.waiting == 1)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        assert documents._turns.waiting == 0
        go.set()
        await asyncio.gather(*held)
        assert await documents.read(count) == 0

    run(read)
    assert began == []


def test_turns_go_in_the_order_of_the_line() -> None:
    turns = Turns(1)
    first, second, third = (Turn(turns) for _ in range(3))
    assert turns.join(first)
    assert not turns.join(second)
    assert not turns.join(third)
    turns.leave(first)
    assert [turn.held for turn in (first, second, third)] == [False, True, False]
    turns.leave(second)
    turns.leave(second)  # The second call has no effect.
    assert third.held
    turns.abandon(third)
    turns.leave(third)
    assert not turns.join(third), "it was abandoned"
    assert turns.join(first)
    turns.abandon(second)
    assert not turns.join(second)
    assert second.comes.wait(0), "its thread would wait for ever"

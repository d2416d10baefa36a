"""Jobs that wait together are committed together, and a job that fails rolls back only its own work."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.errors import Storage, Unhealthy
from service.store.sqlite.writer import Transaction, Writer
from service.store.values import DEFAULT_COLLECTION, Changes
from tests.waiting import LIMIT


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "t.db", isolation_level=None, check_same_thread=False)
    connection.execute("CREATE TABLE t (value INTEGER UNIQUE, big BLOB)")
    yield connection
    connection.close()


def insert(value: int) -> Callable[[Transaction], int]:
    def job(transaction: Transaction) -> int:
        transaction.connection.execute("INSERT INTO t VALUES (?, NULL)", (value,))
        transaction.changes.removed.setdefault(DEFAULT_COLLECTION, []).append(value)
        return value

    return job


def new_writer(connection: sqlite3.Connection, commits: list[list[int]] | None = None) -> Writer:
    """Returns a writer that appends the revisions that each commit removes to `commits`."""
    removed = [] if commits is None else commits

    def on_commit(changes: Changes) -> None:
        removed.append(changes.removed.get(DEFAULT_COLLECTION, []))

    return Writer(connection, on_commit, lambda seconds: None)


def values(connection: sqlite3.Connection) -> list[int]:
    return [row[0] for row in connection.execute("SELECT value FROM t ORDER BY value")]


def blocked(writer: Writer) -> threading.Event:
    """Holds the writer in a job until the returned event is set, so that later jobs wait together."""
    release, inside = threading.Event(), threading.Event()

    def wait(transaction: Transaction) -> None:
        inside.set()
        release.wait()

    writer.submit(wait)
    inside.wait()
    return release


def test_jobs_that_wait_together_share_one_commit(connection: sqlite3.Connection) -> None:
    commits: list[list[int]] = []
    writer = new_writer(connection, commits)
    release = blocked(writer)
    futures = [writer.submit(insert(value)) for value in range(10)]
    release.set()
    assert [future.result(LIMIT) for future in futures] == list(range(10))
    assert commits == [[], list(range(10))]
    writer.stop()


def test_a_failing_job_takes_back_its_own_work_alone(connection: sqlite3.Connection) -> None:
    commits: list[list[int]] = []
    writer = new_writer(connection, commits)
    release = blocked(writer)

    def half(transaction: Transaction) -> None:
        insert(50)(transaction)
        raise ValueError("half done")

    good, bad, after = writer.submit(insert(1)), writer.submit(half), writer.submit(insert(2))
    release.set()
    assert (good.result(LIMIT), after.result(LIMIT)) == (1, 2)
    with pytest.raises(ValueError, match="half done"):
        bad.result(LIMIT)
    assert values(connection) == [1, 2]
    assert commits[-1] == [1, 2], "the index must not hear of work that was taken back"
    writer.stop()


def test_a_full_disk_refuses_the_group_and_the_next_is_served(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages + 2}")  # makes SQLite report a full disk
    writer = new_writer(connection)
    release = blocked(writer)

    def large(transaction: Transaction) -> None:
        transaction.connection.execute("INSERT INTO t VALUES (7, zeroblob(1000000))")

    small, huge = writer.submit(insert(1)), writer.submit(large)
    release.set()
    with pytest.raises(Storage, match="full"):
        huge.result(LIMIT)
    written = small.exception(LIMIT) is None  # It must be stored exactly if its future succeeds.
    assert values(connection) == ([1] if written else [])
    assert writer.submit(insert(3)).result(LIMIT) == 3
    writer.stop()


def test_a_caller_who_left_before_its_turn_writes_nothing(connection: sqlite3.Connection) -> None:
    async def body() -> None:
        writer = new_writer(connection)
        release = blocked(writer)
        task = asyncio.create_task(writer.run(insert(1)))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.sleep(0)
        release.set()
        assert await writer.run(insert(2)) == 2
        await asyncio.to_thread(writer.stop)

    asyncio.run(body())


def test_stopping_finishes_what_was_accepted_and_refuses_the_rest(connection: sqlite3.Connection) -> None:
    writer = new_writer(connection)
    release = blocked(writer)
    accepted = [writer.submit(insert(value)) for value in range(300)]
    stopping = threading.Thread(target=writer.stop)
    stopping.start()
    release.set()
    stopping.join(LIMIT)
    assert [future.result(0) for future in accepted] == list(range(300))
    with pytest.raises(Unhealthy):
        writer.submit(insert(1000))

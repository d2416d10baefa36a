"""The writing thread. Jobs that wait together are committed together.

A job is a function of a `Transaction`. The writer takes jobs in the order of write_queue.py, for
GROUP_SECONDS. Each has a savepoint of its own. The writer commits once (one fsync for all of them), brings
the indexes up to date, and only then answers. So a 200 means: on disk, and in the next search. A job that
fails takes back its own work and no other's.
"""

import asyncio
import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, TypeVar

from service.errors import Unhealthy, machine_error
from service.observability import outages
from service.store.values import Changes
from service.store.write_queue import WriteQueue

log = logging.getLogger(__name__)

T = TypeVar("T")
Job = tuple[Callable[["Transaction"], Any], Future[Any]]
GROUP_JOBS = 256  # jobs of one commit at most
GROUP_SECONDS = 0.05  # after which a commit takes no further job: a job that comes waits for no longer one


@dataclass
class Transaction:
    """The means of a job: connection, changes, and what follows the commit.

    For a job that changes nothing that an index holds it is a connection.
    """

    connection: sqlite3.Connection
    changes: Changes = field(default_factory=Changes)
    then: list[Callable[[], None]] = field(default_factory=list)  # between the commit and the indexes' step

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> sqlite3.Cursor:
        return self.connection.execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> sqlite3.Cursor:
        return self.connection.executemany(sql, parameters)


class Writer:
    """`on_commit` runs on the writer's thread after each commit, before its jobs are answered."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        on_commit: Callable[[Changes], None],
        observe_seconds: Callable[[float], None],
    ) -> None:
        self._connection = connection
        self._on_commit = on_commit
        self._observe_seconds = observe_seconds
        self._queue: WriteQueue[Job] = WriteQueue()
        self._closed = False
        self._closing = threading.Lock()  # no job may slip in behind the stop mark
        self._in_hand: list[Future[Any]] = []
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    async def run(self, job: Callable[[Transaction], T]) -> T:
        """The result of `job`, once it is on disk and in the indexes.

        A caller that is cancelled before its job's turn takes the job back.

        Raises:
            Storage: the disk is full, read-only or failing. Nothing of the job was stored.
            Unhealthy: there is no file descriptor left; as above.

        """
        return await asyncio.wrap_future(self.submit(job))

    def submit(self, job: Callable[[Transaction], T], *, last: bool = False) -> Future[T]:
        """Queue `job` from any thread. last: after every job that waits now, also those of other callers."""
        future: Future[T] = Future()
        with self._closing:
            if self._closed:
                raise Unhealthy("The service is stopping. Send again to the next one.", retry_after_seconds=1)
            if not self._thread.is_alive():
                raise _died()
            put = self._queue.put_barrier if last else self._queue.put
            put((job, future))
        return future

    def stop(self) -> None:
        """Finish every queued job, then close the connection."""
        with self._closing:
            self._closed = True
            self._queue.close()
        self._thread.join()
        self._connection.close()

    def check(self, _seconds: float, /) -> str | None:
        """The reason why it is ill, None when well. A thread that died is not replaced.

        It died between two steps that belong together, so store and index may disagree until the next start.
        """
        with self._closing:
            if self._closed or self._thread.is_alive():
                return None
            for future in self._in_hand:
                _fail(future, _died())
            while (waiting := self._queue.get(wait=False)) is not None:
                _fail(waiting[0][1], _died())
        return "the thread that writes has died"

    def _run(self) -> None:
        try:
            self._work()
        except BaseException:  # the watchdog finds the thread dead; nothing else would say why
            log.critical("The thread that writes died", exc_info=True)

    def _work(self) -> None:
        while (first := self._next(wait=True)) is not None:
            try:
                self._commit(first)
            except Exception as error:  # the writer outlives whatever this was
                log.exception("The writer failed outside a job")
                for future in self._in_hand:
                    _fail(future, error)
            self._in_hand = []

    def _next(self, *, wait: bool) -> Job | None:
        """Take the next job whose caller still waits. None: there is none now, or will be none."""
        while (found := self._queue.get(wait=wait)) is not None:
            job, future = found[0]
            if future.set_running_or_notify_cancel():
                self._in_hand.append(future)
                return job, future
        return None

    def _commit(self, first: Job) -> None:
        started = time.monotonic()
        whole = Transaction(self._connection)
        results: list[tuple[Future[Any], Any]] = []
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            most = min(GROUP_JOBS, 1 + self._queue.qsize())  # what comes later waits for the next commit
            job: Job | None = first
            while job is not None:
                self._attempt(*job, whole, results)
                full = len(self._in_hand) >= most or time.monotonic() - started > GROUP_SECONDS
                job = None if full else self._next(wait=False)
            self._connection.execute("COMMIT")
        except Exception as error:
            if outages.refusal(log, "Writes fail", error) is None:
                log.exception("A commit of %d jobs failed", len(self._in_hand))
            with contextlib.suppress(sqlite3.Error):  # a full disk may have ended it already
                self._connection.execute("ROLLBACK")
            for future in self._in_hand:
                _fail(future, _worded(error))
            return
        self._observe_seconds(time.monotonic() - started)
        for call in whole.then:
            try:
                call()
            except Exception:  # the commit stands, and its jobs are answered all the same
                log.exception("A step behind a commit failed")
        self._on_commit(whole.changes)
        for future, result in results:
            future.set_result(result)

    def _attempt(
        self,
        job: Callable[[Transaction], Any],
        future: Future[Any],
        whole: Transaction,
        results: list[tuple[Future[Any], Any]],
    ) -> None:
        self._connection.execute("SAVEPOINT job")
        transaction = Transaction(self._connection)
        try:
            result = job(transaction)
        except Exception as error:
            if not self._connection.in_transaction:  # SQLite gave up the whole transaction: a full disk
                raise
            self._connection.execute("ROLLBACK TO job")
            self._connection.execute("RELEASE job")
            _fail(future, _worded(error))
            return
        self._connection.execute("RELEASE job")
        whole.changes.merge(transaction.changes)
        whole.then += transaction.then
        results.append((future, result))


def _worded(error: Exception) -> Exception:
    """The refusal for what the machine denied; any other error as it is."""
    return machine_error(error) or error


def _died() -> Unhealthy:
    words = "Writing broke, by a bug of ours; the service is about to start anew. Send again then."
    return Unhealthy(words, retry_after_seconds=30)


def _fail(future: Future[Any], error: Exception) -> None:
    try:
        future.set_exception(error)
    except InvalidStateError:  # its own job failed before the commit did
        return

"""Runs write jobs on one thread. Jobs that are queued at the same time are committed together.

Start reading at `Writer._commit`. A job is a function that receives a `Transaction`, and has its own
savepoint. For GROUP_SECONDS, the writer takes jobs in the order of scheduling.py. It then commits once (one
fsync), updates the indexes, and returns the results. So after a response of 200, the write is durable and the
next search finds it. A job that fails rolls back only its own changes.
"""

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
from service.store.scheduling import Jobs
from service.store.values import Changes

log = logging.getLogger(__name__)

T = TypeVar("T")
Job = tuple[Callable[["Transaction"], Any], Future[Any]]
GROUP_JOBS = 256  # Jobs of one commit.
GROUP_SECONDS = 0.05  # After this time a commit takes no further jobs.


@dataclass
class Transaction:
    """The argument of a job: the connection, the changes the job records, and callbacks after the commit.

    Jobs that change no vectors use it like a connection.
    """

    connection: sqlite3.Connection
    changes: Changes = field(default_factory=Changes)
    then: list[Callable[[], None]] = field(default_factory=list)  # Run after the commit, before `on_commit`.

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> sqlite3.Cursor:
        return self.connection.execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> sqlite3.Cursor:
        return self.connection.executemany(sql, parameters)


class Writer(Jobs):
    """The writing thread.

    It calls `on_commit` after each commit, before the results of the jobs are returned.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        on_commit: Callable[[Changes], None],
        observe_seconds: Callable[[float], None],
    ) -> None:
        super().__init__()
        self._connection = connection
        self._on_commit = on_commit
        self._observe_seconds = observe_seconds
        self._in_hand: list[Future[Any]] = []
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def _require_alive(self) -> None:
        if not self._thread.is_alive():
            raise _died()

    def stop(self) -> None:
        """Runs all queued jobs, and then closes the connection."""
        self._close()
        self._thread.join()
        self._connection.close()

    def check(self, _seconds: float, /) -> str | None:
        """Returns why writes do not work, or None. If the thread is dead, fails all accepted jobs.

        A dead thread is not replaced, because it may have died between a commit and the update of the
        indexes.
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
            while (first := self._next(wait=True)) is not None:
                try:
                    self._commit(first)
                except Exception as error:  # The thread must survive any error.
                    log.exception("The writer failed outside a job")
                    for future in self._in_hand:
                        _fail(future, error)
                self._in_hand = []
        except BaseException:  # The watchdog finds the dead thread, but not the reason.
            log.critical("The thread that writes died", exc_info=True)

    def _next(self, *, wait: bool) -> Job | None:
        """Takes the next job whose caller was not canceled, or returns None."""
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
            most = min(GROUP_JOBS, 1 + self._queue.qsize())  # Later jobs wait for the next commit.
            job: Job | None = first
            while job is not None:
                self._attempt(job, whole, results)
                full = len(self._in_hand) >= most or time.monotonic() - started > GROUP_SECONDS
                job = None if full else self._next(wait=False)
            self._connection.execute("COMMIT")
        except Exception as error:
            if outages.refusal(log, "Writes fail", error) is None:
                log.exception("A commit of %d jobs failed", len(self._in_hand))
            with contextlib.suppress(sqlite3.Error):  # A full disk may have ended the transaction.
                self._connection.execute("ROLLBACK")
            for future in self._in_hand:
                _fail(future, machine_error(error) or error)
            return
        self._observe_seconds(time.monotonic() - started)
        for call in whole.then:
            try:
                call()
            except Exception:  # The commit succeeded, so its jobs are answered.
                log.exception("A step after a commit failed")
        self._on_commit(whole.changes)
        for future, result in results:
            future.set_result(result)

    def _attempt(self, taken: Job, whole: Transaction, results: list[tuple[Future[Any], Any]]) -> None:
        job, future = taken
        self._connection.execute("SAVEPOINT job")
        transaction = Transaction(self._connection)
        try:
            result = job(transaction)
        except Exception as error:
            if not self._connection.in_transaction:  # A full disk ends the whole transaction.
                raise
            self._connection.execute("ROLLBACK TO job")
            self._connection.execute("RELEASE job")
            _fail(future, machine_error(error) or error)
            return
        self._connection.execute("RELEASE job")
        whole.changes.merge(transaction.changes)
        whole.then += transaction.then
        results.append((future, result))


def _died() -> Unhealthy:
    message = "A bug has stopped the writing thread. The service is about to restart. Send again then."
    return Unhealthy(message, retry_after_seconds=30)


def _fail(future: Future[Any], error: Exception) -> None:
    try:
        future.set_exception(error)
    except InvalidStateError:  # The job itself failed before.
        return

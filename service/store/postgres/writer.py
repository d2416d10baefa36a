"""Writes: each is one transaction, several of them at a time.

Start reading at `Writer._work`: each writing thread takes the next job of write_queue.py. Jobs that hold the
database's lock of `in_turn` are given to one thread at a time, so the others never wait for that lock.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg

from service.errors import Unhealthy
from service.store.postgres.connection import Connection, NoAnswer, Pool
from service.store.postgres.errors import AGAIN_CODES, UNSURE, Again, is_lost, refusing
from service.store.write_queue import WriteQueue

P = ParamSpec("P")
T = TypeVar("T")
_TURN_LOCK = 7_405_817
ATTEMPTS, PAUSE_SECONDS = 5, 0.01  # where another transaction is in the way, or a connection broke


def in_turn(job: Callable[Concatenate[Connection, P], T]) -> Callable[Concatenate[Connection, P], T]:
    """`job`, one at a time: of rows whose numbers readers follow, and whose count is bounded."""

    def alone(connection: Connection, /, *args: P.args, **kwargs: P.kwargs) -> T:
        connection.execute("SELECT pg_advisory_xact_lock(?)", (_TURN_LOCK,))
        return job(connection, *args, **kwargs)

    return alone


class Writer:
    """`observe_seconds` is told how long each commit took, its work included."""

    def __init__(self, pool: Pool, writers: int, observe_seconds: Callable[[float], None]) -> None:
        self._connections = pool
        self._observe_seconds = observe_seconds
        self._queue: WriteQueue[tuple[Callable[[Connection], Any], Future[Any]]] = WriteQueue()
        self._closed = False
        self._closing = threading.Lock()
        self._threads = [
            threading.Thread(target=self._work, name=f"write_{number}", daemon=True)
            for number in range(writers)
        ]
        for thread in self._threads:
            thread.start()

    async def run(self, job: Callable[[Connection], T], *, alone: bool = False) -> T:
        """The result of `job`, once it is committed.

        A caller that is cancelled before its job's turn takes the job back.

        Args:
            job: What to do in a transaction.
            alone: It holds the lock of `in_turn`.

        Raises:
            Unhealthy: the database cannot be reached. It may have stored what the job did.
            Storage: it has no room.

        """
        return await asyncio.wrap_future(self.submit(job, alone=alone))

    def submit(self, job: Callable[[Connection], T], *, alone: bool = False, last: bool = False) -> Future[T]:
        """Queue `job` from any thread. last: after every job that waits now, also those of other callers."""
        future: Future[T] = Future()
        with self._closing:
            if self._closed:
                raise Unhealthy("The service is stopping. Send again to the next one.", retry_after_seconds=1)
            if last:
                self._queue.put_barrier((job, future))
            else:
                self._queue.put((job, future), alone=alone)
        return future

    def stop(self) -> None:
        """Finish every job that was taken."""
        with self._closing:
            self._closed = True
            self._queue.close()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (found := self._queue.get()) is not None:
            (job, future), alone = found
            try:
                if future.set_running_or_notify_cancel():
                    future.set_result(self._commit(job))
            except BaseException as error:  # noqa: BLE001  it is the caller's
                future.set_exception(error)
            finally:
                if alone:
                    self._queue.end_alone()
            del found, job, future  # or the last request's rows stay until the next one

    def _commit(self, job: Callable[[Connection], T]) -> T:
        with refusing("Writes fail"):
            for attempt in range(1, ATTEMPTS):
                try:
                    return self._attempt(job)
                except (psycopg.Error, Again) as error:
                    if is_lost(error):
                        self._connections.check()  # the others broke with it
                    elif not isinstance(error, Again) and error.sqlstate not in AGAIN_CODES:
                        raise
                    time.sleep(PAUSE_SECONDS * attempt)
            return self._attempt(job)

    def _attempt(self, job: Callable[[Connection], T]) -> T:
        """Run a job. If its connection breaks before the commit, nothing is left and it may run again."""
        started = time.monotonic()
        committing = False
        try:
            with self._connections.connection() as raw, raw.transaction():
                result = job(Connection(raw))
                committing = True
        except psycopg.Error as error:
            if committing and (is_lost(error) or isinstance(error, NoAnswer)):
                raise Unhealthy(UNSURE, retry_after_seconds=2) from error
            raise
        self._observe_seconds(time.monotonic() - started)
        return result

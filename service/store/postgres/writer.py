"""Writes: each is one transaction, several of them at a time."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Concatenate, ParamSpec, TypeVar

import psycopg

from service.errors import Unhealthy
from service.store.postgres.connection import Connection, NoAnswer, Pool
from service.store.postgres.errors import AGAIN_CODES, UNSURE, Again, is_lost, refusing

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
        self._pool = ThreadPoolExecutor(writers, thread_name_prefix="write")
        self._closed = False
        self._closing = threading.Lock()

    async def run(self, job: Callable[[Connection], T]) -> T:
        """The result of `job`, once it is committed.

        A caller that is cancelled before its job's turn takes the job back.

        Raises:
            Unhealthy: the database cannot be reached. It may have stored what the job did.
            Storage: it has no room.

        """
        return await asyncio.wrap_future(self.submit(job))

    def submit(self, job: Callable[[Connection], T]) -> Future[T]:
        with self._closing:
            if self._closed:
                raise Unhealthy("The service is stopping. Send again to the next one.", retry_after_seconds=1)
            return self._pool.submit(self._commit, job)

    def stop(self) -> None:
        """Finish every job that was taken."""
        with self._closing:
            self._closed = True
        self._pool.shutdown(wait=True)

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

"""Runs writes on several threads, each write in one transaction. Start reading at `Writer._work`.

Each writing thread takes the next job from scheduling.py. Jobs that hold the database lock of `in_turn` are
given to one thread at a time, so the other threads never wait for that lock.
"""

import threading
import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import psycopg

from service.errors import Unhealthy
from service.store.postgres.connection import (
    AGAIN_CODES,
    UNSURE,
    Again,
    Connection,
    NoAnswer,
    Pool,
    is_lost,
    refusing,
)
from service.store.scheduling import Jobs

P = ParamSpec("P")
T = TypeVar("T")
_TURN_LOCK = 7_405_817
ATTEMPTS, PAUSE_SECONDS = 5, 0.01  # After a conflict with another transaction, or a broken connection.


def in_turn(job: Callable[Concatenate[Connection, P], T]) -> Callable[Concatenate[Connection, P], T]:
    """Wraps a job that writes numbered or limited rows, so that all replicas run one such job at a time."""

    def alone(connection: Connection, /, *args: P.args, **kwargs: P.kwargs) -> T:
        connection.execute("SELECT pg_advisory_xact_lock(?)", (_TURN_LOCK,))
        return job(connection, *args, **kwargs)

    return alone


class Writer(Jobs):
    """The writing threads. `observe_seconds` receives the duration of each transaction."""

    def __init__(self, pool: Pool, writers: int, observe_seconds: Callable[[float], None]) -> None:
        super().__init__()
        self._connections = pool
        self._observe_seconds = observe_seconds
        self._threads = [
            threading.Thread(target=self._work, name=f"write_{number}", daemon=True)
            for number in range(writers)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Completes all accepted jobs, and ends the threads."""
        self._close()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (found := self._queue.get()) is not None:
            (job, future), alone = found
            try:
                if future.set_running_or_notify_cancel():
                    future.set_result(self._commit(job))
            except BaseException as error:  # noqa: BLE001
                future.set_exception(error)
            finally:
                if alone:
                    self._queue.end_alone()
            del found, job, future  # Otherwise the rows of a request stay in memory until the next one.

    def _commit(self, job: Callable[[Connection], T]) -> T:
        with refusing("Writes fail"):
            for attempt in range(1, ATTEMPTS):
                try:
                    return self._attempt(job)
                except (psycopg.Error, Again) as error:
                    if is_lost(error):
                        self._connections.check()  # Other connections may be broken as well.
                    elif not isinstance(error, Again) and error.sqlstate not in AGAIN_CODES:
                        raise
                    time.sleep(PAUSE_SECONDS * attempt)
            return self._attempt(job)

    def _attempt(self, job: Callable[[Connection], T]) -> T:
        """Tries to run a job once.

        If the connection breaks before the commit, nothing was stored and the job may run again.

        Raises:
            Unhealthy: The connection broke during the commit, so the job may be stored or not.
        """
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

"""Ends the process if only a restart can help. Start reading at `Watchdog.look`.

A thread checks each stage of the service every fifth of a second. A stage restarts dead threads, abandons
work that hangs, and reports whether it is healthy. If the checks fail without interruption for
SIMILE_HANG_SECONDS, the watchdog logs the stacks of all threads and ends the process with status 70. This is
safe, because acknowledged writes are on disk. The watchdog is a thread and not a task, because a task would
not run while the event loop is blocked.

The watchdog counts only the time between two of its checks, and at most MAX_SECONDS per check. A process that
was suspended is therefore not mistaken for one that hangs.

A C call that holds the interpreter lock also stops the watchdog's thread. In that case `interpreter_timer`
ends the process. The clock of this timer continues while the process is suspended, so it may also end a
process that was suspended for a long time.
"""

import asyncio
import contextlib
import faulthandler
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

log = logging.getLogger(__name__)

EXIT_STATUS = 70
LOOK_SECONDS = 0.2
MAX_SECONDS = 1.0  # One check adds at most this to the time of an illness.
SAY_SECONDS = 2.0  # A blocked log must not keep the process from ending.
RETRY_SECONDS = 2.0
MIN_TIMER_SECONDS = 3.0  # longer than a check while the log is blocked


class Stage(Protocol):
    """A part of the service that the watchdog checks."""

    def check(self, seconds: float, /) -> str | None:
        """Returns the reason why the stage is unhealthy, or None.

        Args:
            seconds: Time since the previous check.

        """


class Watchdog:
    """Thread that checks the stages, and ends the process if the checks keep failing."""

    def __init__(
        self, stages: Sequence[Stage], hang_seconds: float, beat: Callable[[], None] = lambda: None
    ) -> None:
        """Creates the thread. Call `start` to start it.

        Args:
            stages: The parts of the service to check.
            hang_seconds: The process ends if the checks fail without interruption for this time. 0 means no
                limit.
            beat: Function that restarts the interpreter timer. It is called at the start and after each
                check.

        """
        self._beat = beat
        self.illness: str | None = None
        self._stages = stages
        self._hang_seconds = hang_seconds
        self._ill_seconds = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._stopped.wait(LOOK_SECONDS):
            now = time.monotonic()
            seconds, before = min(now - before, MAX_SECONDS), now
            self.look(seconds)
            self._beat()
            if self._hang_seconds and self._ill_seconds > self._hang_seconds:
                end(f"Ill for {self._hang_seconds:g} s (SIMILE_HANG_SECONDS): {self.illness}")
                return

    def look(self, seconds: float) -> None:
        """Checks every stage once.

        Args:
            seconds: Time since the previous check.

        """
        found = [reason for stage in self._stages if (reason := _reason(stage, seconds)) is not None]
        before, self.illness = self.illness, "; ".join(found) or None
        self._ill_seconds = self._ill_seconds + seconds if found else 0.0
        if self.illness is not None and before is None:
            _say(self.illness)


def _reason(stage: Stage, seconds: float) -> str | None:
    try:
        return stage.check(seconds)
    except Exception as error:  # A bug in the check counts as an illness of its stage.
        log.exception("A stage cannot be watched")
        return f"{type(stage).__name__} cannot be watched: {type(error).__name__}"


@contextlib.contextmanager
def interpreter_timer(hang_seconds: float) -> Iterator[Callable[[], None]]:
    """Context manager with a timer that ends the process with status 1 if the interpreter hangs.

    Each call of the yielded function restarts the timer. The timer expires after twice `hang_seconds`, or
    after MIN_TIMER_SECONDS if that is longer. Then faulthandler writes the stacks of all threads to stderr
    and ends the process. The timer's thread is C code, so it runs even if a thread holds the interpreter lock
    forever.

    Args:
        hang_seconds: Half of the time limit, in seconds. 0 means no timer.

    """
    seconds = min(max(2 * hang_seconds, MIN_TIMER_SECONDS), threading.TIMEOUT_MAX)
    if not hang_seconds:
        yield lambda: None
        return
    try:
        yield partial(faulthandler.dump_traceback_later, seconds, exit=True)
    finally:
        faulthandler.cancel_dump_traceback_later()


class Heartbeat:
    """The event loop as a stage of the watchdog. A blocked event loop cannot answer requests."""

    def __init__(self, loop: asyncio.AbstractEventLoop, hang_seconds: float) -> None:
        self._loop = loop
        self._hang_seconds = hang_seconds
        self._beat_requested = False
        self._seconds = 0.0

    def check(self, seconds: float) -> str | None:
        if self._loop.is_closed():
            return None
        if not self._beat_requested:
            self._beat_requested, self._seconds = True, 0.0
            self._loop.call_soon_threadsafe(self._beat)
            return None
        self._seconds += seconds
        if self._hang_seconds and self._seconds > self._hang_seconds:
            return f"the event loop has been blocked for {self._hang_seconds:g} s"
        return None

    def _beat(self) -> None:
        self._beat_requested = False


def end(reason: str) -> None:
    """Logs the reason and the stack of every thread, and ends the process immediately.

    The stacks contain names of files and functions, and line numbers. They never contain texts of users.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = [
        f"{names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()  # noqa: SLF001  Python has no public way
    ]
    _say(f"{reason}. The process ends with status {EXIT_STATUS}, to be started again.\n{''.join(stacks)}")
    os._exit(EXIT_STATUS)


def _say(words: str) -> None:
    """Logs a message on a new thread. The log itself may be blocked, and may be the cause of the hang."""
    thread = threading.Thread(target=log.critical, args=("%s", words), daemon=True)
    try:
        thread.start()
    except RuntimeError:  # The system cannot start another thread.
        return
    thread.join(SAY_SECONDS)


async def lasting(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Runs `work`, and runs it again after each exception, which is logged. Returns when `work` returns.

    Without this, a background task that failed would end unnoticed.
    """
    while True:
        try:
            await work()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            log.exception("%s was cancelled from inside and starts again", name)
        except Exception:
            log.exception("%s failed and starts again", name)
        else:
            return
        await asyncio.sleep(RETRY_SECONDS)

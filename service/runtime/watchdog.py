"""Ends the process when only a restart can help. Start reading at `Watchdog.look`.

A thread checks each stage of the service every fifth of a second. The stage restarts dead threads, gives up
hanging work, and reports its state. After SIMILE_HANG_SECONDS of continuous illness the watchdog logs the
stacks of all threads and ends the process with status 70. This is safe, because acknowledged writes are on
disk. It runs on a thread, because a task would not notice a blocked event loop.

The watchdog measures time between its own looks, so a suspended process does not look like a hanging one.

A C call that holds the interpreter lock also stops this thread. `interpreter_timer` ends the process then.
Its clock continues while the process is suspended, so a process may end when it is resumed.
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
from typing import Protocol

log = logging.getLogger(__name__)

EXIT_STATUS = 70
LOOK_SECONDS = 0.2
MAX_SECONDS = 1.0  # that one look may add to the time of an illness
SAY_SECONDS = 2.0  # A blocked log must not keep the process from ending.
RETRY_SECONDS = 2.0
MIN_TIMER_SECONDS = 3.0  # longer than a look while the log is blocked


class Stage(Protocol):
    """A part of the service that is watched."""

    def check(self, seconds: float, /) -> str | None:
        """Returns why the stage is ill, or None. `seconds` is the time since the last look."""


class Watchdog:
    """Checks the stages, and ends the process if they stay ill."""

    def __init__(
        self, stages: Sequence[Stage], hang_seconds: float, beat: Callable[[], None] = lambda: None
    ) -> None:
        """Creates the thread; `start` starts it.

        Args:
            stages: The parts of the service to check.
            hang_seconds: Seconds of illness after which the process ends. 0 means never.
            beat: Called at the start and after each look, to restart the interpreter timer.

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
        """Checks every stage, `seconds` after the last look."""
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
    """Ends the process with status 1 when the interpreter hangs.

    Each call of the yielded function sets the timer to twice `hang_seconds`, the time that the watchdog needs
    to end a process. When the timer expires, faulthandler writes the stacks of all threads to stderr and ends
    the process. Its thread is C code and needs no interpreter lock.

    Args:
        hang_seconds: Half of the limit, in seconds. 0 means no timer.

    """
    seconds = min(max(2 * hang_seconds, MIN_TIMER_SECONDS), threading.TIMEOUT_MAX)

    def restart() -> None:
        faulthandler.dump_traceback_later(seconds, exit=True)

    if not hang_seconds:
        yield lambda: None
        return
    try:
        yield restart
    finally:
        faulthandler.cancel_dump_traceback_later()


class Heartbeat:
    """The event loop as a stage. A blocked loop answers no request."""

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
    """Logs the reason and the stack of every thread, and ends the process at once.

    The stacks name files, lines and functions. They contain no text of a user.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = [
        f"{names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()  # noqa: SLF001  Python has no public way
    ]
    _say(f"{reason}. The process ends with status {EXIT_STATUS}, to be started again.\n{''.join(stacks)}")
    os._exit(EXIT_STATUS)


def _say(words: str) -> None:
    """Logs on a new thread, because a blocked log may be the cause of the hang."""
    thread = threading.Thread(target=log.critical, args=("%s", words), daemon=True)
    try:
        thread.start()
    except RuntimeError:  # The system cannot start another thread.
        return
    thread.join(SAY_SECONDS)


async def lasting(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Runs `work` until it returns. After an exception it logs and runs the work again.

    Otherwise a task that nothing awaits would die unnoticed.
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

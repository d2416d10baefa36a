"""A thread that watches the stages, and ends the process when only a new start can help.

    every fifth of a second, each stage: restart what died, give up what hangs, say what is ill
    ill for SIMILE_HANG_SECONDS without a break: every thread's stack to the log, exit status 70

A thread and not a task, because a blocked event loop is one of the things it must see. Ending is safe: what
was acknowledged is on disk, and whatever starts the service again finds it there.

A C call that holds the interpreter's lock stops this thread too; interpreter_watchdog.py sees that.

Time is counted in its own looks and not by a clock. A process that was held for a minute (SIGSTOP, a frozen
container, a laptop asleep) has not hung.
"""

import asyncio
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

log = logging.getLogger(__name__)

EXIT_STATUS = 70
LOOK_SECONDS = 0.2
MOST_SECONDS = 1.0  # that one look counts for
SAY_SECONDS = 2.0  # a log that cannot be written must not keep the process from ending
RETRY_SECONDS = 2.0


class Stage(Protocol):
    """A part of the service that is watched."""

    def check(self, seconds: float, /) -> str | None:
        """Why it is ill, None when it is well. `seconds` have passed since the last look."""


class Watchdog:
    """Looks at `stages`. `hang_seconds` 0: it restarts and tells, and never ends the process."""

    def __init__(
        self, stages: Sequence[Stage], hang_seconds: float, beat: Callable[[], None] = lambda: None
    ) -> None:
        """beat: called after each look, to tell who watches the supervisor that it lives."""
        self._beat = beat
        self.illness: str | None = None
        self._stages = stages
        self._hang_seconds = hang_seconds
        self._ill_seconds = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    def start(self) -> None:
        self._beat()  # from now on it is missed
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._stopped.wait(LOOK_SECONDS):
            now = time.monotonic()
            seconds, before = min(now - before, MOST_SECONDS), now
            self.look(seconds)
            self._beat()
            if self._hang_seconds and self._ill_seconds > self._hang_seconds:
                end(f"Ill for {self._hang_seconds:g} s (SIMILE_HANG_SECONDS): {self.illness}")
                return

    def look(self, seconds: float) -> None:
        """Check every stage, `seconds` after the last look."""
        found = [reason for stage in self._stages if (reason := _reason(stage, seconds)) is not None]
        before, self.illness = self.illness, "; ".join(found) or None
        self._ill_seconds = self._ill_seconds + seconds if found else 0.0
        if self.illness is not None and before is None:
            _say(self.illness)


def _reason(stage: Stage, seconds: float) -> str | None:
    try:
        return stage.check(seconds)
    except Exception as error:  # a bug of ours: what cannot be watched is not well
        log.exception("A stage cannot be watched")
        return f"{type(stage).__name__} cannot be watched: {type(error).__name__}"


class Heartbeat:
    """The event loop as a stage: a blocked loop answers no request, and nothing else would notice."""

    def __init__(self, loop: asyncio.AbstractEventLoop, hang_seconds: float) -> None:
        self._loop = loop
        self._hang_seconds = hang_seconds
        self._asked = False
        self._seconds = 0.0

    def check(self, seconds: float) -> str | None:
        if self._loop.is_closed():
            return None
        if not self._asked:
            self._asked, self._seconds = True, 0.0
            self._loop.call_soon_threadsafe(self._beat)
            return None
        self._seconds += seconds
        if self._hang_seconds and self._seconds > self._hang_seconds:
            return f"the event loop has been blocked for {self._hang_seconds:g} s"
        return None

    def _beat(self) -> None:
        self._asked = False


def end(reason: str) -> None:
    """Say why and where every thread is, and end the process at once.

    The stacks name files, lines and functions, and no text of anybody's.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = [
        f"{names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()  # noqa: SLF001  there is no public way
    ]
    _say(f"{reason}. The process ends with status {EXIT_STATUS}, to be started again.\n{''.join(stacks)}")
    os._exit(EXIT_STATUS)


def _say(words: str) -> None:
    """Log it on a thread of its own: that the log is blocked may be just what is wrong."""
    thread = threading.Thread(target=log.critical, args=("%s", words), daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no thread can be had, which must not end this one
        return
    thread.join(SAY_SECONDS)


async def lasting(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` until it ends by itself; when it breaks, say so and run it again.

    A task that is not awaited would otherwise die unseen.
    """
    while True:
        try:
            await work()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            log.exception("%s was cancelled by something that it waited for; it begins again", name)
        except Exception:
            log.exception("%s broke and begins again", name)
        else:
            return
        await asyncio.sleep(RETRY_SECONDS)

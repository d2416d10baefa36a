"""Reports the progress of a long step on stderr. Start at `Progress`.

On a terminal, a single line is updated:

    encoding: 4,096 of 9,000 texts, 45 %, 210/s, about 23 s left
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Self, TypeVar

SECONDS = 0.2  # Between updates on a terminal.
LOG_SECONDS = 10.0  # Between lines without a terminal.
SOON_SECONDS = 3.0  # Before the first line without a terminal.
RECENT_SECONDS = 30.0  # Window of the rate and the estimate.

clock = time.monotonic

Item = TypeVar("Item")
Say = Callable[[str], None]  # Called with each long step when it starts.


def silent(step: str) -> None:
    """Prints nothing. A `Say` for callers that need no messages."""


def to_stderr(said: str) -> None:
    sys.stderr.write(f"{said}\n")
    sys.stderr.flush()


def step_to_stderr(step: str) -> None:
    to_stderr(f"{step} …")


class Progress:
    """Counts items and reports the progress. Percentages are of units of work, not of items (`tell`).

    Args:
        what: Noun for the items, in the plural.
        total: Number of units of work, or 0 if it is unknown.
        step: Name of the step, which starts each line.
        first: Number of items that an earlier run finished.
        say: Receives each line if stderr is not a terminal.
    """

    def __init__(
        self, what: str, total: int = 0, step: str = "", *, first: int = 0, say: Say = to_stderr
    ) -> None:
        self._what, self._total, self._step, self._count, self._say = what, total, step, first, say
        self._terminal = sys.stderr.isatty() and say is not silent
        self._said = clock() - (SECONDS if self._terminal else max(0.0, LOG_SECONDS - SOON_SECONDS))
        self._points = deque([(clock(), first, first)])  # Recent (time, items, units of work).

    def __enter__(self) -> Self:
        self.add(0)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def add(self, count: int = 1, more: str = "") -> None:
        """Counts finished items. Each one is one unit of work. `more` is appended to the line."""
        self._count += count
        self.tell(self._count, self._count, more)

    def tell(self, count: int, done: int = 0, more: str = "") -> None:
        """Sets the number of items and of finished units of work. Prints a line if one is due.

        `more` is appended to the line.
        """
        now = clock()
        if now - self._said < (SECONDS if self._terminal else LOG_SECONDS):
            return
        self._said = now
        while len(self._points) > 1 and now - self._points[0][0] > RECENT_SECONDS:
            self._points.popleft()
        began, first, start = self._points[0]
        self._points.append((now, count, done))
        seconds = max(now - began, 0.001)
        said = f"{self._step}: {count:,} {self._what}" if self._step else f"{count:,} {self._what}"
        if self._total:
            said += f", {min(100, 100 * done // self._total)} %"
        if count > first:
            said += f", {_rate((count - first) / seconds)}"
        if start < done < self._total:
            said += f", about {_duration(seconds * (self._total - done) / (done - start))} left"
        self._write(f"{said}, {more}" if more else said)

    def note(self, said: str) -> None:
        """Prints a message at once, for example the reason why the step waits."""
        self._said = clock()
        self._write(said)

    def end(self) -> None:
        """Clears the line on a terminal."""
        if self._terminal:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()

    def _write(self, said: str) -> None:
        if self._terminal:
            sys.stderr.write(f"\r\033[K{said}")
            sys.stderr.flush()
        else:
            self._say(said)


def counted(items: Iterable[Item], what: str, total: int = 0, step: str = "") -> Iterator[Item]:
    """Yields the items, and reports the progress."""
    with Progress(what, total, step) as progress:
        for item in items:
            yield item
            progress.add()


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}/s" if per_second >= 1 else f"{1 / per_second:.1f} s each"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"

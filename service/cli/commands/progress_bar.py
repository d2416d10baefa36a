"""Progress of a command on stderr: one line on a terminal, elsewhere a new one from time to time."""

import sys
import time
from collections import deque

SECONDS = 0.2  # between two on a terminal
LOG_SECONDS = 30.0  # between two elsewhere
RECENT_SECONDS = 30.0  # that the rate and the estimate are made of

clock = time.monotonic


class Progress:
    """`what` is counted; `total` units of work, 0 where that is not known."""

    def __init__(self, what: str, total: int = 0) -> None:
        self._what, self._total = what, total
        self._terminal = sys.stderr.isatty()
        self._said = clock() - (SECONDS if self._terminal else 0.0)
        self._points = deque([(clock(), 0, 0)])  # of the recent past: when, how many, how far

    def tell(self, count: int, done: int = 0) -> None:
        """`count` of them by now, `done` of the units of work."""
        now = clock()
        if now - self._said < (SECONDS if self._terminal else LOG_SECONDS):
            return
        self._said = now
        while len(self._points) > 1 and now - self._points[0][0] > RECENT_SECONDS:
            self._points.popleft()
        began, first, start = self._points[0]
        self._points.append((now, count, done))
        seconds = max(now - began, 0.001)
        said = f"{count:,} {self._what}"
        if self._total:
            said += f", {min(100, 100 * done // self._total)} %"
        if count > first:
            said += f", {(count - first) / seconds:,.0f}/s"
        if start < done < self._total:
            said += f", about {_duration(seconds * (self._total - done) / (done - start))} left"
        self._write(said)

    def note(self, said: str) -> None:
        """The reason why nothing moves."""
        self._said = clock()
        self._write(said)

    def end(self) -> None:
        """Leave the line to what is said next."""
        if self._terminal:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()

    def _write(self, said: str) -> None:
        sys.stderr.write(f"\r\033[K{said}" if self._terminal else f"{said}\n")
        sys.stderr.flush()


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"

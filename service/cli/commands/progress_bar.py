"""Progress of a command: a line on stderr, only on a terminal."""

import sys
import time

SECONDS = 0.2  # between two of them


class Progress:
    """`what` is counted; `total` units of work, 0 where that is not known."""

    def __init__(self, what: str, total: int = 0) -> None:
        self._what, self._total = what, total
        self._began = self._said = time.monotonic()
        self._shown = sys.stderr.isatty()

    def tell(self, count: int, done: int = 0) -> None:
        """`count` of them by now, `done` of the units of work."""
        now = time.monotonic()
        if self._shown and now - self._said >= SECONDS:
            self._said = now
            share = f", {min(100, 100 * done // self._total)} %" if self._total else ""
            rate = count / max(now - self._began, 0.001)
            sys.stderr.write(f"\r\033[K{count:,} {self._what}{share}, {rate:,.0f}/s")
            sys.stderr.flush()

    def end(self) -> None:
        """Leave the line to what is said next."""
        if self._shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()

"""A token bucket: so much a minute, of which as much as a minute's worth may come at once.

Time is the monotonic clock's, so that setting the machine's clock neither frees a caller nor locks one out.
"""

import time
from collections.abc import Callable

SECONDS = 60.0


class Bucket:
    """`per_minute` units drop in evenly, up to `per_minute`; 0: no limit."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._level = float(per_minute)
        self._filled = clock()
        self.per_minute = per_minute

    def resize(self, per_minute: int) -> None:
        """Another limit from now on. A debt stays; who had no limit begins with a full bucket."""
        self._fill()
        self._level = min(self._level, float(per_minute)) if self.per_minute else float(per_minute)
        self.per_minute = per_minute

    def wait(self, need: float) -> float:
        """Seconds until `need` units are there; 0 when they are."""
        if not self.per_minute:
            return 0.0
        self._fill()
        return max(0.0, need - self._level) * SECONDS / self.per_minute

    def take(self, units: float) -> None:
        """Take `units`, also more than there are: then it is in debt until they have dropped in."""
        self._level -= units

    def _fill(self) -> None:
        now = self._clock()
        gained = (now - self._filled) * self.per_minute / SECONDS
        self._level = min(float(self.per_minute), self._level + gained)
        self._filled = now

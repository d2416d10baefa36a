"""A token bucket, which allows bursts of up to a minute's worth.

It uses the monotonic clock, so changes of the system clock have no effect.
"""

import time
from collections.abc import Callable

SECONDS = 60.0


class Bucket:
    """A bucket of at most `per_minute` units, refilled evenly. 0 means no limit."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._level = float(per_minute)
        self._filled = clock()
        self.per_minute = per_minute

    def resize(self, per_minute: int) -> None:
        """Changes the limit. A debt stays, and a bucket that had no limit starts full."""
        self._fill()
        self._level = min(self._level, float(per_minute)) if self.per_minute else float(per_minute)
        self.per_minute = per_minute

    def wait(self, need: float) -> float:
        """Returns the seconds until `need` units are available."""
        if not self.per_minute:
            return 0.0
        self._fill()
        return max(0.0, need - self._level) * SECONDS / self.per_minute

    def take(self, units: float) -> None:
        """Takes `units`, and goes into debt if they are more than available."""
        self._level -= units

    def _fill(self) -> None:
        now = self._clock()
        gained = (now - self._filled) * self.per_minute / SECONDS
        self._level = min(float(self.per_minute), self._level + gained)
        self._filled = now

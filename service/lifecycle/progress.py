"""Pace of a build, and how long it will take; said in the log now and then.

    worked(64, 0.2)      a step of 64 documents took so long
    tell(5000, 20000)    where it stands

Only steps count as time: a build that waited for a full queue or for memory is no slower for it, while the
pauses of SIMILE_BUILD_RATE belong to their steps. One step that took far longer than usual (the machine
slept, the process was stopped) counts as `STALL` usual ones. A second one in a row counts in full, so that a
machine that has become slow for good is believed after a few steps.
"""

import logging
import math
import time
from collections import deque

log = logging.getLogger(__name__)

RECENT_SECONDS = 60.0  # of work, that the rate is taken from
FEW = 3  # steps before a rate is believed
STALL = 10.0
SAY_SECONDS = 30.0


class Progress:
    """Progress of one build."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._steps: deque[tuple[int, float]] = deque()  # documents and seconds of each recent step
        self._stalled = False  # the last step took far longer than usual
        self._left: int | None = None
        self._said = time.monotonic()

    @property
    def rate(self) -> float | None:
        """Documents per second, None while it is not known."""
        if len(self._steps) < FEW:
            return None
        return sum(documents for documents, _ in self._steps) / sum(seconds for _, seconds in self._steps)

    @property
    def eta_seconds(self) -> float | None:
        """Seconds that the rest takes at the recent rate, None while it is not known."""
        rate = self.rate
        return None if rate is None or self._left is None else self._left / rate

    def worked(self, documents: int, seconds: float) -> None:
        """Count a step that came to its end."""
        longest = math.inf if self.rate is None else STALL * documents / self.rate
        before, self._stalled = self._stalled, seconds > longest
        if self._stalled and not before:
            seconds = longest
        self._steps.append((documents, max(seconds, 1e-6)))
        while len(self._steps) > FEW and sum(seconds for _, seconds in self._steps) > RECENT_SECONDS:
            self._steps.popleft()

    def tell(self, done: int, total: int) -> None:
        """Note where the build stands, in documents."""
        self._left = total - done
        eta = self.eta_seconds
        if eta is not None and time.monotonic() - self._said >= SAY_SECONDS:
            self._said = time.monotonic()
            log.info(
                "Building %s: %d of %d documents (%d %%), %.3g a second, about %s to go",
                self._version,
                done,
                total,
                100 * done // max(total, 1),
                self.rate,
                _in_words(eta),
            )


def _in_words(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"

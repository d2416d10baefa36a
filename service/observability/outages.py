"""Logs lasting failures at most once a minute.

A full disk, for example, would otherwise log a line for each write.
"""

import logging
import threading
import time
from collections.abc import Callable

from service.errors import ServiceError, machine_error

SECONDS = 60.0
_MAX_MESSAGES = 100  # different messages in memory


class Outages:
    """Logs each warning at most once a minute, and counts how often it was repeated since then."""

    def __init__(self, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._logged: dict[str, tuple[float, int]] = {}  # time of the last line, and repetitions since

    def warn(self, log: logging.Logger, message: str) -> None:
        """Logs a warning. If the same message was logged within the last minute, only counts it."""
        now = self._clock()
        with self._lock:
            at, since = self._logged.get(message, (None, 0))
            if at is not None and now - at < self._seconds:
                self._logged[message] = at, since + 1
                return
            if len(self._logged) >= _MAX_MESSAGES:
                self._logged.clear()
            self._logged[message] = now, 0
        log.warning("%s%s", message, f" ({since} more times since the last line)" if since else "")


_all = Outages()
warn = _all.warn


def refusal(log: logging.Logger, what: str, error: BaseException) -> ServiceError | None:
    """Returns the error answer for a problem of the machine, or None for any other exception.

    Logs the problem, but at most once a minute.

    Args:
        log: The logger.
        what: What failed. The log line begins with it.
        error: The exception.

    """
    fault = machine_error(error)
    if fault is not None:
        warn(log, f"{what}: {fault.message}")
    return fault

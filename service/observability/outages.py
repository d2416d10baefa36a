"""Logs lasting failures once a minute. A full disk fails every write, which would log a line each."""

import logging
import threading
import time
from collections.abc import Callable

from service.errors import ServiceError, machine_error

SECONDS = 60.0
_MAX_MESSAGES = 100  # different messages in memory


class Outages:
    """Recently logged messages, with the number of repetitions since."""

    def __init__(self, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._logged: dict[str, tuple[float, int]] = {}  # time of the last line, and repetitions since

    def warn(self, log: logging.Logger, message: str) -> None:
        """Logs `message`, or counts it if it was logged within the last minute."""
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
    """Returns the answer for an error of the machine, and logs it with the prefix `what`.

    Returns None for other errors.
    """
    fault = machine_error(error)
    if fault is not None:
        warn(log, f"{what}: {fault.message}")
    return fault

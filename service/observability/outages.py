"""Lasting failures, logged once a minute: a full disk fails every write, which would leave a line each."""

import logging
import threading
import time
from collections.abc import Callable

from service.errors import ServiceError, machine_error

SECONDS = 60.0
_MOST = 100  # different messages that are remembered


class Outages:
    """Messages that were logged lately, and how often each came since."""

    def __init__(self, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._said: dict[str, tuple[float, int]] = {}  # message to when it was logged, and how often since

    def warn(self, log: logging.Logger, message: str) -> None:
        """Log `message`, unless it was logged within the last minute; then count it."""
        now = self._clock()
        with self._lock:
            at, since = self._said.get(message, (None, 0))
            if at is not None and now - at < self._seconds:
                self._said[message] = at, since + 1
                return
            if len(self._said) >= _MOST:
                self._said.clear()
            self._said[message] = now, 0
        log.warning("%s%s", message, f" ({since} times more since it was last said)" if since else "")


_all = Outages()
warn = _all.warn


def refusal(log: logging.Logger, what: str, error: BaseException) -> ServiceError | None:
    """The refusal for what the machine denied, logged as `what`; None for an error of another kind."""
    fault = machine_error(error)
    if fault is not None:
        warn(log, f"{what}: {fault.message}")
    return fault

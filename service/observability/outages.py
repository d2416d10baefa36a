"""Logs lasting failures at most once a minute.

A full disk, for example, would otherwise log a line for each write.
"""

import logging
import threading
import time
from math import inf

from service.errors import ServiceError, machine_error

clock = time.monotonic

SECONDS = 60.0
_MAX_MESSAGES = 100  # different messages in memory


_lock = threading.Lock()
_logged: dict[str, tuple[float, int]] = {}  # time of the last line, and repetitions since


def warn(log: logging.Logger, message: str) -> None:
    """Logs a warning. If the same message was logged within the last minute, only counts it."""
    now = clock()
    with _lock:
        at, since = _logged.get(message, (-inf, 0))
        if now - at < SECONDS:
            _logged[message] = at, since + 1
            return
        if len(_logged) >= _MAX_MESSAGES:
            _logged.clear()
        _logged[message] = now, 0
    log.warning("%s%s", message, f" ({since} more times since the last line)" if since else "")


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

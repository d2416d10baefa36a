"""Tests wait for a state, never for a time.

until(lambda: client.get("/ready").status_code == 200)      the true value, once it is true
until(path.exists, say=log.read_text)                       a failure shows the log
assert begun.wait(LIMIT)                                    events have the same limit
"""

from collections.abc import Callable
from time import monotonic, sleep  # by name, so that a test that patches `time` keeps them
from typing import TypeVar

LIMIT = 600.0  # Seconds. It only detects hangs. The limit in pyproject.toml is larger.
T = TypeVar("T")


def until(true: Callable[[], T | None], say: Callable[[], object] | str = "", pause: float = 0.01) -> T:
    """Calls `true` until its value is true, and returns it. Fails after LIMIT, with the text of `say`."""
    deadline = monotonic() + LIMIT
    while not (found := true()):
        if monotonic() > deadline:
            raise AssertionError(f"Not in {LIMIT:.0f} s. {say() if callable(say) else say}")
        sleep(pause)
    return found

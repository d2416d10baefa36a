"""Runs the service with faults that files turn on: `python -m tests.service.faulty`.

FAULTS/hang      every forward pass sleeps
FAULTS/block     the event loop sleeps in the next request
FAULTS/hold      the event loop holds the interpreter lock in the next request
FAULTS/hold2     the same in a worker thread
"""

import ctypes
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from models.encoder import Encoder
from service import __main__
from service.active import ActiveGeneration

FAULTS = Path(os.environ["FAULTS"])


def holding(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `work` to hold the interpreter lock forever if the file `name` exists."""

    def faulty(*arguments: Any, **options: Any) -> Any:
        while (FAULTS / name).exists():
            lock, take = ctypes.create_string_buffer(64), ctypes.PyDLL(None).pthread_mutex_lock
            take(lock)
            take(lock)  # Blocks forever. Unlike sleep, signals do not end it.
        return work(*arguments, **options)

    return faulty


def asleep(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `work` to sleep while the file `name` exists."""

    def faulty(*arguments: Any, **options: Any) -> Any:
        while (FAULTS / name).exists():
            time.sleep(0.05)
        return work(*arguments, **options)

    return faulty


def main() -> None:
    Encoder.forward = asleep("hang", Encoder.forward)  # type: ignore[method-assign]
    ActiveGeneration.borrow = asleep("block", ActiveGeneration.borrow)  # type: ignore[method-assign]  # on the event loop
    ActiveGeneration.borrow = holding("hold", ActiveGeneration.borrow)  # type: ignore[method-assign]
    Encoder.forward = holding("hold2", Encoder.forward)  # type: ignore[method-assign]
    sys.argv = sys.argv[:1]
    __main__.main()


if __name__ == "__main__":
    main()

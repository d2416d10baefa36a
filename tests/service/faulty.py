"""The service with a fault that a file turns on: `python -m tests.service.faulty`, in place of `-m service`.

FAULTS/hang      every forward pass sleeps
FAULTS/block     the event loop sleeps in the next request
FAULTS/hold      the event loop sleeps in the next request, and lets no other thread run
FAULTS/hold2     the same in a thread beside it, in which a forward pass is computed
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
from service.live import Live

FAULTS = Path(os.environ["FAULTS"])


def holding(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """`work`, which never lets the interpreter go while the file is there."""

    def faulty(*arguments: Any, **options: Any) -> Any:
        while (FAULTS / name).exists():
            lock, take = ctypes.create_string_buffer(64), ctypes.PyDLL(None).pthread_mutex_lock
            take(lock)
            take(lock)  # for ever, and unlike sleep no signal wakes it
        return work(*arguments, **options)

    return faulty


def asleep(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """`work`, which sleeps for as long as the file is there."""

    def faulty(*arguments: Any, **options: Any) -> Any:
        while (FAULTS / name).exists():
            time.sleep(0.05)
        return work(*arguments, **options)

    return faulty


def main() -> None:
    Encoder.forward = asleep("hang", Encoder.forward)  # type: ignore[method-assign]
    Live.borrow = asleep("block", Live.borrow)  # type: ignore[method-assign]  # on the event loop
    Live.borrow = holding("hold", Live.borrow)  # type: ignore[method-assign]
    Encoder.forward = holding("hold2", Encoder.forward)  # type: ignore[method-assign]
    sys.argv = sys.argv[:1]
    __main__.main()


if __name__ == "__main__":
    main()

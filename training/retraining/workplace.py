"""The folder that a retraining works in: one that is kept, or a temporary one that goes with its process.

A process that is killed cannot tidy up, so whoever comes next removes what dead ones left behind: a living
one holds a lock on its folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from models.files.folders import lock

_PREFIX = "simile-retrain-"


@contextlib.contextmanager
def workplace(kept: Path | None) -> Iterator[Path]:
    """`kept`, made when it is not there; else a temporary folder, removed also after a SIGTERM."""
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        with _terminable():
            yield kept
        return
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    held = lock(folder)
    try:
        with _terminable():
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if held is not None:
            os.close(held)


def _sweep() -> None:
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's
            if (held := lock(left)) is not None:
                shutil.rmtree(left, ignore_errors=True)
                os.close(held)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the process as Ctrl-C does, by way of every `finally`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

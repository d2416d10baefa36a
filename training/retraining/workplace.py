"""The work folder of a retraining: a folder that stays, or a temporary folder.

A killed process cannot remove its temporary folder, so the next retraining does. A running process holds a
lock on its folder, which protects the folder.
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
    """Yields the folder `kept`, created if missing. If `kept` is None, yields a temporary folder.

    The temporary folder is removed afterwards, also after SIGTERM.
    """
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
    """Makes SIGTERM end the process like Ctrl-C inside the `with` block, so `finally` blocks run."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

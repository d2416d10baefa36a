"""Locks a folder until its process closes the lock or dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def lock(folder: Path) -> int | None:
    """Returns a descriptor that locks `folder` until it is closed, or None if it is already locked."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor

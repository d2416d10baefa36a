"""A folder held by a living process: whoever dies lets go of it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def lock(folder: Path) -> int | None:
    """A descriptor that locks `folder` until it is closed; None when another holds it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor

"""Threads whose work can wait."""

import contextlib
import os
import sys
import threading

NICE = 10


def be_nice() -> None:
    """From now on the calling thread computes when nobody else wants to."""
    if sys.platform == "linux":  # elsewhere a thread has no priority of its own
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            os.setpriority(os.PRIO_PROCESS, thread, max(NICE, os.getpriority(os.PRIO_PROCESS, thread)))

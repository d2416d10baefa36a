"""The background thread of an index: it makes bases, and measures recall, when the processor has time."""

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import TypeAlias

from service.index.segments import Cancelled

log = logging.getLogger(__name__)

Step: TypeAlias = Callable[[], None]

NICE = 10


class Merger:
    """At most one thread. It ends when no step is due, and is started again by a write or a search."""

    def __init__(self) -> None:
        self.closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._changing = threading.Lock()  # held for moments

    def start(self, due: Callable[[], Step | None]) -> None:
        """Take the step that is `due`, and the next, until there is none."""
        with self._changing:
            if self._thread is None and not self.closing.is_set() and due() is not None:
                self._thread = threading.Thread(
                    target=self._run, args=(due,), name="index-merge", daemon=True
                )
                self._thread.start()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end of the thread, if there is one; True when it has ended."""
        with self._changing:
            thread = self._thread
        if thread is not None:
            thread.join(seconds)
        return thread is None or not thread.is_alive()

    def _run(self, due: Callable[[], Step | None]) -> None:
        lower_priority()
        while True:
            with self._changing:
                step = None if self.closing.is_set() else due()
                if step is None:
                    self._thread = None
                    return
            try:
                step()
            except Cancelled:
                continue
            except Exception:  # a search needs no merge; the next write tries again
                log.exception("Merging the index failed; searches score more rows one by one")
                with self._changing:
                    self._thread = None
                return


def lower_priority() -> None:
    """Let the calling thread compute only while no other wants to."""
    if sys.platform == "linux":  # elsewhere a thread has no priority of its own
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            os.setpriority(os.PRIO_PROCESS, thread, max(NICE, os.getpriority(os.PRIO_PROCESS, thread)))

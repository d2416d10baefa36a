"""The low-priority background thread of an index. It builds bases and measures recall."""

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
    """At most one thread. It ends when no step is due. A write or a search starts it again."""

    def __init__(self) -> None:
        self.closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._changing = threading.Lock()

    def start(self, due: Callable[[], Step | None]) -> None:
        """Runs steps on the thread while `due` returns one."""
        with self._changing:
            if self._thread is None and not self.closing.is_set() and due() is not None:
                self._thread = threading.Thread(
                    target=self._run, args=(due,), name="index-merge", daemon=True
                )
                self._thread.start()

    def wait(self, seconds: float | None = None) -> bool:
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
            except Exception:  # Searches work without the merge, and the next write tries again.
                log.exception("Merging the index failed; searches score more rows one by one")
                with self._changing:
                    self._thread = None
                return


def lower_priority() -> None:
    if sys.platform == "linux":  # Other systems have no priorities of single threads.
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):  # A sandbox may forbid it.
            os.setpriority(os.PRIO_PROCESS, thread, max(NICE, os.getpriority(os.PRIO_PROCESS, thread)))

"""A single text that comes while every worker is idle: all threads compute it together, once that is ready.

    some lone texts ──▶ the graph is opened once more, on a thread of its own ──▶ the next lone texts use it

Workers of a thread each give the most texts a second, and leave all processors but one idle when one person
asks. A service that is never asked for one text at a time does not pay the memory.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from weakref import WeakKeyDictionary, WeakSet

from models.encoder import Encoder
from service import memory
from service.batching.request import Item, Lane
from service.batching.workers import Layout
from service.observability.logs import safe_message

log = logging.getLogger(__name__)

MOST_THREADS = 4  # the products of a short text are too small for more
ENOUGH = 8  # lone texts that a version was asked for, before it is opened once more
RETRY_SECONDS = 60.0  # after it could not be, for the time being
STOP_SECONDS = 5.0  # for an opening in hand; the default model takes half a second


def threads_for_single_text(setting: int, layout: Layout, processors: int) -> int:
    """Number of threads that compute a lone text; 1: it is computed as any other.

    setting: SIMILE_LONE_THREADS.
    """
    threads = setting or min(MOST_THREADS, layout.workers * layout.threads, processors)
    return threads if threads > layout.threads else 1


class SingleTextSession:
    """Asked by the workers, each for the batch in hand."""

    def __init__(self, threads: int, is_idle: Callable[[], bool]) -> None:
        """is_idle: whether nothing waits, and no other worker has anything in hand."""
        self.threads = threads
        self.has_room: Callable[[], bool] = lambda: True  # whether no other version is being opened
        self._is_idle = is_idle
        self._lock = threading.Lock()  # guards what follows
        self._seen: WeakKeyDictionary[Encoder, int] = WeakKeyDictionary()
        self._tried: WeakSet[Encoder] = WeakSet()  # opened once more, or never to be
        self._opening: threading.Thread | None = None
        self._not_before = 0.0  # time.monotonic()

    def takes(self, items: list[Item]) -> bool:
        """True when all threads are to compute `items`: one interactive text, and all there is to do."""
        call = items[0].call
        encoder = call.encoder
        if self.threads == 1 or len(items) > 1 or call.lane is not Lane.INTERACTIVE:
            return False
        if not encoder.opens_alone or not self._is_idle():
            return False
        if encoder.has_alone:
            return True
        self._wish(encoder)
        return False

    def failed(self, encoder: Encoder, error: Exception) -> None:
        """All threads together failed on a text: from now on one worker computes each."""
        with self._lock:
            self._tried.add(encoder)
        if encoder.drop_alone():
            log.warning(
                "Lone texts are computed as any other from now on: the session for them failed: %s",
                safe_message(error),
            )

    def stop(self) -> None:
        """Wait for an opening in hand, for a moment: a process that ends under it could crash."""
        if self._opening is not None:
            self._opening.join(STOP_SECONDS)

    def _wish(self, encoder: Encoder) -> None:
        with self._lock:
            if encoder in self._tried or time.monotonic() < self._not_before:
                return
            if self._opening is not None and self._opening.is_alive():
                return
            self._seen[encoder] = seen = self._seen.get(encoder, 0) + 1
            if seen < ENOUGH:
                return
            self._seen[encoder] = 0
            opening = threading.Thread(target=self._open, args=[encoder], name="open-alone", daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread is to be had: after as many texts again
                opening.start()
                self._opening = opening

    def _open(self, encoder: Encoder) -> None:
        try:
            free = memory.free()
            short = free is not None and free < memory.MODEL * encoder.file_bytes
            if short or not self.has_room():
                log.info("There is no room now to open the model once more: lone texts are no faster for it")
                self._not_before = time.monotonic() + RETRY_SECONDS
                return
            self._tried.add(encoder)
            encoder.open_alone(self.threads)
            memory.give_back()  # the file was read for it
        except Exception as error:  # noqa: BLE001  whatever the runtime raises: without it all goes on as before
            self._tried.add(encoder)
            log.warning("The model could not be opened once more for lone texts: %s", safe_message(error))

"""Computes a single text on several threads while the service is idle. Start reading at `takes`.

    a few single texts ──▶ a thread opens a second session of the model ──▶ later single texts use it

One thread per worker gives the best throughput, but a single text then leaves the other processors idle. The
second session needs memory, so it is opened only after a few single texts.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from weakref import WeakKeyDictionary, WeakSet

from models.open_version import OpenVersion
from service import memory
from service.batching.request import Item, Lane
from service.batching.workers import Layout
from service.observability.logs import safe_message

log = logging.getLogger(__name__)

MAX_THREADS = 4  # The matrix products of a short text are too small for more.
MIN_SINGLE_TEXTS = 8  # single texts before the second session is opened
RETRY_SECONDS = 60.0  # pause after a lack of memory
STOP_SECONDS = 5.0  # Wait for an opening session. The default model takes half a second.


def threads_for_single_text(setting: int, layout: Layout, processors: int) -> int:
    """Returns the number of threads for a single text. 1 turns the second session off.

    `setting` is the value of SIMILE_SINGLE_TEXT_THREADS, where 0 chooses a number.
    """
    threads = setting or min(MAX_THREADS, layout.workers * layout.threads, processors)
    return threads if threads > layout.threads else 1


class SingleTextSession:
    """Decides for each batch whether all threads compute it together."""

    def __init__(self, threads: int, is_idle: Callable[[], bool]) -> None:
        self.threads = threads
        self.has_room: Callable[[], bool] = lambda: True  # Returns False while another version is opened.
        self._is_idle = is_idle
        self._lock = threading.Lock()  # guards the fields below
        self._seen: WeakKeyDictionary[OpenVersion, int] = WeakKeyDictionary()
        self._tried: WeakSet[OpenVersion] = WeakSet()  # Encoders that must not be tried again.
        self._opening: threading.Thread | None = None
        self._not_before = 0.0  # time.monotonic()

    def takes(self, items: list[Item]) -> bool:
        """Returns whether all threads compute `items`: one interactive text in an idle service.

        If the second session is not open yet, requests the session and returns False.
        """
        call = items[0].call
        encoder = call.encoder
        if self.threads == 1 or len(items) > 1 or call.lane is not Lane.INTERACTIVE:
            return False
        if not encoder.opens_single_text or not self._is_idle():
            return False
        if encoder.has_single_text:
            return True
        self._request(encoder)
        return False

    def failed(self, encoder: OpenVersion, error: Exception) -> None:
        """Closes the second session of `encoder` after it failed on a text."""
        with self._lock:
            self._tried.add(encoder)
        if encoder.drop_single_text():
            log.warning(
                "The session for single texts failed and is closed. One worker computes them from now on: %s",
                safe_message(error),
            )

    def stop(self) -> None:
        """Waits for a session that is being opened, because ending the process could crash then."""
        if self._opening is not None:
            self._opening.join(STOP_SECONDS)

    def _request(self, encoder: OpenVersion) -> None:
        with self._lock:
            if encoder in self._tried or time.monotonic() < self._not_before:
                return
            if self._opening is not None and self._opening.is_alive():
                return
            self._seen[encoder] = seen = self._seen.get(encoder, 0) + 1
            if seen < MIN_SINGLE_TEXTS:
                return
            self._seen[encoder] = 0
            opening = threading.Thread(target=self._open, args=[encoder], name="open-alone", daemon=True)
            with contextlib.suppress(RuntimeError):  # No thread is available. Later texts try again.
                opening.start()
                self._opening = opening

    def _open(self, encoder: OpenVersion) -> None:
        try:
            free = memory.free()
            short = free is not None and free < memory.MODEL * encoder.file_bytes
            if short or not self.has_room():
                log.info("Memory is too short to open a second session of the model for single texts")
                self._not_before = time.monotonic() + RETRY_SECONDS
                return
            self._tried.add(encoder)
            encoder.open_single_text(self.threads)
            memory.give_back()  # Opening the session read the whole file.
        except Exception as error:  # noqa: BLE001  the service works without the second session
            self._tried.add(encoder)
            log.warning("The second session for single texts could not be opened: %s", safe_message(error))

"""Keeps the active index complete: at the start, after each commit, and after a failed update.

Start reading at `IndexKeeper.keep_whole` and `IndexKeeper.on_commit`. The store decides which documents
exist. `IndexKeeper` loads their stored vectors into the index, and embeds documents without a vector.
`/ready` shows the progress.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from models.messages import amount
from service.active import Generation, Retired, apply
from service.corpus.corpus import Corpus
from service.corpus.examples import put_examples
from service.errors import ServiceError
from service.lifecycle.builder import Builder
from service.observability import logs, outages
from service.observability.metrics import Metrics
from service.store.values import Changes

log = logging.getLogger(__name__)

RETRY_SECONDS, MAX_SECONDS = 2, 60


class IndexKeeper:
    """Updates and repairs the active index. Must be created on the event loop, before the first commit.

    Args:
        corpus: The documents.
        metrics: Metrics that record how long index updates take.
        ready: Event that is set once, when the start is complete.
        follow: Function that lets the controller begin to activate requested versions.

    """

    def __init__(
        self, corpus: Corpus, metrics: Metrics, ready: threading.Event, follow: Callable[[], None]
    ) -> None:
        self._ready = ready
        self.progress = "starting"
        self._corpus, self._active = corpus, corpus.active
        self._metrics = metrics
        self._follow = follow
        self._loop = asyncio.get_running_loop()
        self._torn = asyncio.Event()  # An update of the active index failed.
        self._tears = 0  # number of failed updates

    @property
    def is_complete(self) -> bool:
        """True if the start is complete and the active index contains every document."""
        return self._ready.is_set() and self._active.generation.is_complete

    async def keep_whole(self) -> None:
        """Completes the active index at the start, and again after each failed update.

        `follow` is called even after a failure, because activating another version may be the only way to
        become ready.
        """
        pause = RETRY_SECONDS
        while True:
            self._torn.clear()
            try:
                await self._make_whole(self._active.generation)
            except Retired:  # Another version is active now.
                continue
            except ServiceError as error:  # A failing model, a full queue or a full disk may recover.
                outages.warn(log, f"Not ready yet, trying again in {RETRY_SECONDS} s: {error.message}")
                self.progress = error.message
                await asyncio.sleep(RETRY_SECONDS)
            except Exception as error:
                log.exception("The index could not be completed. The next attempt is in %d s", pause)
                self.progress = f"the index could not be completed ({logs.safe_message(error)})"
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_SECONDS)
            else:
                pause = RETRY_SECONDS
                await self._torn.wait()
            finally:
                self._follow()

    async def _make_whole(self, generation: Generation) -> None:
        """Loads stored vectors, and embeds documents without a vector.

        At the start, also stores the example documents.
        """
        tears = self._tears
        if not generation.is_complete:
            if not generation.is_loaded:
                await self._corpus.store.load(generation.number, generation.indexes)
                generation.complete_through, generation.is_loaded = 0, True
            self._follow()
            await Builder(self._corpus, generation, self._tell).embed()
            generation.is_complete = True
            if self._tears != tears:  # An update failed on the writer thread meanwhile.
                generation.is_loaded = generation.is_complete = False
                self._torn.set()
                return
        if not self._ready.is_set() and self._active.generation.is_complete:
            self.progress = "loading the example documents"
            await self._corpus.store.fill_with_examples(partial(put_examples, self._corpus))
            self._ready.set()

    def _tell(self, done: int, total: int) -> None:
        self.progress = f"{done} of {amount(total, 'document is', 'documents are')} in the index"

    def on_commit(self, changes: Changes) -> None:
        """Updates the indexes of all generations. Runs on the writer thread, before the write is answered."""
        committed = time.monotonic()
        for generation in self._active.generations:
            try:
                apply(generation, changes)
            except Exception:  # The write is on disk, so the index can be loaded again.
                log.exception("The index of %s could not be updated after a write", generation.version)
                if generation is self._active.generation:
                    self._reload(generation)
                else:
                    self._active.leave(generation)
        self._metrics.index_lag_seconds.observe(time.monotonic() - committed)

    def _reload(self, generation: Generation) -> None:
        """Loads the active index again, on the writer thread.

        If this fails, `keep_whole` repairs the index.
        """
        try:
            if self._corpus.store.reload(generation.number, generation.indexes):
                return
            log.error("The store has damaged vectors. Their texts are embedded again")
        except Exception:  # The write is stored. Searches are rejected until the index is complete.
            log.exception("The index could not be loaded. It is loaded again")
        self._tears += 1
        generation.is_loaded = generation.is_complete = False
        self.progress = "the index could not be updated after a write, and is loaded again"
        self._loop.call_soon_threadsafe(self._torn.set)

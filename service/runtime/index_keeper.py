"""The index in service, kept whole: at the start, behind each commit, and after it could not follow one.

The store is the truth. What the index lacks is loaded from the stored vectors, then embedded, while `/ready`
says how far that is.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from service.corpus.corpus import Corpus
from service.corpus.examples import put_examples
from service.errors import ServiceError
from service.lifecycle.builder import Builder
from service.live import Generation, Retired, apply
from service.observability import logs, outages
from service.observability.metrics import Metrics
from service.store.values import Changes

log = logging.getLogger(__name__)

RETRY_SECONDS, MOST_SECONDS = 2, 60


class IndexKeeper:
    """Made on the event loop, before the first commit."""

    def __init__(
        self, corpus: Corpus, metrics: Metrics, ready: threading.Event, follow: Callable[[], None]
    ) -> None:
        """ready: set once, when the start is complete.

        follow: called when versions that are wanted may be followed.
        """
        self._ready = ready
        self.progress = "starting"
        self._corpus, self._live = corpus, corpus.live
        self._metrics = metrics
        self._follow = follow
        self._loop = asyncio.get_running_loop()
        self._torn = asyncio.Event()  # the index in service could not follow a write
        self._tears = 0  # how often that was

    @property
    def is_complete(self) -> bool:
        """Whether the start is complete, and the active index holds every document."""
        return self._ready.is_set() and self._live.generation.is_complete

    async def keep_whole(self) -> None:
        """Make the index in service whole: at the start, and again when it could not follow a write.

        What is wanted is followed from the first try on, whatever came of it, because going back to the
        version before may be what makes the service ready.
        """
        pause = RETRY_SECONDS
        while True:
            self._torn.clear()
            try:
                await self._make_whole(self._live.generation)
            except Retired:  # another version took its place
                continue
            except ServiceError as error:  # a failing model, a full queue, a full disk: all may pass
                outages.warn(log, f"Not ready yet, trying again in {RETRY_SECONDS} s: {error.message}")
                self.progress = error.message
                await asyncio.sleep(RETRY_SECONDS)
            except Exception as error:
                log.exception("The index could not be made whole; it is tried again in %d s", pause)
                self.progress = (
                    f"the index could not be made whole ({logs.safe_message(error)}); it is tried again"
                )
                await asyncio.sleep(pause)
                pause = min(2 * pause, MOST_SECONDS)
            else:
                pause = RETRY_SECONDS
                await self._torn.wait()
            finally:
                self._follow()

    async def _make_whole(self, generation: Generation) -> None:
        """Load and embed what the index lacks; at the start load the examples, too."""
        tears = self._tears
        if not generation.is_complete:
            if not generation.is_loaded:
                await self._corpus.store.load(generation.number, generation.indexes)
                generation.complete_through, generation.is_loaded = 0, True
            self._follow()
            await Builder(self._corpus, generation, self._tell).embed()
            generation.is_complete = True
            if self._tears != tears:  # the writer's thread may have said so in between: once more
                generation.is_loaded = generation.is_complete = False
                self._torn.set()
                return
        if not self._ready.is_set() and self._live.generation.is_complete:
            self.progress = "loading the example documents"
            await self._corpus.store.fill_with_examples(partial(put_examples, self._corpus))
            self._ready.set()

    def _tell(self, done: int, total: int) -> None:
        self.progress = f"{done} of {total} documents are in the index"

    def on_commit(self, changes: Changes) -> None:
        """On the writer's thread, before the write is answered."""
        committed = time.monotonic()
        for generation in self._live.generations:
            try:
                apply(generation, changes)
            except Exception:  # the write is on disk all the same, and an index can be made anew from there
                log.exception("The index of %s could not follow a write", generation.version)
                if generation is self._live.generation:
                    self._reload(generation)
                else:
                    self._live.leave(generation)
        self._metrics.index_lag_seconds.observe(time.monotonic() - committed)

    def _reload(self, generation: Generation) -> None:
        """Load the live index again, on the writer's thread; what this cannot mend is mended behind it."""
        try:
            if self._corpus.store.reload(generation.number, generation.indexes):
                return
            log.error("The store has damaged vectors; their texts are embedded again")
        except Exception:  # the write is kept, but what the index lacks must not be searched around
            log.exception("The index could not be loaded; it is tried again")
        self._tears += 1
        generation.is_loaded = generation.is_complete = False
        self.progress = "the index could not follow a write, and is loaded again"
        self._loop.call_soon_threadsafe(self._torn.set)

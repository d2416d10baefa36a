"""The few documents that a version lacks at the moment of its swap: they were written just before."""

import asyncio
import logging
from collections.abc import Mapping

from service.corpus.corpus import Corpus
from service.errors import ServiceError
from service.live import Generation
from service.observability.logs import safe_message
from service.store.values import Embedding, Unembedded

log = logging.getLogger(__name__)

SECONDS, MOST_SECONDS = 0.5, 2.0  # that writes wait for them: longer with each attempt


class LastFew:
    """Made on the event loop; called on a thread of the store, while writes wait."""

    def __init__(self, corpus: Corpus, generation: Generation) -> None:
        self._corpus = corpus
        self._generation = generation
        self._loop = asyncio.get_running_loop()
        self._seconds = SECONDS

    def __call__(self, lacking: Mapping[int, Unembedded]) -> Mapping[int, Embedding] | None:
        """Embeddings of documents, by revision; None when that takes too long or fails."""
        work = self._corpus.embed_last(self._generation, lacking)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(self._seconds)
        except (TimeoutError, ServiceError) as error:  # its builder meets them again
            future.cancel()
            log.info("%s is not live yet: %s", self._generation.version, safe_message(error))
            self._seconds = min(2 * self._seconds, MOST_SECONDS)
            return None

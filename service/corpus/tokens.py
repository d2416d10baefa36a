"""Token vectors for late interaction: those of queries, and those of documents, made in the background.

Only collections whose ranking compares tokens have them (models/tokens/late.py). They are derived from the
documents. A document without token vectors is ranked by its other features. Start at `TokenVectors.keep`.
"""

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence

from models.encoder import TokenEncoder
from models.search.ranking import Ranking
from models.tokens.late import Tokens
from service.active import ActiveGeneration, Generation, Retired
from service.batching.batcher import Batcher
from service.batching.request import Lane
from service.corpus.query import Query, Search
from service.errors import Backend, ServiceError, Tokenizer, Validation
from service.observability.logs import safe_message
from service.store.protocol import DocumentStore
from service.store.values import Unembedded

log = logging.getLogger(__name__)

STEP_DOCUMENTS = 16
EVERY_SECONDS = 10.0  # Between two looks for new documents.
AGAIN_SECONDS = 3600.0  # After this time, all documents are looked at again.


class TokenVectors:
    """Computes token vectors by the batcher, and stores those of documents.

    Args:
        active: The active generation and its followers.
        batcher: Computes in the lane of each call.
        store: The document store.
    """

    def __init__(self, active: ActiveGeneration, batcher: Batcher, store: DocumentStore) -> None:
        self._active = active
        self._batcher = batcher
        self._store = store
        self._done: dict[tuple[str, str], int] = {}  # Last revision, by space and collection.

    async def add_to(self, generation: Generation, queries: Sequence[Query], search: Search) -> list[Query]:
        """Returns the queries with their token vectors, if the search compares them."""
        ranking, found = generation.rankings[search.collection], [*queries]
        wanted = [at for at, query in enumerate(queries) if query.text and query.vector is not None]
        if not (search.is_ranked and search.compares_tokens and wanted):
            return found
        texts = [generation.manifest.search_prompt + queries[at].text for at in wanted]
        try:
            tokens = await self._encode(generation, ranking, texts, Lane.INTERACTIVE)
        except ServiceError as error:  # The other features still rank.
            log.debug("A search has no late interaction: %s", safe_message(error))
            return found
        for at, each in zip(wanted, tokens, strict=True):
            found[at] = queries[at]._replace(tokens=each)
        return found

    async def keep(self) -> None:
        """Makes missing token vectors and deletes those that no loaded version needs, again and again."""
        began, sweeps = time.monotonic(), True
        while True:
            if time.monotonic() - began > AGAIN_SECONDS:
                began, sweeps, self._done = time.monotonic(), True, {}
            try:
                needed = [each for each in self._active.generations for _ in list_compared(each)]
                for generation in dict.fromkeys(needed):
                    await self._fill(generation)
                spaces = {one.space for each in needed for _, one in list_compared(each)}
                if sweeps or any(space not in spaces for space, _ in self._done):
                    while await self._store.forget_tokens(sorted(spaces)):
                        pass
                sweeps = False
                self._done = {place: last for place, last in self._done.items() if place[0] in spaces}
            except ServiceError as error:  # The next look tries again.
                log.debug("Token vectors are missing: %s", safe_message(error))
            await asyncio.sleep(EVERY_SECONDS)

    async def _fill(self, generation: Generation) -> None:
        try:
            with generation.held():
                for collection, ranking in list_compared(generation):
                    await self._fill_collection(generation, collection, ranking)
        except Retired:
            return

    async def _fill_collection(self, generation: Generation, collection: str, ranking: Ranking) -> None:
        place = ranking.space, collection
        while not generation.retired:
            after = self._done.setdefault(place, 0)
            step = await self._store.lacking_tokens(*place, after, STEP_DOCUMENTS)
            if not step:
                return
            await self._make(generation, ranking, step)
            self._done[place] = max(step)

    async def _make(
        self, generation: Generation, ranking: Ranking, documents: Mapping[int, Unembedded]
    ) -> None:
        """Computes and stores the token vectors of documents. Those on which the model fails get none."""
        prompt = generation.manifest.document_prompt
        texts = [prompt + each.content.whole for each in documents.values()]
        lane = Lane.BACKGROUND if generation is self._active.generation else Lane.CANDIDATE
        try:
            tokens = await self._encode(generation, ranking, texts, lane)
        except (Backend, Tokenizer, Validation) as error:
            if len(documents) > 1:
                for revision, document in documents.items():
                    await self._make(generation, ranking, {revision: document})
                return
            log.warning("A document gets no token vectors: %s", error.error_type)
            return
        rows = {revision: each.tobytes() for revision, each in zip(documents, tokens, strict=True)}
        await self._store.add_tokens(ranking.space, rows)

    async def _encode(
        self, generation: Generation, ranking: Ranking, texts: Sequence[str], lane: Lane
    ) -> list[Tokens]:
        encoder = generation.token_encoders.get(ranking.space)
        if encoder is None:
            assert ranking.projection is not None  # noqa: S101
            encoder = TokenEncoder(generation.encoder, ranking.projection)
            generation.token_encoders[ranking.space] = encoder
        answer = await self._batcher.embed(encoder, texts, lane=lane, bypass_cache=True)
        return [TokenEncoder.unpack(row) for row in answer.vectors]


def compares_tokens(generation: Generation, ranking: Ranking) -> bool:
    """Returns whether a ranking of this generation compares tokens, and its encoder computes them."""
    return ranking.projection is not None and generation.encoder.has_tokens


def list_compared(generation: Generation) -> Iterator[tuple[str, Ranking]]:
    """Yields the collections whose rankings compare tokens, with their rankings."""
    if generation.fault is None:
        for collection, ranking in generation.rankings.list_own():
            if compares_tokens(generation, ranking):
                yield collection, ranking

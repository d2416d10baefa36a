"""Remembers the judged queries of each collection, as vectors of a generation. Start at `JudgedQueries.get`.

    judgments in the store ─▶ answers by query ─▶ query vectors of a generation ─▶ Memory for the second stage

A search compares the state of the judgments in its snapshot with the state of its memory. If they differ, the
memory is read again first, so a judgment counts in the next search of every replica. Only new queries are
embedded. Judgments of untrusted keys do not count (docs/ACCESS.md).
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from models.search.features import Memory
from service.active import ActiveGeneration, Generation
from service.errors import ServiceError
from service.observability.logs import safe_message
from service.store.protocol import DocumentStore
from service.store.values import JudgmentState

log = logging.getLogger(__name__)

EmbedQueries: TypeAlias = Callable[[Generation, Sequence[str]], Awaitable[NDArray[np.float32]]]
Trusts: TypeAlias = Callable[[str], bool]

MAX_ROWS = 100_000  # Judgments of a collection that are remembered, the latest ones.
WAITED = 64  # New queries that a search waits for. More are embedded in the background.
TOGETHER = 256  # Queries in one call of the batcher.
EVERY_SECONDS = 10.0  # Between two looks for judgments in the background.


@dataclass(frozen=True, slots=True)
class Remembered:
    """The memory of a collection, and what it was made from.

    Attributes:
        state: State of the judgments.
        trust: Whether each key was trusted.
        memory: The judged queries. None if there are none.
        vectors: Vectors of the judged queries by their text.
    """

    state: JudgmentState
    trust: dict[str, bool] = field(default_factory=dict)
    memory: Memory | None = None
    vectors: dict[str, NDArray[np.float32]] = field(default_factory=dict)


class JudgedQueries:
    """The judged queries of all collections.

    Args:
        active: The active generation and its followers.
        store: The document store.
        embed: Returns the vectors of queries, shape (q, d).
    """

    def __init__(self, active: ActiveGeneration, store: DocumentStore, embed: EmbedQueries) -> None:
        self._active = active
        self._store = store
        self._embed = embed
        self._filling: set[str] = (
            set()
        )  # Memories with so many new queries that searches do not wait for them.
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.trusts: Trusts = lambda _: True

    async def get(self, generation: Generation, collection: str, state: JudgmentState) -> Remembered:
        """Returns the memory of a collection.

        Args:
            generation: The generation that is searched.
            collection: Name of the collection.
            state: State of the judgments that the memory must have. It may be a later one. The memory is
                older if it would take long to read, or if this fails.
        """
        known = self._known(generation, collection)
        if known is not None and known.state == state:
            return known
        if _name(generation, collection) not in self._filling:
            try:
                return await self._read(generation, collection, wait=False)
            except ServiceError as error:  # A search works without it.
                log.warning("The judged queries of %r could not be read: %s", collection, safe_message(error))
        return replace(known or Remembered(state), state=state)

    def latest(self, generation: Generation, collection: str) -> Remembered | None:
        """Returns the memory that was read last, or None if it must be read again."""
        known = self._known(generation, collection)
        stale = known is None or any(self.trusts(key) != trusted for key, trusted in known.trust.items())
        return None if stale else known

    async def keep(self) -> None:
        """Reads the judgments of all collections again and again, so that few searches wait for them."""
        while True:
            for generation in self._active.generations:
                for collection in await self._store.judged_collections():
                    try:
                        await self._read(generation, collection, wait=True)
                    except ServiceError as error:  # The next look tries again.
                        log.debug("The judged queries of %r: %s", collection, safe_message(error))
            await asyncio.sleep(EVERY_SECONDS)

    @staticmethod
    def _known(generation: Generation, collection: str) -> Remembered | None:
        known = generation.judged.get(collection)
        return known if isinstance(known, Remembered) else None

    async def _read(self, generation: Generation, collection: str, *, wait: bool) -> Remembered:
        """Reads the judgments, and embeds new queries.

        Args:
            generation: The generation whose model embeds them.
            collection: Name of the collection.
            wait: Whether to embed any number of new queries. Otherwise the memory stays as it is if there are
                many, until `keep` has embedded them.
        """
        name = _name(generation, collection)
        async with self._locks[name]:
            known = self._known(generation, collection) or Remembered(JudgmentState(0, 0))
            state = await self._store.judgment_state(collection)
            if known.state == state and all(self.trusts(key) == trust for key, trust in known.trust.items()):
                return known
            state, rows = await self._store.remembered(collection, MAX_ROWS)
            trust = {key: self.trusts(key) for key in {row.key for row in rows}}
            votes: defaultdict[str, Counter[str]] = defaultdict(Counter)
            for row in rows:
                if row.trusted and trust[row.key]:
                    votes[row.query][row.id] += 1 if row.relevant else -1
            vectors = {query: known.vectors[query] for query in votes if query in known.vectors}
            new = [query for query in votes if query not in vectors]
            if len(new) > WAITED:
                self._filling.add(name)
                if not wait:
                    return replace(known, state=state)
            with self._active.borrow(generation.version):
                for first in range(0, len(new), TOGETHER):
                    some = new[first : first + TOGETHER]
                    vectors |= dict(zip(some, await self._embed(generation, some), strict=True))
            memory = None
            if vectors:
                # Keys that disagree evenly say nothing.
                answers = [{id: sum_ > 0 for id, sum_ in votes[query].items() if sum_} for query in vectors]
                memory = Memory(np.array([*vectors.values()]), answers)
            generation.judged[collection] = found = Remembered(state, trust, memory, vectors)
            self._filling.discard(name)
            return found


def _name(generation: Generation, collection: str) -> str:
    return f"{generation.number}/{collection}"

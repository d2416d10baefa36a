"""Remembers the judged and clicked queries of each collection. Start at `JudgedQueries.get`.

    judgments and clicked answers in the store ─▶ answers by query ─▶ query vectors of a generation ─▶ Memory

The store changes the state string of a collection whenever its judgments or clicked answers change. A search
compares the state in its snapshot with the state of its memory. If the two differ, the memory is read again
first, so a judgment counts in the next search of every replica. Only new queries are embedded. Those on which
the model fails are left out. Judgments of untrusted keys do not count (docs/ACCESS.md). Each key, and all
keys that name one visitor, have one vote on a query and a document, as in a retraining (judgements.py). A
retraining aggregates the clicks. A judgment overrides the clicks on its document.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from models.search.features import Memory
from service.active import ActiveGeneration, Generation, Retired
from service.batching.batcher import HANGS
from service.batching.request import Lane
from service.errors import Backend, ServiceError, Tokenizer, Validation
from service.observability.logs import safe_message
from service.store.protocol import DocumentStore
from service.store.values import NO_KEY, Judgment

log = logging.getLogger(__name__)

Answers: TypeAlias = Mapping[str, Mapping[str, float]]  # Of each query: document id to gain, 0 to 1.
EmbedQueries: TypeAlias = Callable[[Generation, Sequence[str], Lane | None], Awaitable[NDArray[np.float32]]]

UNREAD = "unread"  # State of a memory before the first read; no store has it.
MAX_ROWS = 20_000  # Judgments of a collection that are remembered, the latest ones, and its queries.
WAITED = 64  # New queries that a search waits for. More are embedded in the background.
WAIT_SECONDS = 1.0  # A search waits at most this long for its memory. Then it uses the one before.
TOGETHER = 256  # Queries in one call of the batcher.
EVERY_SECONDS = 10.0  # Between two checks for judgments in the background.
AGAIN_SECONDS = 60.0  # A query on which the model fails is embedded again after this time.


@dataclass(frozen=True, slots=True)
class Remembered:
    """The memory of a collection with its sources.

    Attributes:
        state: State of the judgments in the store when they were read.
        trust: Whether each key was trusted then.
        answers: The gain of each document, by query.
        memory: The judged queries with their vectors. None without vectors.
        rows: Row of each query in the vectors of `memory`.
        missing: Queries that are not embedded yet.
        failed: Queries on which the model fails, with the time.
    """

    state: str = UNREAD
    trust: Mapping[str, bool] = field(default_factory=dict)
    answers: Answers = field(default_factory=dict)
    memory: Memory | None = None
    rows: Mapping[str, int] = field(default_factory=dict)
    missing: Sequence[str] = ()
    failed: Mapping[str, float] = field(default_factory=dict)

    def list_expired(self) -> list[str]:
        """Returns the queries that failed so long ago that they are embedded again."""
        return [query for query, at in self.failed.items() if time.monotonic() - at >= AGAIN_SECONDS]

    def vector(self, query: str) -> NDArray[np.float32] | None:
        if self.memory is None or query not in self.rows:
            return None
        found: NDArray[np.float32] = self.memory.vectors[self.rows[query]]
        return found


class JudgedQueries:
    """The judged queries of all collections.

    Args:
        active: The active generation and its followers.
        store: The document store.
        embed: Returns the vectors of queries, shape (q, d). The last argument is the lane of the batcher.
    """

    def __init__(self, active: ActiveGeneration, store: DocumentStore, embed: EmbedQueries) -> None:
        self._active = active
        self._store = store
        self._embed_queries = embed
        self._locks: defaultdict[tuple[int, str], asyncio.Lock] = defaultdict(asyncio.Lock)
        self.trusts: Callable[[str], bool] = lambda _: True

    def latest(self, generation: Generation, collection: str) -> Remembered:
        """Returns the latest memory. Its state is UNREAD if it must be read again."""
        known = generation.judged.get(collection)
        if not isinstance(known, Remembered):
            return Remembered()
        same = all(self.trusts(key) == trusted for key, trusted in known.trust.items())
        return known if same else replace(known, state=UNREAD)

    async def get(self, generation: Generation, collection: str, state: str) -> Remembered:
        """Returns the memory of a collection.

        Args:
            generation: The generation that is searched. The caller has borrowed it.
            collection: Name of the collection.
            state: State of the judgments that the memory must have. If reading fails or takes too long, the
                earlier memory is returned.
        """
        known = self.latest(generation, collection)
        if known.state == state:
            return known
        reading = asyncio.ensure_future(self._read(generation, collection))
        try:
            return await asyncio.wait_for(asyncio.shield(reading), WAIT_SECONDS)
        except Exception as error:  # noqa: BLE001  a search works without its memory
            reading.add_done_callback(_ignore)
            log.warning("The judged queries of %r could not be read: %s", collection, safe_message(error))
            return known

    async def keep(self) -> None:
        """Reads judgments and clicks again and again, so that few searches wait for them."""
        while True:
            try:
                names = await self._store.judged_collections()
                for generation in self._active.generations:
                    await self._keep(generation, names)
            except ServiceError as error:  # The next check tries again.
                log.debug("Judged queries: %s", safe_message(error))
            await asyncio.sleep(EVERY_SECONDS)

    async def _keep(self, generation: Generation, names: Sequence[str]) -> None:
        for gone in generation.judged.keys() - {*names}:
            del generation.judged[gone]
        if generation.fault is not None:
            return
        for collection in names:
            try:
                with generation.held():
                    found = await self._read(generation, collection)
                    while found.missing:
                        found = await self._embed_more(generation, collection, found.missing[:TOGETHER])
                    for query in found.list_expired():
                        await self._embed_more(generation, collection, [query])
            except Retired:
                return
            except ServiceError as error:  # The next check tries again.
                log.debug("Judged queries of %r: %s", collection, safe_message(error))

    async def _read(self, generation: Generation, collection: str) -> Remembered:
        """Reads the judgments and clicks if they changed. Embeds new queries if at most WAITED are new."""
        async with self._locks[generation.number, collection]:
            known = self.latest(generation, collection)
            if known.state == await self._store.judgment_state(collection):
                return known
            state, rows, clicked = await self._store.remembered(collection, MAX_ROWS)
            trust = {key: self.trusts(key) for key in {row.key for row in rows}}
            answers = await asyncio.to_thread(_combine, [row for row in rows if trust[row.key]], clicked)
            failed = {query: at for query, at in known.failed.items() if query in answers}
            new = [query for query in answers if query not in known.rows and query not in failed]
            some = new if len(new) <= WAITED else []
            found = replace(known, state=state, trust=trust, answers=answers, failed=failed)
            return await self._embed(generation, collection, found, some, Lane.INTERACTIVE)

    async def _embed_more(
        self, generation: Generation, collection: str, queries: Sequence[str]
    ) -> Remembered:
        """Embeds some missing queries in the background."""
        async with self._locks[generation.number, collection]:
            known = self.latest(generation, collection)
            return await self._embed(generation, collection, known, queries, None)

    async def _embed(
        self,
        generation: Generation,
        collection: str,
        found: Remembered,
        queries: Sequence[str],
        lane: Lane | None,
    ) -> Remembered:
        """Embeds queries, and builds the memory from all known vectors."""
        vectors = await self._embed_each(generation, queries, lane) if queries else {}
        failed = {query: at for query, at in found.failed.items() if query not in vectors}
        now = dict.fromkeys((query for query in queries if query not in vectors), time.monotonic())
        if new := now.keys() - failed.keys():
            log.warning("Judged queries of %r on which the model fails: %d", collection, len(new))
        found = replace(found, failed=failed | now)
        unrelated = generation.encoder.unrelated
        found = await asyncio.to_thread(_assemble, found, vectors, unrelated)
        generation.judged[collection] = found
        return found

    async def _embed_each(
        self, generation: Generation, queries: Sequence[str], lane: Lane | None
    ) -> dict[str, NDArray[np.float32]]:
        """Returns the vectors of queries without those on which the model fails."""
        try:
            return dict(zip(queries, await self._embed_queries(generation, queries, lane), strict=True))
        except (Backend, Tokenizer, Validation) as error:
            if error.message == HANGS:  # Each query could block another worker.
                raise
            if len(queries) == 1:
                return {}
            made = await asyncio.gather(*(self._embed_each(generation, [query], lane) for query in queries))
            if not any(made):  # The model is the cause, not a query.
                raise
            return {query: vector for each in made for query, vector in each.items()}


def _ignore(reading: asyncio.Future[Remembered]) -> None:
    if not reading.cancelled():
        reading.exception()


def _combine(rows: Sequence[Judgment], clicked: Answers) -> Answers:
    """Returns the answers of each query. If the votes on a document are tied, it gets no answer.

    Clicks count only for documents without a judgment. Clicked queries are added up to MAX_ROWS queries.

    Args:
        rows: The judgments, latest first.
        clicked: The clicked answers.
    """
    newest: defaultdict[tuple[str, str], dict[str, Judgment]] = defaultdict(dict)  # Of each key.
    for row in rows:
        newest[" ".join(row.query.split()), row.id].setdefault(row.key, row)
    answers: dict[str, dict[str, float]] = {}
    for (query, id), said in newest.items():
        gains = answers.setdefault(query, {})
        votes = {_get_voter(row): row.relevant for row in reversed(said.values())}
        if 2 * sum(votes.values()) != len(votes):
            gains[id] = float(2 * sum(votes.values()) > len(votes))
    for query, clicks in clicked.items():
        if query in answers or len(answers) < MAX_ROWS:
            own = {id: gain for id, gain in clicks.items() if (query, id) not in newest}
            answers[query] = answers.get(query, {}) | own
    return answers


def _get_voter(row: Judgment) -> str:
    """Returns the visitor, if a key named one, or the key. Callers without a key are one voter."""
    return f"visitor {row.visitor}" if row.visitor and row.key != NO_KEY else row.key


def _assemble(found: Remembered, new: Mapping[str, NDArray[np.float32]], unrelated: float) -> Remembered:
    """Returns `found` with a memory of all queries whose vectors are in `found` or in `new`."""
    all_vectors = {query: new[query] if query in new else found.vector(query) for query in found.answers}
    vectors = {query: vector for query, vector in all_vectors.items() if vector is not None}
    missing = [query for query in found.answers if query not in vectors and query not in found.failed]
    memory = None
    if vectors:
        memory = Memory(np.array([*vectors.values()]), [found.answers[query] for query in vectors], unrelated)
    rows = {query: row for row, query in enumerate(vectors)}
    return replace(found, memory=memory, rows=rows, missing=missing)

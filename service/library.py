"""Documents and their search: the store, the index and the encoder, used together.

A write is embedded, committed and in the index before it is answered. A search borrows one generation for
its whole life, so its query and the vectors it is compared with come from one model.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from service.batcher import Batcher
from service.calls import Lane
from service.documents import DEFAULT_COLLECTION, Document, Documents, texts
from service.embedding import DocumentEncoder
from service.errors import Conflict, ServiceError, Unhealthy
from service.gaps import lacking
from service.live import Generation, Live
from service.passing import Passing
from service.revisions import MAX_COLLECTIONS, NeedsVectors, delete, upsert
from service.rows import revision_of
from service.searching import Hit, Query, Search, find
from service.vectors import Embedding
from service.where import Where
from service.writer import Changes, Writer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stored:
    """What a write did: texts the model does not see whole, the operation sequence, tokens computed."""

    truncated: int
    sequence: int
    tokens: int
    version: str  # that was in service, and computed them


class Library:
    """The document side of the service."""

    def __init__(
        self,
        live: Live,
        batcher: Batcher,
        documents: Documents,
        writer: Writer,
        *,
        passages: bool = True,
        max_collections: int = MAX_COLLECTIONS,
    ) -> None:
        """passages: texts that are longer than the model reads are split."""
        self._max_collections = max_collections
        self.live = live
        self.documents = documents
        self.writer = writer
        self._batcher = batcher
        self._passing = Passing()
        self._encoder = DocumentEncoder(batcher, passages=passages)

    @property
    def alone_threads(self) -> int:
        """How many threads compute a lone text together; 1: it is computed as any other."""
        return self._batcher.alone.threads

    async def put(self, documents: Sequence[Document], collection: str = DEFAULT_COLLECTION) -> Stored:
        """Store `documents` (distinct ids); a text that is stored unchanged is not embedded again.

        What changed is embedded by the live generation and by those that follow it. A follower that fails
        on a text fails nobody: its builder finds the gap.
        """
        stored = await self.documents.read(
            lambda connection: texts(connection, [d.id for d in documents], collection)
        )
        changed = {at for at, document in enumerate(documents) if stored.get(document.id) != document.text}
        embedded: dict[int, dict[int, Embedding]] = {}
        while True:
            with self.live.borrow_all() as generations:
                await self._embed_changed(generations, documents, changed, embedded)
                try:
                    job = partial(
                        upsert,
                        documents=documents,
                        embedded=embedded,
                        split=self._encoder.passages,
                        collection=collection,
                        max_collections=self._max_collections,
                    )
                    truncated, number = await self.writer.run(job)
                    # The live generation's; what followers compute is the service's own affair.
                    fresh = embedded[generations[0].number].values()
                    tokens = sum(embedding.tokens for embedding in fresh)
                    return Stored(truncated, number, tokens, generations[0].version)
                except NeedsVectors as error:  # changed by somebody else since we looked, or a swap came
                    changed.update(error.positions)

    async def _embed_changed(
        self,
        generations: Sequence[Generation],
        documents: Sequence[Document],
        changed: set[int],
        embedded: dict[int, dict[int, Embedding]],
    ) -> None:
        """Fill `embedded` (generation to position to embedding) where it lacks a changed document."""

        async def by(generation: Generation) -> None:
            rows = embedded.setdefault(generation.number, {})
            lacking = sorted(changed - rows.keys())
            fresh = await self.embed(generation, [documents[at].text for at in lacking])
            rows.update(zip(lacking, fresh, strict=True))

        live, *followers = generations
        tasks = [asyncio.ensure_future(_lenient(by(follower))) for follower in followers]
        try:
            await by(live)
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def delete(self, where: Where, collection: str = DEFAULT_COLLECTION) -> tuple[int, int]:
        """Delete what passes `where`: how many there were, and the operation sequence."""
        return await self.writer.run(lambda transaction: delete(transaction, where, collection))

    async def embed(self, generation: Generation, documents: Sequence[str]) -> list[Embedding]:
        """Embed documents' texts in the background lane, with the model's document prompt."""
        return await self._encoder.embed(generation, documents)

    async def embed_queries(self, generation: Generation, queries: Sequence[str]) -> NDArray[np.float32]:
        """Vectors (n, dimension) of queries nobody waits for: background lane, the model's search prompt."""
        prompt = generation.manifest.search_prompt
        encoded = await self._batcher.embed(
            generation.encoder, [prompt + query for query in queries], lane=Lane.BACKGROUND
        )
        return encoded.vectors

    @staticmethod
    def check_whole(generation: Generation) -> None:
        """Refuse a search, before it costs anything, while the index does not hold every document.

        Raises:
            Unhealthy: it is being rebuilt.

        """
        if not generation.whole:
            raise Unhealthy(
                "The index is being rebuilt; GET /ready shows how far it is. Embedding works meanwhile.",
                retry_after_seconds=5,
            )

    async def check_kept(self, generation: Generation) -> None:
        """Refuse to search a version that was asked for by name, unless it holds every document.

        One that is not in service may lack what was written since: its failures fail no write.

        Raises:
            Unhealthy: it is in service, and being rebuilt.
            Conflict: it is not in service, and lacks documents.

        """
        if generation is self.live.generation:
            self.check_whole(generation)
            return
        number, after = generation.number, generation.complete_to
        gaps = await self.documents.read(lambda connection: lacking(connection, number, after, 1))
        if gaps or not generation.whole:
            raise Conflict(
                f"{generation.version} does not hold every document, so it cannot be searched; "
                f"{self.live.generation.version} is in service."
            )

    async def search(
        self, generation: Generation, queries: Sequence[Query], search: Search
    ) -> list[list[Hit]]:
        """The hits of each of `queries`, whose vectors the caller made with the encoder of `generation`.

        Raises:
            TooMuch: they have more than `search.most` characters together.

        """
        return await self.documents.read(
            lambda connection: find(connection, generation, queries, search, self._passing)
        )


async def _lenient(embedding: Awaitable[None]) -> None:
    """A follower's part of a write, which may fail without failing the write."""
    with contextlib.suppress(ServiceError):
        await embedding


def apply(generation: Generation, changes: Changes) -> None:
    """Bring a generation's indexes up to date with a commit; runs on the writer's thread."""
    rows = dict(changes.added.get(generation.number, []))  # loaded and written in one commit: the last counts
    if not rows and not changes.removed and changes.sequence <= generation.indexes.sequence:
        return
    place = changes.elsewhere.get
    named: defaultdict[str, list[int]] = defaultdict(list)
    for name in rows:
        named[place(revision_of(name), DEFAULT_COLLECTION)].append(name)
    removed: defaultdict[str, list[int]] = defaultdict(list)
    for revision in changes.removed:
        removed[place(revision, DEFAULT_COLLECTION)].append(revision)
    added = {
        collection: (np.array(names, np.int64), np.array([rows[name] for name in names], np.float32))
        for collection, names in named.items()
    }
    generation.indexes.apply(added, removed, changes.sequence)

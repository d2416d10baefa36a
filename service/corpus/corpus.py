"""Documents and their search: the store, the index and the encoder, used together.

A write is embedded by the version in service, committed and in its index before it is answered. What other
versions have by then goes along; what they lack is filled in behind it (catch_up.py). A search borrows one
generation for its whole life, so its query and the vectors it is compared with come from one model.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from models.search.content import Content
from service.batching.batcher import Batcher
from service.batching.request import Lane
from service.corpus.embedder import DocumentEncoder
from service.corpus.search import Hits, Query, Search, find
from service.errors import Conflict, Hung, ServiceError, Storage, Timeout, Unhealthy
from service.live import Generation, Live
from service.observability.logs import safe_message
from service.store.filters.predicate import Predicate
from service.store.protocol import Store
from service.store.values import (
    DEFAULT_COLLECTION,
    DELETE_DOCUMENTS,
    MAX_COLLECTIONS,
    Document,
    Embedding,
    Moved,
    NeedsVectors,
    Unembedded,
)

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stored:
    """Result of a write: texts the model does not see whole, the operation sequence, tokens computed."""

    truncated: int
    sequence: int
    tokens: int
    version: str  # that was in service, and computed them
    created: int  # documents whose id was new


class Corpus:
    """The document side of the service."""

    def __init__(
        self,
        live: Live,
        batcher: Batcher,
        store: Store,
        *,
        passages: bool = True,
        max_collections: int = MAX_COLLECTIONS,
    ) -> None:
        """passages: long texts are split."""
        self._max_collections = max_collections
        self.live = live
        self.store = store
        self._batcher = batcher
        self._encoder = DocumentEncoder(batcher, passages=passages)
        self.on_gap: Callable[[], None] = _nothing  # told when a write left a follower without a vector

    @property
    def alone_threads(self) -> int:
        """Threads that compute a single text together; 1: it is computed as any other."""
        return self._batcher.single_text.threads

    async def put(self, documents: Sequence[Document], collection: str = DEFAULT_COLLECTION) -> Stored:
        """Store `documents` (distinct ids); title and text that are stored unchanged are not embedded again.

        What changed is embedded by the live generation. Those that follow it embed it at the same time, and
        no write waits for them or fails with them: what they lack at the commit is filled in later.
        """
        same = await self.store.unchanged(documents, collection)
        changed = {*range(len(documents))} - same
        embedded: dict[int, dict[int, Embedding]] = {}
        while True:
            with self.live.borrow_all() as generations:
                live, *followers = generations
                for generation in generations:  # the writer's thread goes through it
                    embedded.setdefault(generation.number, {})
                following = [
                    asyncio.ensure_future(self._follow(follower, documents, collection, changed, embedded))
                    for follower in followers
                    if follower.fault is None
                ]
                try:
                    await self._embed_changed(live, documents, collection, changed, embedded)
                    put = await self.store.put(
                        documents,
                        embedded,
                        split=self._encoder.passages,
                        collection=collection,
                        max_collections=self._max_collections,
                    )
                    # The live generation's; what followers compute is the service's own affair.
                    tokens = sum(embedding.tokens for embedding in embedded[live.number].values())
                    if not put.gaps.isdisjoint(follower.number for follower in followers):
                        self.on_gap()
                    return Stored(put.truncated, put.sequence, tokens, live.version, put.created)
                except NeedsVectors as error:  # changed by another write since, or a swap came
                    changed.update(error.positions)
                    if error.live != live.number:
                        await self.live.left(live)
                finally:
                    for task in following:
                        task.cancel()

    async def _embed_changed(
        self,
        generation: Generation,
        documents: Sequence[Document],
        collection: str,
        changed: set[int],
        embedded: dict[int, dict[int, Embedding]],
    ) -> None:
        """Fill `embedded` (generation to position to embedding) where it lacks a changed document."""
        rows = embedded[generation.number]
        lacking = sorted(changed - rows.keys())
        contents = [documents[at].content for at in lacking]
        fresh = await self.embed(generation, contents, [collection] * len(contents))
        # In one assignment, since the writer's thread may be reading it.
        embedded[generation.number] = rows | dict(zip(lacking, fresh, strict=True))

    async def _follow(
        self,
        follower: Generation,
        documents: Sequence[Document],
        collection: str,
        changed: set[int],
        embedded: dict[int, dict[int, Embedding]],
    ) -> None:
        """A follower's part of a write. Its failures are its builder's, who meets them again."""
        try:
            await self._embed_changed(follower, documents, collection, changed, embedded)
        except Hung as error:
            if follower is not self.live.generation:  # it may have gone live meanwhile
                follower.fault = error.message
        except ServiceError as error:
            log.debug("%s left a write to its builder: %s", follower.version, error.error_type)
        except Exception as error:  # noqa: BLE001  a bug of the model or of ours, and no matter of the write's
            log.warning("%s left a write to its builder: %s", follower.version, safe_message(error))

    async def delete(self, where: Predicate | None, collection: str = DEFAULT_COLLECTION) -> tuple[int, int]:
        """Delete what passes `where` now (None: all): how many were deleted, and the operation sequence.

        In steps, with other writes between them. Each step is on disk before the next, oldest documents
        first; a document that is stored or changed meanwhile stays.

        Raises:
            Storage: a step failed. The message says how many documents were deleted before.

        """
        revisions, number = await self.store.matching(where, collection)
        done = deleted = 0
        while done < len(revisions):
            try:
                step = await self.store.delete_some(revisions[done : done + DELETE_DOCUMENTS], collection)
            except (Storage, Timeout, Unhealthy) as error:
                said = f"{error.message} {deleted} of {len(revisions)} documents were deleted before that."
                raise type(error)(said, headers=error.headers) from error
            done, deleted, number = done + step.done, deleted + step.deleted, step.sequence
        return deleted, number

    async def drop(self, collection: str) -> tuple[int, int]:
        """Delete a collection with its documents and judgements, in steps. Returns and raises as `delete`.

        The default one stays, and so does one to which documents were written meanwhile.
        """
        deleted = await self.delete(None, collection)
        while await self.store.drop_judgements(collection):
            pass
        await self.store.drop_collection(collection)
        return deleted

    def close(self) -> None:
        """Embed nothing more."""
        self._encoder.close()

    async def in_service(self, work: Callable[[Generation], Awaitable[T]], version: str | None) -> T:
        """`work` with the generation in service; again with the next one where that went live elsewhere.

        version: that one instead, where it is kept.
        """
        while True:
            with self.live.borrow(version) as generation:
                try:
                    return await work(generation)
                except Moved:
                    pass
            await self.live.left(generation)

    async def embed(
        self, generation: Generation, documents: Sequence[Content], collections: Sequence[str]
    ) -> list[Embedding]:
        """Embed documents with the model's document prompt, in the lane of its generation.

        collections: of each of them.
        """
        return await self._encoder.embed(generation, documents, collections, self._lane(generation))

    async def embed_last(
        self, generation: Generation, documents: Mapping[int, Unembedded]
    ) -> dict[int, Embedding]:
        """Embed documents, by revision, before anything else: writes wait for it."""
        contents = [document.content for document in documents.values()]
        collections = [document.collection for document in documents.values()]
        made = await self._encoder.embed(generation, contents, collections, Lane.INTERACTIVE)
        return dict(zip(documents, made, strict=True))

    def _lane(self, generation: Generation) -> Lane:
        return Lane.BACKGROUND if generation is self.live.generation else Lane.CANDIDATE

    async def embed_queries(self, generation: Generation, queries: Sequence[str]) -> NDArray[np.float32]:
        """Vectors (n, dimension) of queries that no request waits for, with the model's search prompt."""
        prompt = generation.manifest.search_prompt
        encoded = await self._batcher.embed(
            generation.encoder.for_queries, [prompt + query for query in queries], lane=self._lane(generation)
        )
        return encoded.vectors

    @staticmethod
    def check_whole(generation: Generation) -> None:
        """Refuse a search, before it costs anything, while the index does not hold every document.

        Raises:
            Unhealthy: it is being rebuilt.

        """
        if not generation.is_complete:
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
        gaps = await self.store.lacking(generation.number, generation.complete_through, 1)
        if gaps or not generation.is_complete:
            raise Conflict(
                f"{generation.version} does not hold every document, so it cannot be searched; "
                f"{self.live.generation.version} is in service."
            )

    def search(
        self,
        generation: Generation,
        queries: Sequence[Query],
        search: Search,
        then: Callable[[Hits], T],
        *,
        kept: bool,
    ) -> Coroutine[Any, Any, T]:
        """`then` of each query's hits, made on the reading thread.

        Args:
            generation: its encoder made the vectors of `queries`.
            queries: what to look for.
            search: how, and how many.
            then: what to make of the hits.
            kept: the generation need not be the one in service.

        Raises:
            TooMuch: they have more than `search.max_bytes` bytes together.
            Moved: another generation is in service, by another process.

        """
        work = partial(find, generation=generation, queries=queries, search=search, then=then, kept=kept)
        return self.store.search(work, heavy=search.is_heavy(len(queries)))


def _nothing() -> None:
    """The gap's observer where no follower is looked after."""

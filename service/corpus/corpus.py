"""Writes and searches documents. Start reading at `Corpus.put` and `Corpus.search`.

The service answers a write after the active version has embedded the documents, and after they are committed
and indexed. Followers are the other loaded versions. Vectors that followers have computed by then are
committed with the write. Missing vectors are added later (CatchUp in lifecycle/builder.py). A search uses one
generation from start to end, so the vectors of queries and documents come from one model.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from models.messages import amount
from models.search.content import Content
from service.active import ActiveGeneration, Generation
from service.auth.key_scope import KeyScope
from service.batching.batcher import Batcher
from service.batching.request import Lane
from service.corpus.embedder import DocumentEncoder
from service.corpus.highlighting import Highlighting
from service.corpus.judged import JudgedQueries, Remembered
from service.corpus.query import Judged, Page, Query, Rival, Search
from service.corpus.reranking import NotReranked, Reranking
from service.corpus.rewriting import Rewritten, rewrite_all
from service.corpus.search import find
from service.corpus.tenants import Tenants, build_bounds, stamp
from service.corpus.tokens import TokenVectors
from service.errors import Conflict, Hung, Overloaded, ServiceError, Storage, Timeout, Unhealthy
from service.observability.logs import safe_message
from service.settings import Settings
from service.store.filters.grammar import Predicate
from service.store.protocol import DocumentStore
from service.store.values import (
    COLUMNS,
    DEFAULT_COLLECTION,
    DELETE_DOCUMENTS,
    Column,
    Document,
    Embedding,
    NeedsVectors,
    TooMuch,
    Unembedded,
)

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stored:
    """Result of a write."""

    truncated: int  # documents that the model does not see completely
    sequence: int  # operation number of the store
    tokens: int  # tokens that the active version computed
    version: str  # the active version
    created: int  # documents with a new id
    unknown: int  # documents that were embedded and have words outside the model's vocabulary


@dataclass(frozen=True, slots=True)
class _Write:
    """The state of a write while its documents are embedded."""

    documents: Sequence[Document]
    collection: str
    changed: set[int]  # positions of the documents to embed
    embedded: dict[int, dict[int, Embedding]]  # by generation and position


class Corpus:
    """Writes, deletes and searches documents.

    Args:
        active: The active generation and its followers.
        batcher: Embeds texts.
        store: The document store.
        settings: The service's settings. `passages` says whether long texts are split.
    """

    def __init__(
        self, active: ActiveGeneration, batcher: Batcher, store: DocumentStore, settings: Settings
    ) -> None:
        self.active = active
        self.store = store
        self._batcher = batcher
        self._settings = settings
        self._tenants = Tenants(store)
        self._encoder = DocumentEncoder(batcher, passages=settings.passages)
        self.judged = JudgedQueries(active, store, self.embed_queries)
        self.tokens = TokenVectors(active, batcher, store)
        self._reranking = Reranking(active.reranker, batcher, settings.rerank_seconds)
        self._highlighting = Highlighting(batcher)
        self.on_gap: Callable[[], None] = lambda: None  # Called if a follower has no vector after a write.

    @property
    def single_text_threads(self) -> int:
        """Number of threads that compute a single text together. 1 means that this is off."""
        return self._batcher.single_text.threads

    async def put(
        self,
        documents: Sequence[Document],
        collection: str = DEFAULT_COLLECTION,
        scope: KeyScope | None = None,
    ) -> Stored:
        """Stores documents with distinct ids. Unchanged titles and texts are not embedded again.

        Followers embed the changes at the same time as the active generation. A write does not wait for
        followers, and does not fail if they fail. Missing vectors of followers are added later.

        Args:
            documents: The documents.
            collection: Name of the collection, which is in the scope.
            scope: The scope of the key that sends the documents. None: there are no bounds.

        Raises:
            Validation: A document contradicts the filter of the scope.
            Forbidden: An id belongs to a document outside of the scope.
            Conflict: A quota of the scope would be exceeded, or there are too many collections.
        """
        if scope is not None:
            documents = stamp(scope, documents)
        within = build_bounds(self.store, scope)
        await self.store.check_ids([document.id for document in documents], collection, within)
        async with self._tenants.reserved(scope, documents, collection):
            return await self._put(documents, collection, within)

    async def _put(self, documents: Sequence[Document], collection: str, within: Predicate | None) -> Stored:
        same = await self.store.unchanged(documents, collection)
        embedded: dict[int, dict[int, Embedding]] = {}
        write = _Write(documents, collection, {*range(len(documents))} - same, embedded)
        while True:
            with self.active.borrow_all() as generations:
                active, *followers = generations
                for generation in generations:  # The writer thread iterates over `embedded`.
                    embedded.setdefault(generation.number, {})
                following = [
                    asyncio.ensure_future(self._follow(follower, write))
                    for follower in followers
                    if follower.fault is None
                ]
                try:
                    await self._embed_changed(active, write)
                    put = await self.store.put(
                        documents,
                        embedded,
                        split=self._settings.passages,
                        collection=collection,
                        max_collections=self._settings.max_collections,
                        within=within,
                    )
                    # Tokens of followers are not charged to the client.
                    made = embedded[active.number].values()
                    tokens = sum(embedding.tokens for embedding in made)
                    unknown = sum(embedding.unknown > 0 for embedding in made)
                    if not put.gaps.isdisjoint(follower.number for follower in followers):
                        self.on_gap()
                    said = active.version, put.created, unknown
                    return Stored(put.truncated, put.sequence, tokens, *said)
                except NeedsVectors as error:  # Another write, or a swap, came first.
                    write.changed.update(error.positions)
                finally:
                    for task in following:
                        task.cancel()

    async def _embed_changed(self, generation: Generation, write: _Write) -> None:
        rows = write.embedded[generation.number]
        missing = sorted(write.changed - rows.keys())
        contents = [write.documents[at].content for at in missing]
        added = await self.embed(generation, contents, [write.collection] * len(contents))
        # One assignment, because the writer thread may be reading the dictionary.
        write.embedded[generation.number] = rows | dict(zip(missing, added, strict=True))

    async def _follow(self, follower: Generation, write: _Write) -> None:
        """Embeds the documents of a write for a follower.

        If this fails, the follower's builder embeds the documents later. A follower whose model hangs gets a
        `fault`, and later writes skip it.
        """
        try:
            await self._embed_changed(follower, write)
        except Hung as error:
            if follower is not self.active.generation:  # A swap may have made it active.
                follower.fault = error.message
        except ServiceError as error:
            log.debug("%s will embed a write later: %s", follower.version, error.error_type)
        except Exception as error:  # noqa: BLE001  a bug of a follower must not fail the write
            log.warning("%s will embed a write later: %s", follower.version, safe_message(error))

    async def delete(self, where: Predicate | None, collection: str = DEFAULT_COLLECTION) -> tuple[int, int]:
        """Deletes the documents that match `where` when this is called, or all documents if `where` is None.

        Deletes in steps, oldest documents first. Other writes may run between the steps. Each step is on disk
        before the next one starts. Documents that are stored or changed after the call stay.

        Returns:
            The number of deleted documents, and the operation number.

        Raises:
            Storage, Timeout, Unhealthy: A step failed. The message has the number of deleted documents.
        """
        revisions, number = await self.store.matching(where, collection)
        done = deleted = 0
        while done < len(revisions):
            try:
                step = await self.store.delete_some(revisions[done : done + DELETE_DOCUMENTS], collection)
            except (Storage, Timeout, Unhealthy) as error:
                total = amount(len(revisions), "document was", "documents were")
                message = f"{error.message} {deleted} of {total} deleted before that."
                raise type(error)(message, headers=error.headers) from error
            done, deleted, number = done + step.done, deleted + step.deleted, step.sequence
        return deleted, number

    async def drop(self, collection: str) -> tuple[int, int]:
        """Deletes a collection with all documents and judgments. Returns and raises the same as `delete`.

        The default collection stays. A collection that received new documents during the call stays as well.
        """
        deleted = await self.delete(None, collection)
        while await self.store.drop_judgments(collection):
            pass
        await self.store.drop_collection(collection)
        return deleted

    def close(self) -> None:
        self._encoder.close()

    async def embed(
        self,
        generation: Generation,
        documents: Sequence[Content],
        collections: Sequence[str],
        lane: Lane | None = None,
    ) -> list[Embedding]:
        """Embeds documents with the document prompt.

        Args:
            generation: Its model embeds the documents.
            documents: Titles and texts.
            collections: The collection of each document.
            lane: Lane of the batcher; by default, the lane for this generation.
        """
        return await self._encoder.embed(generation, documents, collections, lane or self._lane(generation))

    async def embed_stored(
        self, generation: Generation, documents: Mapping[int, Unembedded], lane: Lane | None = None
    ) -> dict[int, Embedding]:
        """Embeds stored documents. Arguments and results are by revision."""
        contents = [document.content for document in documents.values()]
        collections = [document.collection for document in documents.values()]
        made = await self.embed(generation, contents, collections, lane)
        return dict(zip(documents, made, strict=True))

    def _lane(self, generation: Generation) -> Lane:
        return Lane.BACKGROUND if generation is self.active.generation else Lane.CANDIDATE

    async def embed_queries(
        self, generation: Generation, queries: Sequence[str], lane: Lane | None = None
    ) -> NDArray[np.float32]:
        """Embeds queries with the search prompt, by default in a lane of low priority.

        Returns vectors (n, dimension).
        """
        prompt = generation.manifest.search_prompt
        encoded = await self._batcher.embed(
            generation.encoder.for_queries,
            [prompt + query for query in queries],
            lane=lane or self._lane(generation),
        )
        return encoded.vectors

    async def check_complete(self, generation: Generation, *, active: bool) -> None:
        """Rejects a search in a generation that does not have every document.

        Call this before embedding queries.

        A version that is not active may miss recent documents, because a write does not fail if such a
        version fails.

        Args:
            generation: The generation to search.
            active: Whether the request uses the active version, rather than naming a version.

        Raises:
            Unhealthy: The generation is active, and its index is being rebuilt.
            Conflict: The generation is not active, and documents are missing.
        """
        if active or generation is self.active.generation:
            if not generation.is_complete:
                raise Unhealthy(
                    "The index is being rebuilt; GET /ready shows how far it is. Embedding works meanwhile.",
                    retry_after_seconds=5,
                )
            return
        gaps = await self.store.lacking(generation.number, generation.complete_through, 1)
        if gaps or not generation.is_complete:
            raise Conflict(
                f"{generation.version} does not hold every document, so it cannot be searched; "
                f"{self.active.generation.version} is active."
            )

    async def rewrite(
        self, generation: Generation, queries: Sequence[Query], search: Search
    ) -> list[Rewritten]:
        """Corrects typos of text queries and adds synonyms. Dense search takes queries as they are.

        Words of the vocabulary of `generation` are no typos.
        """
        if search.mode == "dense":
            return [Rewritten(query.text, query.text) for query in queries]
        work = partial(
            rewrite_all,
            queries=queries,
            where=search.where,
            collection=search.collection,
            is_word=generation.encoder.is_word,
            typos=search.typos,
        )
        return await self.store.search(work, heavy=search.is_heavy(len(queries)))

    async def search(
        self,
        generation: Generation,
        queries: Sequence[Query],
        search: Search,
        then: Callable[[list[Page]], T],
        rival: Rival | None = None,
    ) -> T:
        """Searches on a reading thread, passes the hits to `then`, and returns the result of `then`.

        The vectors in `queries` must come from `generation`. `then` runs on another thread. A search
        with a rival has no reranker. If it fails and the rival has its own vectors, it runs again without
        the rival.

        Raises:
            TooMuch: The hits have more than `search.max_bytes` bytes in total.
            Moved: Another replica has activated another version.
            NotFound, Conflict: See `find`.
        """
        if not search.is_reranked and not search.is_marked:
            return await self._find(generation, queries, search, then, rival)
        pages = await self._find_marked(generation, queries, search, rival)
        if search.highlight:
            pages = await self._highlighting.choose(generation, pages)
        hidden: dict[str, Any] = {
            f"{column}_json": b"" for column in ("title", "text") if column not in search.columns
        }
        shown = [
            page._replace(hits=[replace(hit, document=replace(hit.document, **hidden)) for hit in page.hits])
            for page in pages
        ]
        return await asyncio.to_thread(then, shown)

    async def _find_marked(
        self, generation: Generation, queries: Sequence[Query], search: Search, rival: Rival | None = None
    ) -> list[Page]:
        """Returns the pages in the order of the reranker, if the search has one, with marked hits."""
        mark = partial(self._highlighting.mark, search)
        if search.is_reranked:
            try:
                pages = await self._find_reranked(generation, queries, search)
            except NotReranked as said:
                search, fault = replace(search, rerank_k=0), str(said)
                pages = await self._find_marked(generation, queries, search)
                return [page._replace(rerank_fault=fault) for page in pages]
            pages = [page._replace(hits=page.hits[search.offset : search.reach]) for page in pages]
            return await asyncio.to_thread(mark, pages) if search.is_marked else pages
        columns = _add_texts(search.columns) if search.highlight else search.columns
        return await self._find(generation, queries, replace(search, columns=columns), mark, rival)

    async def _find_reranked(
        self, generation: Generation, queries: Sequence[Query], search: Search
    ) -> list[Page]:
        """Returns the pages from their first hits, in the order of the reranker.

        Raises:
            NotReranked: The search must do without the reranker. The reason is a warning for the answer.
        """
        reranking, candidates = self._reranking, _from_first(search)
        with reranking.borrow() as reranker:
            weight = generation.rankings.find_weight(search.collection, reranker.manifest)
            choose = partial(reranking.choose, reranker, weight, queries, search)
            try:
                chosen = await self._find(generation, queries, candidates, choose)
            except (TooMuch, Overloaded) as error:  # Hits that are not on the page may be too large.
                name = "SIMILE_MAX_ANSWER_MB" if isinstance(error, TooMuch) else "SIMILE_MAX_ANSWERS_MB"
                raise NotReranked(f"The best hits are too large to be reranked now ({name}).") from error
            return await reranking.order(reranker, chosen)

    async def _find(
        self,
        generation: Generation,
        queries: Sequence[Query],
        search: Search,
        then: Callable[[list[Page]], T],
        rival: Rival | None = None,
    ) -> T:
        """Searches without the reranker. Arguments and errors are those of `search`."""
        queries = await self.tokens.add_to(generation, queries, search)
        sides = [generation, *([] if rival is None else [rival.generation])]
        if rival is not None:
            tested = await self.tokens.add_to(rival.generation, rival.queries, rival.search)
            rival = rival._replace(queries=tested)
        if search.has_stage or (rival is not None and rival.search.has_stage):
            search = _with_memory(search, self.judged.latest(generation, search.collection))
            if rival is not None:
                known = self.judged.latest(rival.generation, search.collection)
                rival = rival._replace(search=_with_memory(rival.search, known))
        while True:
            work = partial(
                find, generation=generation, queries=queries, search=search, then=then, rival=rival
            )
            try:
                return await self.store.search(work, heavy=search.is_heavy(len(sides) * len(queries)))
            except Judged as changed:
                # Any state is accepted now, because writes may change it again, or reading took too long.
                found = await asyncio.gather(
                    *(self.judged.get(side, search.collection, changed.state) for side in sides)
                )
                search = _with_memory(search, found[0], exact=False)
                if rival is not None:
                    rival = rival._replace(search=_with_memory(rival.search, found[1], exact=False))
            except (ServiceError, TooMuch) as error:
                if rival is None or rival.shares_vectors(generation):
                    raise
                log.debug("A tested search is repeated without the candidate: %s", safe_message(error))
                rival = None


def _from_first(search: Search) -> Search:
    """Returns a search for all hits up to the end of the page, and for all that the reranker orders."""
    k, columns = max(search.reach, search.rerank_k), _add_texts(search.columns)
    return replace(search, k=k, offset=0, columns=columns, is_later=search.offset > 0)


def _add_texts(columns: Sequence[Column]) -> list[Column]:
    return [column for column in COLUMNS if column in columns or column != "metadata"]


def _with_memory(search: Search, remembered: Remembered, *, exact: bool = True) -> Search:
    judgments = remembered.state if exact else None
    return replace(search, memory=remembered.memory, judgments=judgments)

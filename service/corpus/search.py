"""Searches the store and the index in one state. Start reading at `find`.

    dense      nearest vectors                 a generation's index
    lexical    BM25                            fulltext.py; needs no vector
    hybrid     both rankings, fused            fusion.py
               the best hits ordered again     ranking.py

A search runs on a reading thread of the store, in one read transaction. Each ranking is cut to the requested
number of hits before the next ranking is computed. Other reads may run between two rankings.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from models.manifest import Mode
from models.search.features import COVER_CHARACTERS, NO_MEMORY, Memory, get_cover
from models.search.fusion import DENSE_WEIGHT, fuse
from models.search.ranking import MAX_RANKED, MAX_RECALLED
from models.tokens.late import Tokens
from service.active import Generation
from service.errors import Conflict, NotFound
from service.index.index_set import Moment
from service.ranking import TOKENS_WORK, WORK, Explanation, Ordered, Stage, order
from service.store.filters.grammar import Predicate
from service.store.protocol import FilterMatches, Snapshot
from service.store.scheduling import SLICE_SECONDS, pause
from service.store.values import (
    COLUMNS,
    DEFAULT_COLLECTION,
    Column,
    Ranked,
    Record,
    get_revisions,
)

clock = time.perf_counter

T = TypeVar("T")

# Length of each ranking in hybrid search. The first thousand hits use the same candidates, so their pages are
# consistent. A search beyond them uses the largest number that a client can request.
CANDIDATES, ALL_CANDIDATES = 1000, 11_000
# Queries per call of the index. The number doubles after a call that was shorter than a slice, and is halved
# after a longer call.
FIRST_TOGETHER, TOGETHER = 4, 64
TOGETHER_CANDIDATES = 65_536  # candidates per call
RERANK_WORK = 1500  # A pair of 128 tokens costs a small reranker about as much as fusing so many candidates.
PASSAGE_WORK = 150  # So does choosing the passage of a long text.
HEAVY_CANDIDATES = 10_000  # Heavier searches may not use all reading threads.


class Query(NamedTuple):
    """A query: a text, a vector, a text with its vector, or the id of a document to compare others with."""

    text: str = ""
    vector: NDArray[np.float32] | None = None
    similar_to: str | None = None
    tokens: Tokens | None = None  # Token vectors, for late interaction.


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Options of a search.

    Attributes:
        collection: Name of the collection.
        k: Number of hits.
        offset: Number of better hits to skip.
        mode: Dense, lexical or hybrid.
        weight: Weight of the dense ranking in hybrid search.
        unrelated: Mean cosine of unrelated texts, for hybrid search. 1 if unknown.
        where: Filter. None matches all documents.
        min_score: Lowest cosine in dense search.
        passages: Whether to compare all passages of a document, or only the first passage.
        max_bytes: Maximum size of all hits in bytes.
        columns: Columns of the documents to read.
        kept: Whether the generation may be an inactive one.
        rank_seconds: Maximum time of the second stage for a query. 0: hits keep the hybrid order.
        explain: Whether hits of hybrid search have an explanation.
        memory: Judged queries of the collection, for the second stage.
        judgments: Expected state of the judgments. None: any.
        compares_tokens: Whether the second stage has late interaction.
        rerank_k: Number of hits that the reranker orders again. 0: none.
        is_later: Whether this is a later page although the offset is 0.
        ends: When the deadline of the request passes, by `time.monotonic`. The reranker ends before.
    """

    collection: str = DEFAULT_COLLECTION
    k: int = 10
    offset: int = 0
    mode: Mode = "dense"
    weight: float = DENSE_WEIGHT
    unrelated: float = 1.0
    where: Predicate | None = None
    min_score: float | None = None
    passages: bool = True
    max_bytes: float = inf
    columns: Sequence[Column] = COLUMNS
    kept: bool = False
    rank_seconds: float = 0.0
    explain: bool = False
    memory: Memory | None = None
    judgments: str | None = None
    compares_tokens: bool = False
    rerank_k: int = 0
    is_later: bool = False
    ends: float = inf

    @property
    def is_reranked(self) -> bool:
        """Whether the page has hits that the reranker orders."""
        return self.offset < self.rerank_k

    @property
    def has_stage(self) -> bool:
        """Whether the search has a second stage, which orders the candidates."""
        return self.mode == "hybrid" and self.passages and (self.rank_seconds > 0 or self.explain)

    @property
    def is_ranked(self) -> bool:
        """Whether the page may have candidates of the second stage. Later hits keep their hybrid order."""
        return self.has_stage and self.offset < MAX_RANKED + MAX_RECALLED

    @property
    def reach(self) -> int:
        return self.offset + self.k

    @property
    def candidates(self) -> int:
        """Number of documents to rank for each query, in both rankings together."""
        return 2 * self.depth if self.mode == "hybrid" else self.reach

    @property
    def depth(self) -> int:
        """Length of each ranking in hybrid search."""
        return CANDIDATES if self.reach <= CANDIDATES else ALL_CANDIDATES

    @property
    def work(self) -> int:
        """Cost of each query, in candidates."""
        stage = WORK + (TOKENS_WORK if self.compares_tokens else 0)
        return self.candidates + (stage if self.is_ranked else 0)

    @property
    def cost(self) -> int:
        """Cost of each query with its pairs for the reranker, in candidates."""
        return self.work + (RERANK_WORK * self.rerank_k if self.is_reranked else 0)

    def is_heavy(self, queries: int) -> bool:
        """Returns whether a search with `queries` queries is long and must leave threads for other reads."""
        scans = self.where is not None and not self.where.indexed
        return scans or queries * (self.work + PASSAGE_WORK * self.rerank_k) > HEAVY_CANDIDATES


@dataclass(frozen=True, slots=True)
class Hit:
    """A document with its score.

    Attributes:
        document: The document.
        score: A cosine, a BM25 score or a fused score. Larger is better.
        passage: Start and end of the nearest passage in characters. None in lexical search, or if the text
            has only one passage.
        explanation: Features and their parts in the score, if they were requested.
        rerank_score: Score of the reranker, if it has scored the hit.
        search_place: Place in the order of the search, from 1, if the reranker ordered the hits.
        ranking_score: Score of the second stage, if it has scored the hit.
    """

    document: Record
    score: np.float32
    passage: tuple[int, int] | None = None
    explanation: Explanation | None = None
    rerank_score: np.float32 | None = None
    search_place: int | None = None
    ranking_score: float | None = None


class Page(NamedTuple):
    """The hits of a query. `fault` says why the second stage failed or was late, or is empty.

    `reranker` is the version that ordered the hits. `rerank_fault` says why it ordered none or only some of
    them. `rerank_tokens` has the tokens of its pairs.
    """

    hits: list[Hit]
    fault: str = ""
    reranker: str = ""
    rerank_fault: str = ""
    rerank_tokens: Sequence[int] = ()


class Judged(Exception):
    """Raised if judgments or clicks changed after the memory was read. `state` is their present state."""

    def __init__(self, state: str) -> None:
        super().__init__(state)
        self.state = state


def find(
    snapshot: Snapshot,
    generation: Generation,
    queries: Sequence[Query],
    search: Search,
    then: Callable[[list[Page]], T],
) -> T:
    """Searches, passes the hits of each query to `then`, and returns the result of `then`.

    Hits are sorted by score, best first, and then by id.

    Raises:
        Moved: Another version is active.
        TooMuch: The hits have more than `max_bytes` bytes in total.
        NotFound: The document that a query names does not exist.
        Conflict: The document that a query names has no vector, because the model fails on its text.
        Judged: The judgments have another state than `search.judgments`.
    """
    if search.mode != "lexical":
        snapshot.require(generation.number, kept=search.kept)
    if search.judgments is not None:
        state = snapshot.judgment_state()
        if state != search.judgments:
            raise Judged(state)
    moment = None if search.mode == "lexical" else generation.indexes.moment(snapshot, search.collection)
    resolved = [_resolved(snapshot, generation, query, search.collection) for query in queries]
    allowed = None if search.where is None else snapshot.matching(search.where, search.collection)
    rankings = _rankings(snapshot, moment, [query for query, _ in resolved], search, allowed)
    pages: list[tuple[list[Ranked], Ordered]] = []
    stage = _second_stage(generation, search)
    for (query, own), ranking in zip(resolved, rankings, strict=True):
        others = [ranked for ranked in ranking if ranked.revision != own]
        best = _existing(snapshot, others, max(search.reach, MAX_RANKED if search.is_ranked else 0))
        recalled = _recalled(snapshot, generation, query, others, best, search)
        candidates = [*best[:MAX_RANKED], *recalled]
        ordered = order(snapshot, query.text, query.vector, candidates, stage, query.tokens)
        moved = {ranked.revision for ranked, _ in recalled}
        rest = (ranked for ranked, _ in best[MAX_RANKED:] if ranked.revision not in moved)
        hits = [*ordered.hits, *rest]
        pages.append((hits[search.offset : search.reach], ordered))
    uses = Counter(ranked.revision for page, _ in pages for ranked in page)
    documents = snapshot.answered(uses, search.max_bytes, search.columns)
    rows = [ranked.row for page, _ in pages for ranked in page if ranked.row]
    split = moment is not None and moment.is_split
    places = snapshot.passages(generation.number, rows) if split else {}
    return then(
        [
            Page(
                [
                    Hit(
                        documents[ranked.revision],
                        ranked.score,
                        places.get(ranked.row),
                        ordered.explanations.get(ranked.revision),
                        ranking_score=ordered.scores.get(ranked.revision),
                    )
                    for ranked in page
                    if ranked.revision in documents  # A damaged document is missing.
                ],
                ordered.fault,
            )
            for page, ordered in pages
        ]
    )


def _second_stage(generation: Generation, search: Search) -> Stage | None:
    if not search.is_ranked:
        return None
    return Stage(
        generation=generation.number,
        rankings=generation.rankings,
        collection=search.collection,
        seconds=search.rank_seconds,
        explain=search.explain,
        first=search.offset == 0 and not search.is_later,
        memory=search.memory or NO_MEMORY,
    )


def _recalled(
    snapshot: Snapshot,
    generation: Generation,
    query: Query,
    ranking: Sequence[Ranked],
    best: Sequence[tuple[Ranked, str]],
    search: Search,
) -> list[tuple[Ranked, str]]:
    """Returns hits after the first MAX_RANKED that were judged relevant for similar queries, with their ids.

    So a judgment counts wherever hybrid search found the document.
    """
    if not search.has_stage or not search.rank_seconds or search.memory is None or query.vector is None:
        return []
    threshold = generation.rankings[search.collection].memory_threshold
    known = {id for _, id in best[:MAX_RANKED]}
    ids = search.memory.list_relevant(query.vector, threshold, MAX_RECALLED)
    if not (missing := [id for id in ids if id not in known]):
        return []
    places = {ranked.revision: ranked for ranked in ranking}
    found = ((id, snapshot.get_vector(generation.number, id, search.collection)) for id in missing)
    return [(places[stored[0]], id) for id, stored in found if stored is not None and stored[0] in places]


def _existing(snapshot: Snapshot, ranking: Sequence[Ranked], count: int) -> list[tuple[Ranked, str]]:
    """Returns the best documents that the snapshot has, best first, with their ids.

    These are at least `count` documents, unless `ranking` has fewer that exist.
    """
    best = _best(ranking, count)
    ids = snapshot.get_ids([ranked.revision for ranked in best])
    # The index is newer than the snapshot. Other documents replace those that the snapshot does not have.
    if len(ids) < len(best) < len(ranking):
        best = ranking
        ids = snapshot.get_ids([ranked.revision for ranked in best])
    found = [(ranked, ids[ranked.revision]) for ranked in best if ranked.revision in ids]
    return sorted(found, key=lambda each: (-each[0].score, each[1]))


def _best(ranking: Sequence[Ranked], count: int) -> Sequence[Ranked]:
    if len(ranking) <= count:
        return ranking
    scores = np.array([ranked.score for ranked in ranking])
    least = np.partition(scores, -count)[-count]
    return [ranking[at] for at in np.flatnonzero(scores >= least).tolist()]


def _resolved(
    snapshot: Snapshot, generation: Generation, query: Query, collection: str
) -> tuple[Query, int | None]:
    """Replaces a query that names a document by a query with that document's stored vector.

    Also returns the revision of that document, or None for another query.
    """
    if query.similar_to is None:
        return query, None
    stored = snapshot.get_vector(generation.number, query.similar_to, collection)
    if stored is None:
        raise NotFound(f"There is no document {query.similar_to[:512]!r}.")
    revision, vector = stored
    if vector is None:
        raise Conflict(
            f"{query.similar_to[:512]!r} has no vector of {generation.version}, whose model fails on its "
            "text. So similar documents cannot be found."
        )
    return Query(vector=vector), revision


def _rankings(
    snapshot: Snapshot,
    moment: Moment | None,
    queries: Sequence[Query],
    search: Search,
    allowed: FilterMatches | None,
) -> Iterator[list[Ranked]]:
    """Yields the best documents of each query.

    A dense or lexical ranking may have more documents than needed, which tie with the last needed one.
    """
    if moment is None:
        for query in queries:
            pause()
            yield _lexical(snapshot, query, search.reach, allowed, search.collection)
        return
    hybrid = search.mode == "hybrid"
    # One more, because the most similar document to a document is itself.
    depth = search.depth if hybrid else search.reach + 1
    near = _dense(moment, queries, depth, allowed, heads_only=not search.passages)
    least = search.min_score
    for query, ranking in zip(queries, near, strict=True):
        pause()
        if hybrid:
            worded = _lexical(snapshot, query, depth, allowed, search.collection)
            yield _fused(ranking[:depth], worded[:depth], _cover(snapshot, query.text, worded), search)
        else:
            yield [ranked for ranked in ranking if least is None or float(ranked.score) >= least]


def _dense(
    moment: Moment, queries: Sequence[Query], depth: int, allowed: FilterMatches | None, *, heads_only: bool
) -> Iterator[list[Ranked]]:
    most = max(1, min(TOGETHER, TOGETHER_CANDIDATES // depth))
    together, start = min(FIRST_TOGETHER, most), 0
    while start < len(queries):
        if start:  # The first call needs no pause, because the turn has just begun.
            pause()
        vectors = np.array([query.vector for query in queries[start : start + together]])
        began, start = clock(), start + together
        found = moment.search(vectors, depth, allowed, heads_only=heads_only)
        short = clock() - began < SLICE_SECONDS
        together = min(2 * together, most) if short else max(1, together // 2)
        for scores, names in found:
            yield [
                Ranked(revision, score, row)
                for score, revision, row in zip(
                    scores, get_revisions(names).tolist(), names.tolist(), strict=True
                )
            ]


def _lexical(
    snapshot: Snapshot, query: Query, depth: int, allowed: FilterMatches | None, collection: str
) -> list[Ranked]:
    revisions, scores = snapshot.nearest_words(query.text, depth, allowed, collection)
    return [Ranked(int(revision), score) for revision, score in zip(revisions, scores, strict=True)]


def _cover(snapshot: Snapshot, query: str, worded: list[Ranked]) -> float:
    """Returns the share of the query's terms at the start of the best keyword hit, or 1 without a hit."""
    if not worded:
        return 1.0
    best = min(worded, key=lambda ranked: (-ranked.score, ranked.revision)).revision
    content = snapshot.beginnings([best], COVER_CHARACTERS).get(best)
    return get_cover(query, content.whole) if content else 1.0


def _fused(near: list[Ranked], worded: list[Ranked], cover: float, search: Search) -> list[Ranked]:
    dense, lexical = ({ranked.revision: float(ranked.score) for ranked in part} for part in (near, worded))
    scores = fuse(dense, lexical, search.weight, search.unrelated, cover)
    rows = {ranked.revision: ranked.row for ranked in near}
    return [
        Ranked(revision, score, rows.get(revision, 0), lexical.get(revision, 0.0))
        for revision, score in scores.items()
    ]

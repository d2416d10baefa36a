"""A search: filter, rankings and documents at one moment of store and index.

    dense      the vectors nearest to the query's            a generation's index
    lexical    the words of the query, by BM25               fulltext.py; needs no vector
    hybrid     both, fused                                   fusion.py

It runs on a reading thread (reader.py), in one reading transaction. Each ranking is cut to the hits that are
asked for before the next one is made, and between two of them other reads have their turn.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from models.manifest import Mode
from models.search.fusion import DENSE_WEIGHT, fuse
from service.errors import Conflict, NotFound
from service.index.stored import Moment
from service.live import Generation
from service.store.filters.predicate import Predicate
from service.store.protocol import FilterMatches, Snapshot
from service.store.turns import SLICE_SECONDS, pause
from service.store.values import COLUMNS, DEFAULT_COLLECTION, Column, Record, revisions_of

clock = time.perf_counter

T = TypeVar("T")

# What hybrid search takes of each ranking. The first thousand hits come from the same candidates, so that
# pages of them fit together; a search that looks further gets the most that can be asked for.
CANDIDATES, ALL_CANDIDATES = 1000, 11_000
# Queries whose vectors are compared in one call, before others have their turn: twice as many after a call
# that was shorter than a slice, half as many after a longer one.
FIRST_TOGETHER, TOGETHER = 4, 64
TOGETHER_CANDIDATES = 65_536  # that are kept at a time
HEAVY_CANDIDATES = 10_000  # of a search that leaves reading threads for others


class Query(NamedTuple):
    """A query: the words of `text`, a `vector`, or the id of a document that hits are to be similar to."""

    text: str = ""
    vector: NDArray[np.float32] | None = None
    similar_to: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Options of a search: hits number `offset` to `offset` + `k` of those that pass `where`.

    Without `passages` a document is compared by its head alone. `min_score` is for dense search.
    `weight`: of the vectors in hybrid search. `max_bytes`: bytes of all hits together. Of their documents
    only `columns` are read.
    """

    collection: str = DEFAULT_COLLECTION
    k: int = 10
    offset: int = 0
    mode: Mode = "dense"
    weight: float = DENSE_WEIGHT
    where: Predicate | None = None
    min_score: float | None = None
    passages: bool = True
    max_bytes: float = inf
    columns: Sequence[Column] = COLUMNS

    @property
    def reach(self) -> int:
        return self.offset + self.k

    @property
    def candidates(self) -> int:
        """Documents that one query is ranked over, in both rankings together."""
        if self.mode != "hybrid":
            return self.reach
        return 2 * (CANDIDATES if self.reach <= CANDIDATES else ALL_CANDIDATES)

    def is_heavy(self, queries: int) -> bool:
        """True when so many queries leave reading threads for others."""
        scans = self.where is not None and not self.where.indexed
        return scans or queries * self.candidates > HEAVY_CANDIDATES


@dataclass(frozen=True, slots=True)
class Hit:
    """A document found; `score` is a cosine, a bm25, or a fused score: larger is better.

    `passage`: the characters of the nearest one, where the text was split and vectors were compared.
    """

    document: Record
    score: np.float32
    passage: tuple[int, int] | None = None


Hits: TypeAlias = list[list[Hit]]


class Ranked(NamedTuple):
    """A document of a ranking, before it is read; `row` is its nearest row in the index, 0 for none."""

    revision: int
    score: np.float32
    row: int = 0


def find(
    snapshot: Snapshot,
    generation: Generation,
    queries: Sequence[Query],
    search: Search,
    then: Callable[[Hits], T],
    *,
    kept: bool,
) -> T:
    """`then` of the hits of each query, best first, equal scores by id.

    kept: the generation need not be the one in service.

    Raises:
        Moved: another one is in service.
        TooMuch: they have more than `max_bytes` bytes together.
        NotFound: a document that is asked for by id is not there.
        Conflict: it has no vector, because the model fails on its text.

    """
    if search.mode != "lexical":
        snapshot.require(generation.number, kept=kept)
    moment = None if search.mode == "lexical" else generation.indexes.moment(snapshot, search.collection)
    queries, own = _resolved(snapshot, generation, queries, search.collection)
    allowed = None if search.where is None else snapshot.matching(search.where, search.collection)
    rankings = _rankings(snapshot, moment, queries, search, allowed)
    pages = [
        _page(snapshot, ranking, search, excluded) for ranking, excluded in zip(rankings, own, strict=True)
    ]
    wanted = Counter(ranked.revision for page in pages for ranked in page)
    documents = snapshot.answered(wanted, search.max_bytes, search.columns)
    rows = [ranked.row for page in pages for ranked in page if ranked.row]
    split = moment is not None and moment.is_split
    places = snapshot.passages(generation.number, rows) if split else {}
    return then(
        [
            [
                Hit(documents[revision], score, places.get(row))
                for revision, score, row in page
                if revision in documents  # else it is damaged
            ]
            for page in pages
        ]
    )


def _page(
    snapshot: Snapshot, ranking: Sequence[Ranked], search: Search, excluded: int | None
) -> list[Ranked]:
    """The hits that are asked for, of all that rank; `excluded` is not one of them."""
    ranking = [ranked for ranked in ranking if ranked.revision != excluded]
    best = _best(ranking, search.reach)
    ids = snapshot.ids_of([ranked.revision for ranked in best])
    if len(ids) < len(best) < len(ranking):  # the index is ahead: some were deleted, others move up
        best = ranking
        ids = snapshot.ids_of([ranked.revision for ranked in best])
    return sorted(
        (ranked for ranked in best if ranked.revision in ids),
        key=lambda ranked: (-ranked.score, ids[ranked.revision]),
    )[search.offset : search.reach]


def _best(ranking: Sequence[Ranked], count: int) -> Sequence[Ranked]:
    """The `count` highest scores and all that tie with the last of them, in no order."""
    if len(ranking) <= count:
        return ranking
    scores = np.array([ranked.score for ranked in ranking])
    least = np.partition(scores, -count)[-count]
    return [ranking[at] for at in np.flatnonzero(scores >= least).tolist()]


def _resolved(
    snapshot: Snapshot, generation: Generation, queries: Sequence[Query], collection: str
) -> tuple[list[Query], list[int | None]]:
    """Queries by id with the vectors that are stored, and the revisions that are not to be their own hits."""
    resolved, own = [], []
    for query in queries:
        revision = None
        if query.similar_to is not None:
            stored = snapshot.vector_of(generation.number, query.similar_to, collection)
            if stored is None:
                raise NotFound(f"There is no document {query.similar_to[:512]!r}.")
            revision, vector = stored
            if vector is None:
                raise Conflict(
                    f"{query.similar_to[:512]!r} has no vector of {generation.version}, whose model fails on "
                    "its text, so nothing can be said to be like it."
                )
            resolved.append(Query(vector=vector))
        else:
            resolved.append(query)
        own.append(revision)
    return resolved, own


def _rankings(
    snapshot: Snapshot,
    moment: Moment | None,
    queries: Sequence[Query],
    search: Search,
    allowed: FilterMatches | None,
) -> Iterator[list[Ranked]]:
    """The best documents of each query, as many as the hits need and all that tie with the last of them."""
    if moment is None:
        for query in queries:
            pause()
            yield _lexical(snapshot, query, search.reach, allowed, search.collection)
        return
    hybrid = search.mode == "hybrid"
    # One more, because a document is the first of those that are like it.
    depth = search.candidates // 2 if hybrid else search.reach + 1
    near = _dense(moment, queries, depth, allowed, heads_only=not search.passages)
    least = search.min_score
    for query, ranking in zip(queries, near, strict=True):
        pause()
        if hybrid:
            worded = _lexical(snapshot, query, depth, allowed, search.collection)
            yield _fused(ranking[:depth], worded[:depth], search.weight)
        else:
            yield [ranked for ranked in ranking if least is None or float(ranked.score) >= least]


def _dense(
    moment: Moment, queries: Sequence[Query], depth: int, allowed: FilterMatches | None, *, heads_only: bool
) -> Iterator[list[Ranked]]:
    """The ranking of each query, a few queries at a time."""
    most = max(1, min(TOGETHER, TOGETHER_CANDIDATES // depth))
    together, start = min(FIRST_TOGETHER, most), 0
    while start < len(queries):
        if start:  # the first call comes at the beginning of a turn
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
                    scores, revisions_of(names).tolist(), names.tolist(), strict=True
                )
            ]


def _lexical(
    snapshot: Snapshot, query: Query, depth: int, allowed: FilterMatches | None, collection: str
) -> list[Ranked]:
    revisions, scores = snapshot.nearest_words(query.text, depth, allowed, collection)
    return [Ranked(int(revision), score) for revision, score in zip(revisions, scores, strict=True)]


def _fused(near: list[Ranked], worded: list[Ranked], weight: float) -> list[Ranked]:
    dense, lexical = ({ranked.revision: float(ranked.score) for ranked in part} for part in (near, worded))
    scores = fuse(dense, lexical, weight)
    rows = {ranked.revision: ranked.row for ranked in near}
    return [Ranked(revision, score, rows.get(revision, 0)) for revision, score in scores.items()]

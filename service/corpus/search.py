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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import chain
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from models.search.features import COVER_CHARACTERS, NO_MEMORY, get_cover
from models.search.fusion import Fusion, Part, Scores
from models.search.ranking import MAX_RANKED, MAX_RECALLED
from models.search.terms import parse_query
from service.active import Generation
from service.corpus.conditions import Met, find_documents
from service.corpus.interleaving import Side, draft
from service.corpus.query import Hit, Judged, Page, Query, Rival, Search
from service.errors import Conflict, NotFound
from service.index.index_set import Moment, find_moments
from service.index.moment import IndexMoment
from service.ranking import Order, Ordered, Stage, order
from service.store.protocol import FilterMatches, Snapshot
from service.store.scheduling import READERS, SLICE_SECONDS, pause
from service.store.values import Facet, Ranked, Ranking, Revisions, RowNames, get_revisions

clock = time.perf_counter

T = TypeVar("T")

# Queries per call of the index. The number doubles after a call that was shorter than a slice, and is halved
# after a longer call.
FIRST_TOGETHER, TOGETHER = 4, 64
TOGETHER_CANDIDATES = 65_536  # candidates per call
RECALLED_TOGETHER = 64  # If more documents were judged relevant, the hits are looked up, not these.
_BESIDE = ThreadPoolExecutor(READERS, "dense")  # Dense searches beside the keyword search of the same query.


def find(
    snapshot: Snapshot,
    generation: Generation,
    queries: Sequence[Query],
    search: Search,
    then: Callable[[list[Page]], T],
    rival: Rival | None = None,
) -> T:
    """Searches, passes the hits of each query to `then`, and returns the result of `then`.

    Hits are sorted by score, best first, and then by id. Those of a search with a rival are interleaved,
    unless the rival has its own vectors and lacks documents.

    Raises:
        Moved: Another version is active.
        TooMuch: The hits have more than `max_bytes` bytes in total.
        NotFound: The document that a query names does not exist.
        Conflict: The document that a query names has no vector, because the model fails on its text. Or the
            rival was dropped.
        Judged: The judgments have another state than those of a side.
    """
    searches = [search, *([rival.search] if rival else ())]
    if any(each.mode != "lexical" for each in searches):
        snapshot.require(generation.number, kept=search.kept)
    states = {each.judgments for each in searches if each.judgments is not None}
    if states and states != {state := snapshot.judgment_state(search.collection)}:
        raise Judged(state)
    moment, rival_moment, rival = _take_moments(snapshot, generation, search, rival)
    began = clock()
    pages: list[_Found] = []
    theirs: Collection[int] = ()  # Hits whose rows are those of the rival's generation.
    counting = _Counting(snapshot, search)
    for retrieved in _retrieve(snapshot, moment, generation, queries, search):
        shared, sides, seconds = clock() - began, dict[int, Side](), None
        listed = _list_hits(snapshot, generation, search, retrieved)
        if rival is not None:
            own = clock() - began
            again = [retrieved._replace(query=rival.queries[0])]
            if not rival.retrieves_as(generation, search):
                shared = 0.0
                again = [*_retrieve(snapshot, rival_moment, rival.generation, rival.queries, rival.search)]
            other = _list_hits(snapshot, rival.generation, rival.search, again[0])
            seconds = rival.embedding[0] + own, rival.embedding[1] + shared + clock() - began - own
            listed, sides, theirs = _interleave(listed, other, rival)
        query, found, ordered, fusion, met = listed
        terms = parse_query(query.text) if query.text and search.is_marked else None
        idf = {}
        if terms is not None:
            idf = snapshot.get_idf(terms.add(chain.from_iterable(query.weights)), search.collection)
        page = Page(
            [],
            ordered.fault,
            terms=terms,
            groups=query.weights,
            sources=query.sources,
            idf=idf,
            vector=query.vector,
            seconds=seconds,
        )
        hits = found[search.offset : search.reach]
        explained = fusion if search.explain else None
        parts = {each.revision: explained.explain(each.revision) for each in hits} if explained else {}
        pages.append(_Found(page, hits, ordered, parts, sides))
        counting.add(query, met)
    if search.facets:
        pages = [
            found._replace(page=found.page._replace(facets=facets, facet_faults=faults))
            for found, (facets, faults) in zip(pages, counting.counted, strict=True)
        ]
    uses = Counter(ranked.revision for found in pages for ranked in found.hits)
    documents = snapshot.answered(uses, search.max_bytes, search.columns)
    places = _find_places(snapshot, generation, moment, pages, lambda revision: revision not in theirs)
    if rival is not None and theirs:
        sources = rival.generation, rival_moment
        places |= _find_places(snapshot, *sources, pages, lambda revision: revision in theirs)
    return then(
        [
            found.page._replace(
                hits=[
                    Hit(
                        documents[ranked.revision],
                        ranked.score,
                        places.get((ranked.revision, ranked.row)),
                        found.ordered.explanations.get(ranked.revision),
                        fusion=found.fusions.get(ranked.revision),
                        ranking_score=found.ordered.scores.get(ranked.revision),
                        side=found.sides.get(ranked.revision, 0),
                    )
                    for ranked in found.hits
                    if ranked.revision in documents  # A damaged document is missing.
                ]
            )
            for found in pages
        ]
    )


def _take_moments(
    snapshot: Snapshot, generation: Generation, search: Search, rival: Rival | None
) -> tuple[Moment | None, Moment | None, Rival | None]:
    """Returns what both sides search, at one moment of the store, and the rival unless it lacks documents."""
    if search.mode == "lexical" and (rival is None or rival.search.mode == "lexical"):
        return None, None, rival
    if rival is None or rival.shares_vectors(generation):
        moment = generation.indexes.moment(snapshot, search.collection)
        return moment, moment, rival
    other = rival.generation
    snapshot.require(other.number, kept=True)
    indexes = generation.indexes, other.indexes
    own, theirs = find_moments(snapshot, search.collection, *indexes, other.skipped)
    return own, theirs, None if theirs is None else rival


def _find_places(
    snapshot: Snapshot,
    generation: Generation,
    moment: Moment | None,
    pages: Sequence["_Found"],
    is_own: Callable[[int], bool],
) -> dict[tuple[int, int], tuple[int, int]]:
    """Returns where the best passages are in their texts, by revision and row name."""
    if moment is None or not moment.is_split:
        return {}
    hits = [ranked for found in pages for ranked in found.hits if ranked.row and is_own(ranked.revision)]
    places = snapshot.passages(generation.number, [ranked.row for ranked in hits])
    return {(each.revision, each.row): places[each.row] for each in hits if each.row in places}


class _Retrieved(NamedTuple):
    """The documents that a query found, how they were fused, and those that meet its conditions."""

    query: Query
    ranking: "_Ranking"
    fusion: Fusion | None
    met: Met | None


def _retrieve(
    snapshot: Snapshot,
    moment: Moment | None,
    generation: Generation,
    queries: Sequence[Query],
    search: Search,
) -> Iterator[_Retrieved]:
    if search.mode == "lexical":
        moment = None
    resolved = [_resolved(snapshot, generation, query, search) for query in queries]
    allowed = None if search.where is None else snapshot.matching(search.where, search.collection)
    rankings = _rank_all(snapshot, moment, [query for query, _ in resolved], search, allowed)
    for (query, own), (ranking, fusion, met) in zip(resolved, rankings, strict=True):
        yield _Retrieved(query, ranking.without(own), fusion, met)


class _Listed(NamedTuple):
    """The hits of a query, best first, with how they were found."""

    query: Query
    hits: list[Ranked]
    ordered: Ordered
    fusion: Fusion | None
    met: Met | None


def _list_hits(snapshot: Snapshot, generation: Generation, search: Search, retrieved: _Retrieved) -> _Listed:
    """Returns the hits of a query after the second stage, to the end of the page at least."""
    query, others, fusion, met = retrieved
    best = _existing(snapshot, others, max(search.reach, MAX_RANKED if search.is_ranked else 0))
    name, known = 0, None
    if search.has_stage:
        name = _name_order(generation, query, best[:MAX_RANKED], search)
        known = generation.rankings.orders.recall(name)
    recalled = _recalled(snapshot, generation, query, others, best, search, known)
    candidates = [*best[:MAX_RANKED], *recalled]
    ordered = order(
        snapshot,
        query.text,
        query.vector,
        candidates,
        _second_stage(generation, search, name, known),
        query.tokens,
        query.same,
        query.typed_vector,
    )
    moved = {ranked.revision for ranked, _ in recalled}
    rest = (ranked for ranked, _ in best[MAX_RANKED:] if ranked.revision not in moved)
    return _Listed(query, [*ordered.hits, *rest], ordered, fusion, met)


def _interleave(
    active: _Listed, candidate: _Listed, rival: Rival
) -> tuple[_Listed, dict[int, Side], set[int]]:
    """Returns the hits of both sides in one order, which side chose each, and which only the rival found.

    The scores are those of the active version's hits in these places, so they look like those of any search.
    If a second stage failed, no side chose any.
    """
    reach = rival.search.reach  # So many hits of each side decide about so many interleaved ones.
    lists = active.hits[:reach], candidate.hits[:reach]
    by_revision = {hit.revision: hit for hit in chain(*reversed(lists))}
    own, others = ([hit.revision for hit in hits] for hits in lists)
    sides = dict(draft(own, others, rival.coins.flip(reach))[:reach])
    scores = [hit.score for hit in lists[0] or lists[1]]
    scores += scores[-1:] * (len(sides) - len(scores))
    hits = [by_revision[name]._replace(score=score) for name, score in zip(sides, scores, strict=False)]
    fault = active.ordered.fault or candidate.ordered.fault
    ordered = replace(active.ordered, fault=fault)
    return active._replace(hits=hits, ordered=ordered), {} if fault else sides, sides.keys() - {*own}


class _Ranking(NamedTuple):
    """The documents of a ranking in any order, as arrays of equal length. `Ranked` describes the columns."""

    revisions: Revisions
    scores: NDArray[np.float32]
    rows: RowNames
    bm25: NDArray[np.float64]

    @staticmethod
    def of(revisions: Revisions, scores: NDArray[np.float32], rows: RowNames | None = None) -> "_Ranking":
        none = np.zeros(len(revisions), np.int64)
        return _Ranking(revisions, scores, none if rows is None else rows, none.astype(np.float64))

    def where(self, kept: NDArray[np.bool_] | slice) -> "_Ranking":
        return _Ranking(self.revisions[kept], self.scores[kept], self.rows[kept], self.bm25[kept])

    def without(self, revision: int | None) -> "_Ranking":
        return self if revision is None else self.where(self.revisions != revision)

    def select_best(self, count: int) -> "_Ranking":
        """Returns the best documents: `count`, and those that tie with the last one."""
        if len(self.scores) <= count:
            return self
        return self.where(self.scores >= np.partition(self.scores, -count)[-count])

    def as_ranked(self) -> list[Ranked]:
        columns = self.revisions.tolist(), self.scores, self.rows.tolist(), self.bm25.tolist()
        return [*map(Ranked, *columns)]


class _Found(NamedTuple):
    """A page whose documents are not read yet."""

    page: Page
    hits: list[Ranked]
    ordered: Ordered
    fusions: Mapping[int, Mapping[str, Part]]
    sides: Mapping[int, Side]


_Counted: TypeAlias = tuple[Mapping[str, Facet] | None, Sequence[str]]  # Facets and faults of a page.


class _Counting:
    """Counts the facets of one query after the other. The result is `counted`.

    In lexical search, the documents with a term of the query count. In the other modes, every document that
    matches the filter and the conditions is a hit, so queries without conditions have the same counts.
    """

    def __init__(self, snapshot: Snapshot, search: Search) -> None:
        self._snapshot, self._search = snapshot, search
        self._matching = snapshot.list_matching(search.where, search.collection) if search.facets else None
        self._done = 0
        self._same: _Counted | None = None  # The counts of all queries without conditions.
        self.counted: list[_Counted] = []

    def add(self, query: Query, met: Met | None) -> None:
        """Counts the facets of a query. `met` are the documents that meet its conditions."""
        if self._matching is None:
            return
        if self._done > self._search.max_faceted:
            self.counted.append(self.counted[-1])
        elif self._search.mode != "lexical" and met is None:
            self._same = self._same or self._count(self._matching)
            self.counted.append(self._same)
        else:
            self.counted.append(self._count(self._select(self._matching, query, met)))
        if self._done > self._search.max_faceted:  # Counts of a part of the queries would be of little use.
            self.counted = [self.counted[-1]] * len(self.counted)

    def _select(self, revisions: Revisions, query: Query, met: Met | None) -> Revisions:
        if met is not None:
            if met.required is not None:
                revisions = np.intersect1d(revisions, met.required, assume_unique=True)
            revisions = np.setdiff1d(revisions, met.excluded, assume_unique=True)
        if self._search.mode == "lexical":
            worded = self._snapshot.list_worded(query.text, self._search.collection, query.weights)
            revisions = np.intersect1d(revisions, worded, assume_unique=True)
        return revisions

    def _count(self, revisions: Revisions) -> _Counted:
        pause()
        search = self._search
        self._done += len(revisions) * len(search.facets)
        if self._done > search.max_faceted:
            fault = (
                f"The facets are left out: they would count {self._done:,} documents, once for each facet, "
                f"and {search.max_faceted:,} are allowed (SIMILE_MAX_FACETED). Ask for fewer facets, or "
                "narrow the search by a filter."
            )
            return None, [fault]
        found = self._snapshot.count_facets(search.facets, revisions, search.collection, search.facet_values)
        faults = [
            f"The facet metadata.{field} is left out, because the field has too many different values to "
            "count. Leave it out, or store a coarser field besides it."
            for field, facet in found.items()
            if facet is None
        ]
        return {field: facet for field, facet in found.items() if facet is not None}, faults


def _name_order(
    generation: Generation, query: Query, best: Sequence[tuple[Ranked, str]], search: Search
) -> int:
    """Returns the name by which the order of a query is remembered. Judgments do not change it."""
    ranking = generation.rankings[search.collection]
    revisions = (ranked.revision for ranked, _ in best)
    return hash((search.collection, repr(search.where), query.text, query.typed, id(ranking), *revisions))


def _second_stage(generation: Generation, search: Search, name: int, known: Order | None) -> Stage | None:
    if not search.is_ranked:
        return None
    return Stage(
        generation=generation.number,
        rankings=generation.rankings,
        collection=search.collection,
        name=name,
        known=known,
        seconds=search.rank_seconds,
        explain=search.explain,
        first=search.is_first,
        memory=search.memory or NO_MEMORY,
    )


def _recalled(
    snapshot: Snapshot,
    generation: Generation,
    query: Query,
    ranking: _Ranking,
    best: Sequence[tuple[Ranked, str]],
    search: Search,
    known: Order | None,
) -> list[tuple[Ranked, str]]:
    """Returns hits after the first MAX_RANKED that were judged relevant for similar queries, with their ids.

    So a judgment counts wherever hybrid search found the document. Later pages have those of `known`,
    the remembered order.
    """
    if not search.has_stage or not search.rank_seconds or query.vector is None:
        return []
    if search.is_first or known is None:
        threshold = generation.rankings[search.collection].memory_threshold
        vector = query.vector if query.typed_vector is None else query.typed_vector
        best_ids = {id for _, id in best[:MAX_RANKED]}
        relevant = (search.memory or NO_MEMORY).list_relevant(vector, threshold)
        ids: Sequence[str] = [id for id in relevant if id not in best_ids]
    else:
        ids = known.recalled
    if not ids:
        return []
    if len(ids) > RECALLED_TOGETHER:
        revisions = {id: revision for revision, id in snapshot.get_ids(ranking.revisions.tolist()).items()}
        ids = [id for id in ids if id in revisions][:MAX_RECALLED]
    else:
        revisions = snapshot.get_revisions(ids, search.collection)
    inside = ranking.where(np.isin(ranking.revisions, [revisions[id] for id in ids if id in revisions]))
    places = {ranked.revision: ranked for ranked in inside.as_ranked()}
    return [(places[revisions[id]], id) for id in ids if revisions.get(id) in places][:MAX_RECALLED]


def _existing(snapshot: Snapshot, ranking: _Ranking, count: int) -> list[tuple[Ranked, str]]:
    """Returns the best documents that the snapshot has, best first, with their ids.

    These are at least `count` documents, unless `ranking` has fewer that exist.
    """
    best = ranking.select_best(count)
    ids = snapshot.get_ids(best.revisions.tolist())
    # The index is newer than the snapshot. Other documents replace those that the snapshot does not have.
    if len(ids) < len(best.revisions) < len(ranking.revisions):
        best = ranking
        ids = snapshot.get_ids(best.revisions.tolist())
    found = [(ranked, ids[ranked.revision]) for ranked in best.as_ranked() if ranked.revision in ids]
    return sorted(found, key=lambda each: (-each[0].score, each[1]))


def _resolved(
    snapshot: Snapshot, generation: Generation, query: Query, search: Search
) -> tuple[Query, int | None]:
    """Replaces a query that names a document by a query with that document's stored vector.

    Also returns the revision of that document, or None for another query.
    """
    if query.similar_to is None:
        return query, None
    stored = snapshot.get_vector(generation.number, query.similar_to, search.collection)
    if stored is not None and search.bounds is not None:
        there = snapshot.among(search.bounds, np.array([stored[0]]), search.collection)
        stored = stored if len(there) else None
    if stored is None:
        raise NotFound(f"There is no document {query.similar_to[:512]!r}.")
    revision, vector = stored
    if vector is None:
        raise Conflict(
            f"{query.similar_to[:512]!r} has no vector of {generation.version}, whose model fails on its "
            "text. So similar documents cannot be found."
        )
    return Query(vector=vector), revision


def _rank_all(
    snapshot: Snapshot,
    moment: Moment | None,
    queries: Sequence[Query],
    search: Search,
    allowed: FilterMatches | None,
) -> Iterator[tuple[_Ranking, Fusion | None, Met | None]]:
    """Yields the best documents of each query, how they were fused, and the documents of its conditions.

    Queries with conditions are searched one by one.
    """
    if not any(query.conditions for query in queries):
        for ranking, fusion in _rankings(snapshot, moment, queries, search, allowed):
            yield ranking, fusion, None
        return
    for query in queries:
        pause()
        met, some = None, allowed
        if query.conditions:
            met = find_documents(snapshot, query.conditions, search.collection)
            some = snapshot.restricted(allowed, *met, search.collection)
        for ranking, fusion in _rankings(snapshot, moment, [query], search, some):
            yield ranking, fusion, met


def _rankings(
    snapshot: Snapshot,
    moment: Moment | None,
    queries: Sequence[Query],
    search: Search,
    allowed: FilterMatches | None,
) -> Iterator[tuple[_Ranking, Fusion | None]]:
    """Yields the best documents of each query, and in hybrid search how they were fused.

    A dense or lexical ranking may have more documents than needed, which tie with the last needed one.
    """
    if moment is None:
        for query in queries:
            pause()
            yield _Ranking.of(*_lexical(snapshot, query, search.reach, allowed, search)), None
        return
    hybrid = search.mode == "hybrid"
    # One more, because the most similar document to a document is itself.
    depth = search.depth if hybrid else search.reach + 1
    near = _dense(moment, queries, depth, allowed, heads_only=not search.passages)
    if not hybrid:
        least = search.min_score
        for ranking in near:
            pause()
            yield ranking if least is None else ranking.where(ranking.scores >= np.float64(least)), None
        return
    # An index in memory needs no connection to the store, so both rankings are made at the same time.
    beside = None
    if len(queries) == 1 and allowed is None and isinstance(moment, IndexMoment):
        beside = _BESIDE.submit(list, near)
    try:
        for query in queries:
            pause()
            worded = _lexical(snapshot, query, depth, allowed, search)
            cover = _cover(snapshot, query, *worded)
            ranking = beside.result()[0] if beside else next(near)
            yield _fused(ranking.where(slice(depth)), _Ranking.of(*worded).where(slice(depth)), cover, search)
    finally:
        if beside:
            wait([beside])  # The index may be closed after the read.


def _dense(
    moment: Moment, queries: Sequence[Query], depth: int, allowed: FilterMatches | None, *, heads_only: bool
) -> Iterator[_Ranking]:
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
            yield _Ranking.of(get_revisions(names), scores, names)


def _lexical(
    snapshot: Snapshot, query: Query, depth: int, allowed: FilterMatches | None, search: Search
) -> Ranking:
    return snapshot.nearest_words(query.text, depth, allowed, search.collection, query.weights)


def _cover(snapshot: Snapshot, query: Query, revisions: Revisions, scores: NDArray[np.float32]) -> float:
    """Returns the share of the query's terms at the start of the best keyword hit, or 1 without a hit."""
    if not len(revisions):
        return 1.0
    best = int(revisions[scores == scores.max()].min())
    content = snapshot.beginnings([best], COVER_CHARACTERS).get(best)
    return get_cover(query.text, content.whole, query.same) if content else 1.0


def _fused(near: _Ranking, worded: _Ranking, cover: float, search: Search) -> tuple[_Ranking, Fusion]:
    dense, lexical = (Scores(each.revisions, each.scores.astype(np.float64)) for each in (near, worded))
    fusion = Fusion(dense, lexical, search.weight, search.unrelated, cover)
    rows = np.zeros(len(fusion.revisions), np.int64)
    rows[: len(near.rows)] = near.rows
    bm25 = np.append(lexical.scores, 0.0)[fusion.in_lexical]
    return _Ranking(fusion.revisions, fusion.scores, rows, bm25), fusion

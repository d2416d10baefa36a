"""The last stage of a search: the reranker orders the best hits again. Start at `choose` and `order`.

    the best rerank_k hits ─▶ the best passage of each, with the query ─▶ scores ─▶ order
    all other hits keep their place

If the ranking of the collection has a weight for the reranker, the ranking score and the weighted score of
the reranker are added. Otherwise the reranker orders the hits alone.

`Reranking.choose` makes the pairs on a reading thread, and `Reranking.order` scores them. One time limit
holds for both. The candidates do not depend on the page, so pages neither repeat nor skip a hit. While this
process remembers a query, its later pages have the order of its first page, even if that one was late.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from models.reranker import Reranker
from models.search.content import Content
from models.search.features import COVER_CHARACTERS
from models.search.ranking import RerankerWeight, remove_activation, rerank
from models.search.terms import get_words, parse_query
from models.tokens.pairs import Pair
from service.active import ActiveReranker
from service.batching.batcher import Batcher
from service.corpus.query import Hit, Page, Query, Search
from service.errors import ServiceError, Timeout
from service.observability.logs import safe_message
from service.ranking import Explanation, Orders
from service.store.scheduling import Abandoned, pause

log = logging.getLogger(__name__)

clock = time.monotonic

# Without a best passage, as in keyword search, the window of a long text that has most terms of the query.
WINDOW_CHARACTERS, STEP_CHARACTERS = 1000, 750
DEADLINE_SHARE = 0.75  # Of the time that a request has left. The rest is for the answer.
_FAILED = "The reranker failed; the log says why. The hits are not reranked."


class NotReranked(Exception):
    """Raised if a search must be answered without the reranker. The message is a warning for the answer."""


class _Scores(NamedTuple):
    """How the candidates of a query were ordered.

    Attributes:
        order: Positions, best first.
        scores: The score of each candidate, NaN where unknown.
        parts: The parts of the reranker in the ranking scores. None: the reranker orders alone.
    """

    order: NDArray[np.intp]
    scores: NDArray[np.float32]
    parts: NDArray[np.float64] | None


class Chosen(NamedTuple):
    """What the reranker reads for a search.

    Attributes:
        pages: For each query, its hits from the first one.
        k: Number of candidates of each query, which are its first hits.
        names: For each query, the key of its order in memory.
        known: Remembered orders, by position of the query.
        pairs: Pairs to score, by position of the query. The last candidates of a query have no pair if the
            time was too short.
        ends: When the time of this stage ends, by `clock`.
        late: Warning for hits that have no score by then.
        weight: How much the score of the reranker counts. None: it orders the hits alone.
    """

    pages: Sequence[Page]
    k: int
    names: Sequence[int]
    known: dict[int, _Scores]
    pairs: Mapping[int, Sequence[Pair]]
    ends: float
    late: str
    weight: RerankerWeight | None


class Reranking:
    """Orders hits by the active reranker.

    Args:
        active: The active reranker.
        batcher: Scores the pairs.
        seconds: Maximum time for each query.
    """

    def __init__(self, active: ActiveReranker, batcher: Batcher, seconds: float) -> None:
        self._active = active
        self._batcher = batcher
        self._seconds = seconds
        self._recent: Orders[_Scores] = Orders()

    @contextmanager
    def borrow(self) -> Iterator[Reranker]:
        """Keeps the active reranker open until the block ends.

        Raises:
            NotReranked: No reranker is active, or it cannot order hits.
        """
        with ExitStack() as stack:
            try:
                reranker = stack.enter_context(self._active.borrow())
            except ServiceError as error:
                raise NotReranked(f"The hits are not reranked: {error.message}") from error
            if reranker.manifest.dimension != 1:
                raise NotReranked("The active reranker has several labels, so it cannot order hits.")
            yield reranker

    def choose(
        self,
        reranker: Reranker,
        weight: RerankerWeight | None,
        queries: Sequence[Query],
        search: Search,
        pages: Sequence[Page],
    ) -> Chosen:
        """Returns the pairs of the queries that have no remembered order. Runs on a reading thread.

        The time of the stage begins now.

        Args:
            reranker: The reranker that will score the pairs.
            weight: How much its score counts. None: it orders the hits alone.
            queries: The queries, which are texts.
            search: Options of the search.
            pages: For each query, its hits from the first one.

        Raises:
            NotReranked: A failure, which is in the log.
            Abandoned: The client disconnected, or its deadline passed.
        """
        try:
            return self._choose(reranker.manifest.version, weight, queries, search, pages)
        except Abandoned:
            raise
        except Exception as error:  # a fault of this stage must not fail a search
            log.warning("Choosing passages for the reranker failed: %s", safe_message(error))
            raise NotReranked(_FAILED) from error

    def _choose(
        self,
        version: str,
        weight: RerankerWeight | None,
        queries: Sequence[Query],
        search: Search,
        pages: Sequence[Page],
    ) -> Chosen:
        began, k = clock(), search.rerank_k
        named = version, weight and weight.weight, search.collection
        names = [
            hash((named, query.text, *(hit.document.id for hit in page.hits[:k])))
            for query, page in zip(queries, pages, strict=True)
        ]
        known = {at: old for at, name in enumerate(names) if (old := self._recent.recall(name)) is not None}
        wanted = [at for at in range(len(pages)) if not search.offset or at not in known]
        seconds, left = self._seconds * len(wanted), DEADLINE_SHARE * (search.ends - began)
        late = f"The reranker took longer than {self._seconds:g} s for a query (SIMILE_RERANK_SECONDS)."
        if left < seconds:
            late = "The reranker took longer than the deadline of the request allows (x-timeout-ms)."
        ends = began + min(seconds, left)
        pairs = {at: _build_pairs(queries[at].text, pages[at].hits[:k], ends) for at in wanted}
        return Chosen(pages, k, names, known, pairs, ends, late, weight)

    async def order(self, reranker: Reranker, chosen: Chosen) -> list[Page]:
        """Returns the pages with their candidates in the order of the reranker.

        A failure is a warning of the pages and in the log.
        """
        try:
            return await self._order(reranker, chosen)
        except Exception as error:  # noqa: BLE001  a fault of this stage must not fail a search
            log.warning("Reranking failed: %s", safe_message(error))
            return [page._replace(rerank_fault=_FAILED) for page in chosen.pages]

    async def _order(self, reranker: Reranker, chosen: Chosen) -> list[Page]:
        pairs = [pair for some in chosen.pairs.values() for pair in some]
        answer, fault = await self._batcher.score(reranker, pairs, max(0.0, chosen.ends - clock()))
        version, known, start = reranker.manifest.version, chosen.known, 0
        found = [page._replace(reranker=version) for page in chosen.pages]
        scored: dict[int, NDArray[np.float32]] = {}
        for at, some in chosen.pairs.items():
            scored[at] = np.full(len(found[at].hits[: chosen.k]), np.nan, np.float32)
            scored[at][: len(some)] = answer.vectors[start : start + len(some), 0]
            found[at] = found[at]._replace(tokens=answer.tokens[start : start + len(some)])
            start += len(some)
        for at, scores in scored.items():
            # A late call does not replace an order that knows more scores.
            if at not in known or np.isfinite(scores).sum() >= np.isfinite(known[at].scores).sum():
                known[at] = _sort(found[at].hits, scores, chosen.weight, reranker.manifest.activation)
                self._recent.remember(chosen.names[at], known[at])
        late = {at: known[at].scores for at in scored if np.isnan(known[at].scores).any()}
        said = _describe(fault, [*late.values()], chosen.late)
        return [
            page._replace(hits=_reorder(page.hits, known[at]), rerank_fault=said if at in late else "")
            for at, page in enumerate(found)
        ]


def _describe(fault: ServiceError | None, scored: Sequence[NDArray[np.float32]], late: str) -> str:
    """Returns why some hits of `scored` have no score.

    Without a fault, there was no time to choose their passages.
    """
    done, count = sum(int(np.isfinite(scores).sum()) for scores in scored), sum(map(len, scored))
    reason = late
    if fault is not None and not isinstance(fault, Timeout):
        reason = f"The reranker could not score all hits ({fault.message.rstrip('.')})."
    return f"{reason} It scored {done} of {count} hits. The others keep their places."


def _sort(
    hits: Sequence[Hit], scores: NDArray[np.float32], weight: RerankerWeight | None, activation: str | None
) -> _Scores:
    """Orders the first hits. Hits without a score of the reranker keep their places."""
    ranked = np.array([hit.ranking_score for hit in hits[: len(scores)]], np.float64)
    if weight is None or np.isnan(ranked).all():
        return _Scores(rerank(scores), scores, None)
    ranked[np.isnan(ranked)] = np.nanmin(ranked)  # Hits after the candidates of the second stage.
    parts = weight.contribute(ranked, remove_activation(scores, activation))
    return _Scores(rerank(ranked + parts), scores, parts)


def _reorder(hits: Sequence[Hit], found: _Scores) -> list[Hit]:
    best = [
        replace(
            hits[at],
            rerank_score=found.scores[at] if np.isfinite(found.scores[at]) else None,
            search_place=at + 1,
            explanation=_explain(hits[at].explanation, None if found.parts is None else found.parts[at]),
        )
        for at in found.order.tolist()
    ]
    return [*best, *hits[len(best) :]]


def _explain(told: Explanation | None, part: float | None) -> Explanation | None:
    """Adds the part of the reranker, if it has one, to the contributions of a hit."""
    if told is None or told.contributions is None or part is None or np.isnan(part):
        return told
    return told._replace(contributions={**told.contributions, "reranker": float(part)})


def _build_pairs(query: str, hits: Sequence[Hit], ends: float) -> list[Pair]:
    """Returns the pairs of the first hits, as many as there is time for."""
    pairs: list[Pair] = []
    telling = parse_query(query).telling
    for hit in hits:
        pause()
        if clock() >= ends:
            break
        pairs.append(Pair(query, _choose_passage(telling, hit)))
    return pairs


def _choose_passage(telling: AbstractSet[str], hit: Hit) -> str:
    """Returns the best passage of a hit, with the title before it.

    Args:
        telling: Terms of the query.
        hit: The hit.
    """
    text: str = orjson.loads(hit.document.text_json)
    title: str = orjson.loads(hit.document.title_json) if hit.document.title_json else ""
    if hit.passage is not None:
        text = text[slice(*hit.passage)]
    elif len(text) > WINDOW_CHARACTERS + STEP_CHARACTERS:
        starts = range(0, min(len(text), COVER_CHARACTERS), STEP_CHARACTERS)
        windows = [text[start : start + WINDOW_CHARACTERS] for start in starts]
        text = max(windows, key=lambda window: len(telling & {*get_words(window)}))
    return Content(text, title).whole

"""The last stage of a search: the reranker orders the best hits again. Start reading at `Reranking.order`.

    the best rerank_k hits ─▶ the best passage of each, with the query ─▶ scores ─▶ order
    all other hits keep their place

The candidates do not depend on the page, so pages neither repeat nor skip a hit. While this process remembers
a query, its later pages have the order of its first page, even if the first page was late or failed.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from models.reranker import Reranker
from models.search.content import Content
from models.search.features import COVER_CHARACTERS, get_cover
from models.tokens.pairs import Pair
from service.active import ActiveReranker
from service.batching.batcher import Batcher
from service.corpus.search import Hit, Page, Query, Search
from service.errors import ServiceError, Timeout
from service.observability.logs import safe_message
from service.ranking import Orders

log = logging.getLogger(__name__)

# Without a best passage, as in keyword search, the window of a long text that has most terms of the query.
WINDOW_CHARACTERS, STEP_CHARACTERS = 1000, 750


class _Scores(NamedTuple):
    """The order of the candidates, as positions, and the score of each candidate, NaN where unknown."""

    order: NDArray[np.intp]
    scores: NDArray[np.float32]


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

    async def order(self, queries: Sequence[Query], pages: Sequence[Page], search: Search) -> list[Page]:
        """Returns the pages with their best hits in the order of the reranker. Never raises a ServiceError.

        Args:
            queries: The queries, which are texts.
            pages: For each query, its hits from the first one.
            search: Options of the search.
        """
        try:
            with self._active.borrow() as reranker:
                if reranker.manifest.dimension != 1:
                    fault = "The active reranker has several labels, so it cannot order hits."
                    return _keep(pages, fault)
                return await self._order_with(reranker, queries, pages, search)
        except ServiceError as error:
            return _keep(pages, f"The hits are not reranked: {error.message}")
        except Exception as error:  # noqa: BLE001  a fault of this stage must not fail a search
            log.warning("Reranking failed: %s", safe_message(error))
            return _keep(pages, "The reranker failed; the log says why. The hits are not reranked.")

    async def _order_with(
        self, reranker: Reranker, queries: Sequence[Query], pages: Sequence[Page], search: Search
    ) -> list[Page]:
        version, first, k = reranker.manifest.version, not search.offset, search.rerank_k
        names = [
            hash((version, search.collection, query.text, *(hit.document.id for hit in page.hits[:k])))
            for query, page in zip(queries, pages, strict=True)
        ]
        known = {at: old for at, name in enumerate(names) if (old := self._recent.recall(name)) is not None}
        wanted = [at for at in range(len(pages)) if first or at not in known]
        pairs = await asyncio.to_thread(_build_pairs, [(queries[at], pages[at].hits[:k]) for at in wanted])
        seconds = self._seconds * max(1, len(wanted))
        answer, fault = await self._batcher.score(
            reranker, [pair for some in pairs for pair in some], seconds
        )
        said = "" if fault is None else _describe(fault, answer.vectors, self._seconds)
        found, start = [page._replace(reranker=version) for page in pages], 0
        for at, some in zip(wanted, pairs, strict=True):
            scores = answer.vectors[start : start + len(some), 0]
            tokens = answer.tokens[start : start + len(some)]
            start += len(some)
            late = bool(np.isnan(scores).any())
            if at not in known or not late:
                known[at] = _Scores(_sort(scores), scores)
                self._recent.remember(names[at], known[at])
            found[at] = found[at]._replace(rerank_fault=said if late else "", rerank_tokens=tokens)
        return [page._replace(hits=_reorder(page.hits, known[at])) for at, page in enumerate(found)]


def _keep(pages: Sequence[Page], fault: str) -> list[Page]:
    return [page._replace(rerank_fault=fault) for page in pages]


def _describe(fault: ServiceError, scores: NDArray[np.float32], seconds: float) -> str:
    done, count = int(np.isfinite(scores[:, 0]).sum()), len(scores)
    reason = f"The reranker could not score all hits ({fault.message.rstrip('.')})."
    if isinstance(fault, Timeout):
        reason = f"The reranker took longer than {seconds:g} s for a query (SIMILE_RERANK_SECONDS)."
    return f"{reason} It scored {done} of {count} hits. The others keep their places."


def _sort(scores: NDArray[np.float32]) -> NDArray[np.intp]:
    """Returns the positions of the hits, best first. Hits without a score keep their places."""
    order = np.arange(len(scores))
    scored = np.flatnonzero(np.isfinite(scores))
    order[scored] = scored[np.argsort(-scores[scored], kind="stable")]
    return order


def _reorder(hits: Sequence[Hit], found: _Scores) -> list[Hit]:
    best = [
        replace(
            hits[at],
            rerank_score=found.scores[at] if np.isfinite(found.scores[at]) else None,
            search_place=at + 1,
        )
        for at in found.order.tolist()
    ]
    return [*best, *hits[len(best) :]]


def _build_pairs(searched: Sequence[tuple[Query, Sequence[Hit]]]) -> list[list[Pair]]:
    return [[Pair(query.text, _choose_passage(query.text, hit)) for hit in hits] for query, hits in searched]


def _choose_passage(query: str, hit: Hit) -> str:
    """Returns the best passage of a hit, with the title before it."""
    text: str = orjson.loads(hit.document.text_json)
    title: str = orjson.loads(hit.document.title_json) if hit.document.title_json else ""
    if hit.passage is not None:
        text = text[slice(*hit.passage)]
    elif len(text) > WINDOW_CHARACTERS + STEP_CHARACTERS:
        starts = range(0, min(len(text), COVER_CHARACTERS), STEP_CHARACTERS)
        windows = [text[start : start + WINDOW_CHARACTERS] for start in starts]
        text = max(windows, key=lambda window: get_cover(query, window))
    return Content(text, title).whole

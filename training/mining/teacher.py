"""Create the training data of `distil-hybrid` and `distil-rerank`: queries with lists of scored documents.

    query ─▶ dense search with the active model ┐
          └▶ keyword search, BM25 ──────────────┴▶ fused ─▶ the first DEPTH ─▶ LISTED of them, with scores

Start reading at `lists`. With these scores, dense search can learn from keyword search (SPAR, Chen et al.
2021; LED, Zhang et al. 2023). If a query was cut out of a document, the document is scored without the query.
A score is the cosine with which dense search would rank the document as hybrid search does:

    fused = w · (cosine - floor) / (best - floor)      solved for the cosine (models/search/fusion.py)

If query and document have no common term, the score is the cosine of the active model. The score of a long
document is that of its best passage, as in the service. The list then contains the title and this passage.
Dense search is that of the service if there is one, because the service has the vectors of all documents.

For `distil-rerank`, `rescore` replaces the scores by those of a cross-encoder, which knows more than search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from models.search.content import Content
from models.search.fusion import DENSE_WEIGHT, fuse, get_floor
from models.tokens.pairs import Pair
from training.errors import NothingToLearn
from training.evaluation.encoding import Vectors
from training.evaluation.modes import CANDIDATES, WordIndex
from training.evaluation.scorable import Scorable
from training.mining.negatives import Hits, Passages, search
from training.mining.neighbors import unit_vectors
from training.mining.queries import Query
from training.mining.rerankers import Score
from training.text.corpus import LISTED

DEPTH = 50  # fused hits from which a list is taken
_WORDED = 4 * CANDIDATES  # hits of keyword search; they include texts without their query
DECIMALS = 6
_TOGETHER = 256  # lists that a cross-encoder scores at a time


class Listed(NamedTuple):
    """A query with a list of scored documents: one line of the output."""

    query: str
    documents: tuple[str, ...]  # LISTED documents, the query's own document first
    scores: tuple[float, ...]  # cosines; may be above 1

    def line(self) -> dict[str, Any]:
        """Returns the JSON object of the line, with the keys that `train` reads."""
        documents = {f"doc_{number}": text for number, text in enumerate(self.documents, 1)}
        return {"query": self.query, **documents, "scores": self.scores}

    def row(self) -> tuple[tuple[str, ...], tuple[float, ...]]:
        return (self.query, *self.documents), self.scores


def lists(
    documents: Sequence[Content],
    queries: Sequence[Query],
    model: Scorable,
    find: Callable[[Vectors], Iterable[Hits]] | None = None,
) -> Iterator[Listed]:
    """Yields a list of scored documents for each query, in the order of `queries`.

    Args:
        documents: The documents.
        queries: The queries.
        model: The active model.
        find: Function that finds the nearest documents of query vectors, shape (q, d). Queries for which it
            finds too few documents have no list. None: `documents` are embedded.

    Raises:
        NothingToLearn: There are fewer documents than a list needs.

    """
    if len(documents) < LISTED:
        raise NothingToLearn(f"{len(documents)} documents are fewer than the {LISTED} of a list: add text.")
    cut = [query for query in queries if query.source is not None]
    # A title that searches do not include may still be a query.
    left = [Content(query.rest, query.title if documents[query.source or 0].title else "") for query in cut]
    rests, of_rest = Passages(left, model), iter(range(len(cut)))
    vectors = unit_vectors(model.encode_queries, [query.text for query in queries])
    found = search(documents, vectors, model) if find is None else find(vectors)
    # One index, so that a term is equally rare in rests and in documents.
    with closing(WordIndex([content.whole for content in (*documents, *left)])) as words:
        for query, vector, hits in zip(queries, vectors, found, strict=True):
            counted = words.nearest(query.text, _WORDED)
            worded = {place: bm25 for place, bm25 in counted.items() if place < len(documents)}
            near = dict(hits.cosines)
            own: dict[int, str] = {}
            if query.source is not None:
                rest = next(of_rest)
                near[query.source], own[query.source] = rests.nearest(rest, vector)
                worded.pop(query.source, None)
                place = len(documents) + rest
                counted = {at: bm25 for at, bm25 in counted.items() if at in worded or at == place}
                if bm25 := counted.get(place):
                    worded[query.source] = bm25
            else:
                counted = worded
            if len(near) < LISTED:
                continue
            cover = words.get_cover(query.text, counted)
            scores = _in_cosines(near, worded, model.unrelated, cover)
            others = spread([place for place in scores if place not in own], LISTED - len(own))
            chosen = [*own, *others]
            texts = tuple(own.get(place) or hits.text(place) for place in chosen)
            yield Listed(query.text, texts, tuple(round(scores[place], DECIMALS) for place in chosen))


def rescore(found: Iterable[Listed], score: Score) -> Iterator[Listed]:
    """Yields lists with the raw scores of a cross-encoder.

    Args:
        found: The lists.
        score: Cross-encoder, which returns raw scores (logits).

    """
    rest = iter(found)
    while some := list(islice(rest, _TOGETHER)):
        scores = score([Pair(listed.query, text) for listed in some for text in listed.documents])
        for listed, row in zip(some, scores.reshape(len(some), LISTED).tolist(), strict=True):
            yield listed._replace(scores=tuple(round(each, DECIMALS) for each in row))


def spread(ranked: Sequence[int], count: int) -> list[int]:
    """Returns `count` of the first DEPTH documents in `ranked`, including the first and the last.

    Most of them are at the top, because the top of a list matters most in a search.
    """
    found: list[int] = []
    for rank in np.geomspace(1, min(DEPTH, len(ranked)), count).round():
        found.append(max(int(rank), found[-1] + 1 if found else 1))
    return [ranked[rank - 1] for rank in found]


def _in_cosines(
    near: Mapping[int, float], worded: Mapping[int, float], unrelated: float, cover: float
) -> dict[int, float]:
    """Returns the fused scores of documents as cosines, the best first.

    Args:
        near: Cosines from dense search, by index of the document.
        worded: BM25 scores from keyword search, by index of the document.
        unrelated: Mean cosine of unrelated texts.
        cover: Share of the query's terms in the best hit of keyword search.

    """
    floor = get_floor(np.array([*near.values()]), unrelated)
    scale = (max(near.values()) - floor) / DENSE_WEIGHT
    found = fuse(near, worded, DENSE_WEIGHT, unrelated, cover)
    scores = {place: floor + float(fused) * scale for place, fused in found.items()}
    return dict(sorted(scores.items(), key=lambda item: (-item[1], item[0])))

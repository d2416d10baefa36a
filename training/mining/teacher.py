"""Create the training data of `distil-hybrid`: queries with lists of documents, scored by hybrid search.

    query ─▶ dense search with the active model ┐
          └▶ keyword search, BM25 ──────────────┴▶ fused ─▶ the first DEPTH ─▶ LISTED of them, with scores

Start reading at `lists`. With these scores, dense search can learn from keyword search (SPAR, Chen et al.
2021; LED, Zhang et al. 2023). If a query was cut out of a document, the document is scored without the query.
A score is the cosine with which dense search would rank the document as hybrid search does:

    fused = w · (cosine - floor) / (best - floor)      solved for the cosine (models/search/fusion.py)

If query and document have no common term, the score is the cosine of the active model. The score of a long
document is that of its best passage, as in the service. The list then contains the title and this passage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.progress import counted
from models.search.content import Content
from models.search.fusion import DENSE_WEIGHT, fuse, get_floor
from training.errors import NothingToLearn
from training.evaluation.encoding import Vectors
from training.evaluation.modes import CANDIDATES, WordIndex
from training.evaluation.scorable import Scorable
from training.mining.neighbors import cosine_blocks, unit_vectors
from training.mining.pairs import folded
from training.mining.queries import Query
from training.text.corpus import LISTED

DEPTH = 50  # fused hits from which a list is taken
_WORDED = 4 * CANDIDATES  # hits of keyword search; they include rests
_DECIMALS = 6


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


class _Passages:
    """The vectors and texts of the passages of several documents, one document after another."""

    def __init__(self, contents: Sequence[Content], model: Scorable) -> None:
        shown = counted(contents, "texts", len(contents), "splitting")
        parts = [model.split(content, None) for content in shown]
        self.texts = [folded(part) for of_text in parts for part in of_text]
        self.starts = np.cumsum([0, *map(len, parts)])
        self.vectors: Vectors = unit_vectors(model.encode_documents, self.texts)

    def best(self, cosines: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns the best cosine of each document, given the cosines of all passages."""
        return np.maximum.reduceat(cosines, self.starts[:-1])

    def nearest(self, text: int, query: Vectors) -> tuple[float, str]:
        """Returns the highest cosine of a query with the passages of a document, and that passage."""
        start, end = self.starts[text : text + 2]
        cosines = self.vectors[start:end] @ query
        at = int(cosines.argmax())
        return float(cosines[at]), self.texts[start + at]


def lists(documents: Sequence[Content], queries: Sequence[Query], model: Scorable) -> Iterator[Listed]:
    """Yields a list of scored documents for each query, in the order of `queries`.

    Raises:
        NothingToLearn: There are fewer documents than a list needs.

    """
    if len(documents) < LISTED:
        raise NothingToLearn(f"{len(documents)} documents are fewer than the {LISTED} of a list: add text.")
    passages = _Passages(documents, model)
    cut = [query for query in queries if query.source is not None]
    # A title that searches do not include may still be a query.
    left = [Content(query.rest, query.title if documents[query.source or 0].title else "") for query in cut]
    rests, of_rest = _Passages(left, model), iter(range(len(cut)))
    vectors = unit_vectors(model.encode_queries, [query.text for query in queries])
    # One index, so that a term is equally rare in rests and in documents.
    with closing(WordIndex([content.whole for content in (*documents, *left)])) as words:
        for start, block in cosine_blocks(vectors, passages.vectors, "queries"):
            for row, query, vector in zip(block, queries[start:], vectors[start:], strict=False):
                cosines, counted = passages.best(row), words.nearest(query.text, _WORDED)
                worded = {place: bm25 for place, bm25 in counted.items() if place < len(documents)}
                own: dict[int, str] = {}
                if query.source is not None:
                    rest = next(of_rest)
                    cosines[query.source], own[query.source] = rests.nearest(rest, vector)
                    worded.pop(query.source, None)
                    place = len(documents) + rest
                    counted = {at: bm25 for at, bm25 in counted.items() if at in worded or at == place}
                    if bm25 := counted.get(place):
                        worded[query.source] = bm25
                else:
                    counted = worded
                cover = words.get_cover(query.text, counted)
                scores = _in_cosines(cosines, worded, own, model.unrelated, cover)
                others = spread([place for place in scores if place not in own], LISTED - len(own))
                texts = [own.get(place) or passages.nearest(place, vector)[1] for place in (*own, *others)]
                values = [round(scores[place], _DECIMALS) for place in (*own, *others)]
                yield Listed(query.text, tuple(texts), tuple(values))


def spread(ranked: Sequence[int], count: int) -> list[int]:
    """Returns `count` of the first DEPTH documents in `ranked`, including the first and the last.

    Most of them are at the top, because the top of a list matters most in a search.
    """
    found: list[int] = []
    for rank in np.geomspace(1, min(DEPTH, len(ranked)), count).round():
        found.append(max(int(rank), found[-1] + 1 if found else 1))
    return [ranked[rank - 1] for rank in found]


def _in_cosines(
    cosines: NDArray[np.float32],
    worded: Mapping[int, float],
    kept: Iterable[int],
    unrelated: float,
    cover: float,
) -> dict[int, float]:
    """Returns the fused scores of documents as cosines, the best first.

    Args:
        cosines: Cosine of each document in dense search.
        worded: BM25 scores from keyword search, by index of the document.
        kept: Indices of documents to include at any rank.
        unrelated: Mean cosine of unrelated texts.
        cover: Share of the query's terms in the best hit of keyword search.

    """
    order = np.argsort(-cosines, kind="stable")[:CANDIDATES].tolist()
    near = {place: float(cosines[place]) for place in (*order, *kept)}
    floor = get_floor(near, unrelated)
    scale = (max(near.values()) - floor) / DENSE_WEIGHT
    found = fuse(near, worded, DENSE_WEIGHT, unrelated, cover)
    scores = {place: floor + float(fused) * scale for place, fused in found.items()}
    return dict(sorted(scores.items(), key=lambda item: (-item[1], item[0])))

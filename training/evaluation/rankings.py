"""Ranked lists and what they are worth: exact nearest neighbours by cosine, and the figures of BEIR.

Pure functions of numbers and ids. Where documents and judgements come from is not here (retrieval.py), nor
how well an approximate index finds the same neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.evaluation.encoding import Vectors
from training.evaluation.geometry import directions

DEPTH = 100  # of the longest list that a figure looks at
_QUERIES, _DOCUMENTS = 128, 8192  # of the matrix of cosines at a time: 8 MB, and what sorting it takes
_DECIMALS = 9  # of a cosine: beyond what vectors in float32 hold, and short of float64's rounding


class Ranking(NamedTuple):
    """Figures from 0 to 1, of one query or the means over many; trec_eval's definitions."""

    ndcg10: float
    recall1: float
    recall10: float
    recall100: float
    mrr10: float
    map100: float


def judge(ranked: Sequence[str], relevant: Mapping[str, float]) -> Ranking:
    """`ranked`: document ids, best first, none twice. `relevant`: id to gain above 0, at least one.

    nDCG has linear gain, and the ideal list is of all relevant documents, found or not (Järvelin & Kekäläinen
    2002). Recall and average precision divide by the number of all relevant documents.
    """
    gains = [relevant.get(document, 0.0) for document in ranked[:DEPTH]]
    hits = [rank for rank, gain in enumerate(gains, 1) if gain > 0]
    ideal = sorted(relevant.values(), reverse=True)
    return Ranking(
        ndcg10=_dcg(gains[:10]) / _dcg(ideal[:10]),
        recall1=sum(rank <= 1 for rank in hits) / len(relevant),
        recall10=sum(rank <= 10 for rank in hits) / len(relevant),
        recall100=len(hits) / len(relevant),
        mrr10=1 / hits[0] if hits and hits[0] <= 10 else 0.0,
        map100=sum(found / rank for found, rank in enumerate(hits, 1)) / len(relevant),
    )


def mean(rankings: Sequence[Ranking]) -> Ranking:
    """Every query counts once."""
    return Ranking(*(math.fsum(figure) / len(rankings) for figure in zip(*rankings, strict=True)))


def nearest(queries: Vectors, documents: Vectors, k: int) -> NDArray[np.int64]:
    """(q, d), (n, d) -> (q, min(k, n)): rows of documents by descending cosine, equal ones by ascending row.

    Exact. A vector without a direction has cosine 0 with every other.
    """
    x = np.nan_to_num(directions(queries))
    cosines, rows = np.empty((len(x), 0)), np.empty((len(x), 0), np.int64)
    for start in range(0, len(documents), _DOCUMENTS):
        y = np.nan_to_num(directions(documents[start : start + _DOCUMENTS]))
        among = np.arange(start, start + len(y))
        parts = []
        for at in range(0, len(x), _QUERIES):
            part = slice(at, at + _QUERIES)
            parts += [_best(cosines[part], rows[part], x[part] @ y.T, among, k)]
        cosines, rows = (np.concatenate(side) for side in zip(*parts, strict=True))
    return rows


def _best(
    cosines: NDArray[np.float64],
    rows: NDArray[np.int64],
    more: NDArray[np.float64],
    among: NDArray[np.int64],
    k: int,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The best k of each query so far, and of `more` documents behind them."""
    # A product of matrices may give equal vectors cosines that differ in the last bit, by their place in it.
    cosines = np.concatenate([cosines, more.round(_DECIMALS)], axis=1)
    rows = np.concatenate([rows, np.broadcast_to(among, more.shape)], axis=1)
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(cosines, order, axis=1), np.take_along_axis(rows, order, axis=1)


def _dcg(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))

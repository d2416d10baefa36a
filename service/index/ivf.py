"""Searches a segment approximately, through inverted lists. Start at `Clustered.nearest` and `build`.

    query ─▶ the lists of the nearest centers ─▶ candidates by 8-bit codes ─▶ exact scores ─▶ the best k
      └────▶ few rows allowed, or too few found: all of them are scored ─────────────────────────▲

A copy of the lists on a GPU may find the candidates (gpu.py).

For a million rows with 384 dimensions, codes and float16 vectors take 1.2 GB. Float32 vectors take 1.5 GB.
Scores of unit vectors differ from float32 by at most 2^-11, usually by 0.00002. A view with such a segment
computes all scores in float16 (view.py), so equal texts have equal scores.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import faiss
import numpy as np
from numpy.typing import NDArray

from service.index.gpu import CPU, GpuIndex, GpuThread
from service.index.kmeans import cluster
from service.index.segments import (
    Positions,
    Rows,
    Scores,
    Segment,
    Selection,
    Vectors,
    chunks,
    selector,
    sort_order,
)
from service.store.values import RowNames

# Chosen on a million vectors of a mixture and on 100,000 real sentences (docs/PERFORMANCE.md).
# Lists per square root of the rows, rounded to a power of two: 512 for 50,000 rows, 2,048 for a million.
LISTS_PER_ROOT = 2
SAMPLE_PER_LIST = 48  # training rows per list
LOOKED_AT, POWER = 4.0, 0.75  # A search reads 4 n^0.75 of n rows: 27 % of 50,000, 13 % of a million.
PER_HIT = 32  # It reads at least this many rows per requested document.
# Candidates per requested document, because 8-bit codes are inexact, and further candidates at most. Requests
# of 1,016 of 100,000 documents find as many of the best with 300 as with 3,048.
OVER, FURTHER = 4, 300
# If so few rows are allowed, or such a share of the segment, scoring all of them is about as fast.
EXACT_ROWS, EXACT_SHARE = 20_000, 0.1
CODE_ROWS = 16_384  # rows for finding the ranges of codes
# A GPU cannot skip dead and filtered rows. It returns more candidates, and the others are dropped afterwards.
WIDE_SHARE, MORE = 0.5, 1.25
RETRAIN = 2.0  # New centers are trained if the number of rows changes by this factor.


class Training(NamedTuple):
    """The trained centers of lists and ranges of codes.

    They can be reused for other rows of the same kind.
    """

    empty: faiss.IndexIVFScalarQuantizer  # an index without rows
    rows: int  # number of rows at the time of training

    def suits(self, rows: int) -> bool:
        return self.rows / RETRAIN <= rows <= self.rows * RETRAIN


class Clustered(Segment):
    """Rows in inverted lists. The search for candidates is approximate; the scores are exact."""

    is_float16 = True
    labels: NDArray[np.int32]

    def __init__(
        self,
        names: RowNames,
        exact: faiss.IndexScalarQuantizer,
        lists: faiss.IndexIVFScalarQuantizer,
        labels: NDArray[np.int32],
        training: Training,
    ) -> None:
        codes = faiss.rev_swig_ptr(exact.codes.data(), exact.codes.size())
        vectors = codes.view(np.float16).reshape(exact.ntotal, exact.d)  # FAISS's memory
        super().__init__(names, vectors, sort_order(names))
        self._exact = exact
        self.labels = labels
        self.training = training
        self.placed: GpuIndex | None = None  # the same lists on a GPU
        self._lists = lists

    def place(self, gpu: GpuThread) -> None:
        self.placed = gpu.place(self._lists)

    @property
    def device(self) -> str:
        return CPU if self.placed is None else self.placed.device

    @property
    def nbytes(self) -> int:
        code_and_number = len(self.names) * (self._lists.d + 8)
        return super().nbytes + self.labels.nbytes + code_and_number

    def scan(self, queries: Vectors, k: int, selection: Selection) -> tuple[Scores, Positions]:
        scores, positions = self._exact.search(queries, k, params=_only(selection))
        return scores, positions

    def at_least(self, query: Vectors, score: float, selection: Selection) -> tuple[Scores, Positions]:
        _, scores, positions = self._exact.range_search(query, score, params=_only(selection))
        return scores, positions

    def nearest(self, queries: Vectors, k: int, selection: Selection) -> tuple[Scores, Positions]:
        if selection.rows <= max(EXACT_ROWS, EXACT_SHARE * len(self.names)):
            return self.scan(queries, k, selection)
        probes = self._probes(queries, k, selection)
        candidates = self._on_device(queries, k, selection, probes)
        found = [
            self._through_lists(queries[at : at + 1], k, selection, number, candidates.get(at))
            for at, number in enumerate(probes)
        ]
        scores, positions = zip(*found, strict=True)
        return np.concatenate(scores), np.concatenate(positions)

    def _through_lists(
        self, query: Vectors, k: int, selection: Selection, probes: int, candidates: Positions | None
    ) -> tuple[Scores, Positions]:
        if probes == self._lists.nlist:
            return self.scan(query, k, selection)
        if candidates is None:
            candidates = self._candidates(query, _count_candidates(k, selection), selection, probes)
        if len(candidates) < k:
            return self.scan(query, k, selection)
        scores = np.vecdot(self.vectors[candidates].astype(np.float32), query[0])
        best = np.argpartition(-scores, k - 1)[:k]
        return scores[None, best], candidates[None, best]

    def _candidates(self, query: Vectors, count: int, selection: Selection, probes: int) -> Positions:
        swig: Any = faiss
        looked_at = swig.SearchParametersIVF(nprobe=probes, sel=selector(selection))
        _, [found] = self._lists.search(query, count, params=looked_at)
        positions: Positions = found[found >= 0]
        return positions

    def _on_device(
        self, queries: Vectors, k: int, selection: Selection, probes: Sequence[int]
    ) -> dict[int, Positions]:
        """Searches on a GPU. Returns the candidates by the position of their query.

        Queries that the GPU did not answer, or not completely, are missing.
        """
        placed = self.placed
        if placed is None or selection.rows < WIDE_SHARE * len(self.names):
            return {}
        count = _count_candidates(k, selection)
        requested = count
        if selection.bitmap is not None:
            requested = min(len(self.names), math.ceil(MORE * count * len(self.names) / selection.rows))
        complete: dict[int, Positions] = {}
        for number in {*probes} - {self._lists.nlist}:
            places = [at for at, one in enumerate(probes) if one == number]
            rows = placed.candidates(queries[places], requested, number)
            if rows is None:
                continue
            for at, row in zip(places, rows, strict=True):
                found = selection.among(row[row >= 0])
                # Fewer than `count` matches are complete only if the searched lists have no other rows.
                if len(found) >= count or len(row) > np.count_nonzero(row >= 0):
                    complete[at] = found[:count]
        return complete

    def _probes(self, queries: Vectors, k: int, selection: Selection) -> list[int]:
        """Returns the number of lists to search for each query.

        The lists of a query must have enough rows, or with a filter enough matching rows. A filter therefore
        makes a query search more lists, because matching rows may be far from the query.
        """
        lists = self._lists.nlist
        rows = max(LOOKED_AT * len(self.names) ** POWER, PER_HIT * k)
        if selection.bitmap is None:
            return [min(lists, math.ceil(rows * lists / len(self.names)))] * len(queries)
        matching = np.unpackbits(selection.bitmap, count=len(self.names), bitorder="little")
        sizes = np.bincount(self.labels, weights=matching, minlength=lists)
        _, nearest = self._lists.quantizer.search(queries, lists)
        met = np.cumsum(sizes[nearest], axis=1)
        return [min(lists, int(np.searchsorted(row, rows)) + 1) for row in met]


def _count_candidates(k: int, selection: Selection) -> int:
    return min(OVER * k, k + FURTHER, selection.rows)


def _only(selection: Selection) -> Any:
    swig: Any = faiss
    return None if selection.bitmap is None else swig.SearchParameters(sel=selector(selection))


def build(
    dimension: int, sources: Sequence[Rows], training: Training | None, cancelled: Callable[[], bool] = bool
) -> Clustered:
    """Builds a segment of all rows of `sources`, in their order. May take minutes on one thread.

    Args:
        dimension: Dimension of the vectors.
        sources: The rows, with labels that belong to `training`.
        training: An earlier training. It is reused if it suits the number of rows.
        cancelled: Returns True if the segment is not needed any more.

    Raises:
        Cancelled: `cancelled()` returned True.
    """
    faiss.omp_set_num_threads(1)
    names = np.concatenate([rows.names for rows in sources])
    labels = np.full(len(names), -1, np.int32)
    if training is None or not training.suits(len(names)):
        training = _train(dimension, sources, cancelled)
    else:
        start = 0
        for rows in sources:
            if rows.labels is not None:
                labels[start : start + len(rows.names)] = rows.labels[rows.positions]
            start += len(rows.names)
    exact = faiss.IndexScalarQuantizer(dimension, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
    lists: Any = faiss.clone_index(training.empty)
    start = 0
    for chunk in chunks(sources, cancelled):
        theirs = labels[start : start + len(chunk)]
        unknown = np.flatnonzero(theirs < 0)
        if len(unknown):
            theirs[unknown] = lists.quantizer.search(chunk[unknown], 1)[1][:, 0]
        # numpy computes the float16 codes in FAISS's format, because FAISS itself would round differently.
        exact.add_sa_codes(chunk.astype(np.float16).view(np.uint8))
        numbers = theirs.astype(np.int64)
        lists.add_core(len(chunk), faiss.swig_ptr(chunk), None, faiss.swig_ptr(numbers))
        start += len(chunk)
    return Clustered(names, exact, lists, labels, training)


def training_bytes(rows: int, dimension: int) -> int:
    return min(rows, SAMPLE_PER_LIST * _lists(rows)) * 4 * dimension


def _lists(rows: int) -> int:
    lists: int = 2 ** round(math.log2(LISTS_PER_ROOT * math.sqrt(rows)))
    return min(rows, lists)


def _train(dimension: int, sources: Sequence[Rows], cancelled: Callable[[], bool]) -> Training:
    rows = sum(len(source.names) for source in sources)
    count = _lists(rows)
    chosen = np.random.default_rng(0).permutation(rows)[: SAMPLE_PER_LIST * count]
    sample = np.empty((len(chosen), dimension), np.float32)
    first = 0
    for source in sources:
        places = np.flatnonzero((chosen >= first) & (chosen < first + len(source.names)))
        start = 0
        for chunk in chunks([source.at(chosen[places] - first)], cancelled):
            sample[places[start : start + len(chunk)]] = chunk
            start += len(chunk)
        first += len(source.names)
    quantizer = faiss.IndexFlatIP(dimension)
    quantizer.add(cluster(sample, count, cancelled))
    empty = faiss.IndexIVFScalarQuantizer(
        quantizer, dimension, count, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
    )
    empty.train(sample[:CODE_ROWS])
    return Training(empty, rows)

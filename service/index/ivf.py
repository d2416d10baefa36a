"""A large segment: the rows near a query are found through inverted lists, and scored by their own vectors.

    query ─▶ the lists of the nearest centres ─▶ candidates by 8-bit codes ─▶ exact scores ─▶ the best k
      └────▶ few rows allowed, or too few found: every one of them is scored ────────────────────▲

The candidates may come from a copy of the lists on a GPU (gpu.py), by the same lists and codes.

Codes take a byte a dimension, and the vectors themselves stay beside them as float16, two bytes: at a million
rows of 384 dimensions 1.2 GB where float32 alone takes 1.5. A score differs from that of the float32 vector
by at most 2^-11 of both lengths (0.0005 for unit vectors; 0.00002 is usual). A view with such a segment
scores the rows of all its segments so, by the same sums (view.py): equal texts tie wherever they lie.
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
    order_of,
    selector,
)
from service.store.values import RowNames

# Chosen on a million vectors of a mixture and on 100,000 real sentences; docs/PERFORMANCE.md has the figures.
LISTS_PER_ROOT = (
    2  # lists over the square root of the rows, to a power of two: 512 from 50,000 on, 2,048 at 1M
)
SAMPLE_PER_LIST = 48  # rows to find a centre by
LOOKED_AT, POWER = 4.0, 0.75  # a search looks at 4 n^0.75 of n rows: 27 % of 50,000, 13 % of a million
PER_HIT = 32  # and at least this many for each that is asked for
OVER = 4  # candidates for each that is asked for: the 8-bit codes err
# With this many rows allowed, or this part of a segment, it is about as fast to score all of them.
FEW_ROWS, FEW_SHARE = 20_000, 0.1
CODE_ROWS = 16_384  # to find the range of each dimension's codes by
# A GPU knows nothing of dead and filtered rows: they are left out afterwards, so it is asked for more.
WIDE_SHARE, MORE = 0.5, 1.25
RETRAIN = 2.0  # times as many rows, or as few, as the centres were found for


class Training(NamedTuple):
    """Centres and the ranges of codes; good for other rows of the same kind, too."""

    empty: faiss.IndexIVFScalarQuantizer  # an index without rows
    rows: int  # that there were, when it was found

    def suits(self, rows: int) -> bool:
        return self.rows / RETRAIN <= rows <= self.rows * RETRAIN


class Clustered(Segment):
    """Rows in inverted lists; searches are approximate, scores are not."""

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
        super().__init__(names, vectors, order_of(names))
        self._exact = exact
        self.labels = labels
        self.training = training
        self.placed: GpuIndex | None = None  # the same lists on a GPU; set once, when they are there
        self._lists = lists

    def place(self, gpu: GpuThread) -> None:
        """Put the lists on a GPU, too, if there is room."""
        self.placed = gpu.place(self._lists)

    @property
    def device(self) -> str:
        """The device that finds its candidates."""
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
        if selection.rows <= max(FEW_ROWS, FEW_SHARE * len(self.names)):
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
            candidates = self._candidates(query, min(OVER * k, selection.rows), selection, probes)
        if len(candidates) < k:
            return self.scan(query, k, selection)
        scores = np.vecdot(self.vectors[candidates].astype(np.float32), query[0])
        best = np.argpartition(-scores, k - 1)[:k]
        return scores[None, best], candidates[None, best]

    def _candidates(self, query: Vectors, count: int, selection: Selection, probes: int) -> Positions:
        """The best selected rows in the nearest lists, by their codes."""
        swig: Any = faiss
        looked_at = swig.SearchParametersIVF(nprobe=probes, sel=selector(selection))
        _, [found] = self._lists.search(query, count, params=looked_at)
        positions: Positions = found[found >= 0]
        return positions

    def _on_device(
        self, queries: Vectors, k: int, selection: Selection, probes: Sequence[int]
    ) -> dict[int, Positions]:
        """The candidates of some of the queries, by their places, from a GPU."""
        placed = self.placed
        if placed is None or selection.rows < WIDE_SHARE * len(self.names):
            return {}
        count = min(OVER * k, selection.rows)
        asked = count
        if selection.bitmap is not None:
            asked = min(len(self.names), math.ceil(MORE * count * len(self.names) / selection.rows))
        complete: dict[int, Positions] = {}
        for number in {*probes} - {self._lists.nlist}:
            places = [at for at, one in enumerate(probes) if one == number]
            rows = placed.candidates(queries[places], asked, number)
            if rows is None:
                continue
            for at, row in zip(places, rows, strict=True):
                found = selection.among(row[row >= 0])
                if len(found) >= count or len(row) > np.count_nonzero(row >= 0):  # or the lists have no more
                    complete[at] = found[:count]
        return complete

    def _probes(self, queries: Vectors, k: int, selection: Selection) -> list[int]:
        """The number of lists to look through for each query.

        With a filter as many as it takes to meet the same number of rows that pass: a query may come from
        elsewhere than they lie.
        """
        lists = self._lists.nlist
        rows = max(LOOKED_AT * len(self.names) ** POWER, PER_HIT * k)
        if selection.bitmap is None:
            return [min(lists, math.ceil(rows * lists / len(self.names)))] * len(queries)
        passing = np.unpackbits(selection.bitmap, count=len(self.names), bitorder="little")
        sizes = np.bincount(self.labels, weights=passing, minlength=lists)
        _, nearest = self._lists.quantizer.search(queries, lists)
        met = np.cumsum(sizes[nearest], axis=1)
        return [min(lists, int(np.searchsorted(row, rows)) + 1) for row in met]


def _only(selection: Selection) -> Any:
    """The parameters of a FAISS search through the selected rows."""
    swig: Any = faiss
    return None if selection.bitmap is None else swig.SearchParameters(sel=selector(selection))


def build(
    dimension: int,
    sources: Sequence[Rows],
    training: Training | None,
    cancelled: Callable[[], bool] = bool,
) -> Clustered:
    """A segment of all rows of `sources`, in their order; made on one thread, for minutes perhaps.

    training: that of the rows' labels, where they have some. It is used again while it suits.

    Raises:
        Cancelled: `cancelled()` became true.

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
        exact.add_sa_codes(_halved(chunk))
        numbers = theirs.astype(np.int64)
        lists.add_core(len(chunk), faiss.swig_ptr(chunk), None, faiss.swig_ptr(numbers))
        start += len(chunk)
    return Clustered(names, exact, lists, labels, training)


def _halved(vectors: Vectors) -> NDArray[np.uint8]:
    """The codes of FAISS for float16, rounded by numpy: FAISS rounds halves another way."""
    return vectors.astype(np.float16).view(np.uint8)


def training_bytes(rows: int, dimension: int) -> int:
    """Memory of the sample that the centres for so many rows are found by."""
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

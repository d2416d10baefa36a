"""The same bits for a text whatever it is computed with, by fixing the shapes in which it is.

    up to 64 tokens    padded to 32 or 64, with others of that length; few tokens beside themselves
    longer             alone

A runtime chooses kernels, and with them the order of sums, by a batch's shape. Rows padded to one length gave
equal bits in every batch of at least two rows and 17 tokens wherever it was tried. A row alone did not. And
OpenVINO computes up to 16 tokens by another kernel (a tile of AMX has 16 rows), which changed bits of one
text in two hundred. So smaller batches are computed beside themselves. Nobody promises so much: it is tried
again when a version is opened, and where it does not hold every text is computed alone. The trial is of
twelve rows, so it finds what is common, and may miss what is rare.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_SHORT_TOKENS = 64  # of longer texts several in a batch are hardly quicker than one after the other
# Steps of the padded length: short ones pad little, long ones let more texts share a batch. In a graph that
# computes no padding outside attention 32 cost less than 8, 16 and 64; in others 8 less than 4 and 16.
_STEP_TOKENS, _STEP_TOKENS_PACKED = 8, 32
_TRIED_ROWS = 12
_LEAST_ROWS, _LEAST_TOKENS = 2, 17

# Rows of ids, and the length to which they are padded -> (rows, dimension).
Run = Callable[[Sequence[Sequence[int]], int], NDArray[np.float32]]


class Shapes(NamedTuple):
    short: int  # the most tokens of a text that shares batches; a multiple of `step`
    step: int
    packed: bool

    @classmethod
    def of(cls, max_length: int, *, packed: bool) -> Shapes:
        """packed: whether padding costs attention only."""
        step = _STEP_TOKENS_PACKED if packed else _STEP_TOKENS
        return cls(min(_SHORT_TOKENS, max_length) // step * step, step, packed)

    def tried(self, run: Run, ids: Sequence[int]) -> Shapes:
        """These, where a row has the same bits in batches of two, of three and of more; else each text alone.

        ids: some tokens, of which rows are made.
        """
        same = all(self._same(run, ids, length) for length in range(self.step, self.short + 1, self.step))
        return self if same else self._replace(short=0)

    def _same(self, run: Run, ids: Sequence[int], length: int) -> bool:
        made = np.resize(np.asarray(ids), (_TRIED_ROWS, length)).tolist()
        rows = [row[: length - at * self.step // _TRIED_ROWS] for at, row in enumerate(made)]
        together = run(rows, length)
        few = [slice(start, start + count) for count in (2, 3) for start in range(0, _TRIED_ROWS, count)]
        return all(np.array_equal(self._enough(run, rows[at], length), together[at]) for at in few)

    def run(self, ids: Sequence[Sequence[int]], run: Run) -> NDArray[np.float32]:
        """`run` over `ids`, at least one row, in these shapes."""
        found: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(ids)
        for at, length in self._batches([len(row) for row in ids]):
            rows = [ids[position] for position in at]
            vectors = self._enough(run, rows, length) if length <= self.short else run(rows, length)
            for position, vector in zip(at, vectors, strict=True):
                found[position] = vector
        return np.stack(found)

    def _enough(self, run: Run, rows: Sequence[Sequence[int]], length: int) -> NDArray[np.float32]:
        """`run`, over the rows beside themselves where they have too few rows or tokens."""
        tokens = sum(map(len, rows)) if self.packed else length * len(rows)
        times = max(-(-_LEAST_ROWS // len(rows)), -(-_LEAST_TOKENS // max(1, tokens)))
        return run([*rows] * times, length)[: len(rows)]

    def _batches(self, lengths: Sequence[int]) -> Iterator[tuple[list[int], int]]:
        """Positions of the rows of each batch, and its length."""
        alike: dict[int, list[int]] = defaultdict(list)
        for position, length in enumerate(lengths):
            padded = -(-length // self.step) * self.step
            if padded <= self.short:
                alike[padded].append(position)
            else:
                yield [position], length
        for padded, positions in alike.items():
            yield positions, padded

"""The same bits for a text whatever it is computed with, by fixing the shapes in which it is.

    up to 64 tokens    padded to a multiple of 8, with others of that length; a single one beside itself
    longer             alone

A runtime chooses kernels, and with them the order of sums, by a batch's shape. Rows padded to one length gave
equal bits in every batch of two and more wherever it was tried, but a row alone did not. Nobody promises so
much: it is tried again when a version is opened, and where it does not hold every text is computed alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

SHORT_TOKENS = 64  # of longer texts several in a batch are hardly quicker than one after the other
STEP_TOKENS = 8  # with 4 fewer texts share a batch; 16 is as quick, but not for a graph that computes padding
_TRIED_LENGTHS = (8, 16, 24, 32, 48, 64)
_TRIED_ROWS = 12

# Rows of ids, and the length to which they are padded -> (rows, dimension).
Run = Callable[[Sequence[Sequence[int]], int], NDArray[np.float32]]


def run_in_fixed_shapes(ids: Sequence[Sequence[int]], run: Run, short: int) -> NDArray[np.float32]:
    """`run` over `ids`, which are at least one row; those longer than `short` tokens each alone."""
    found: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(ids)
    for at, length in _batches([len(row) for row in ids], short):
        rows = [ids[position] for position in at]
        together = rows * 2 if len(rows) == 1 and length <= short else rows
        for position, vector in zip(at, run(together, length), strict=False):
            found[position] = vector
    return np.stack(found)


def rows_do_not_matter(run: Run, ids: Sequence[int], longest: int) -> bool:
    """Whether a row has the same bits in batches of two rows, of three, and of all that are tried.

    ids: some tokens, of which the rows are made. longest: no length above it is tried.
    """
    for length in _TRIED_LENGTHS:
        if length > longest:
            break
        made = np.resize(np.asarray(ids), (_TRIED_ROWS, length)).tolist()
        rows = [row[: length - at % STEP_TOKENS] for at, row in enumerate(made)]
        together = run(rows, length)
        for count in (2, 3):
            for start in range(0, _TRIED_ROWS, count):
                few = slice(start, start + count)
                if not np.array_equal(run(rows[few], length), together[few]):
                    return False
    return True


def _batches(lengths: Sequence[int], short: int) -> Iterator[tuple[list[int], int]]:
    """Positions of the rows of each batch, and its length."""
    alike: dict[int, list[int]] = defaultdict(list)
    for position, length in enumerate(lengths):
        padded = -(-length // STEP_TOKENS) * STEP_TOKENS
        if padded <= short:
            alike[padded].append(position)
        else:
            yield [position], length
    for padded, positions in alike.items():
        yield positions, padded

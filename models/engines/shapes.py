"""The shapes of batches, which decide the kernels of a runtime. Start at `rounded` and `Shapes`.

On a GPU, batches are rounded to few shapes, so that the memory pool stops growing and kernels are chosen
once. Rows and tokens are rounded up to the next rung of a ladder:

    1 2 3 4 5 6 7 8 | 10 12 14 16 | 20 24 28 32 | 40 48 56 64 | 80 …      rows: four rungs to each doubling
    8 16 24 32 40 48 56 64 | 80 96 112 128 | 160 192 224 256 | 320 …      tokens: the same, times 8

Rounding adds at most a quarter, or up to 7 tokens to a short row. docs/GPU.md has the costs.

`Shapes` gives a text a bitwise equal vector in every batch, by fixing the shapes:

    up to 64 tokens    padded to a multiple of 32 (of 8 if all layers compute padding), and computed with
                       texts of the same padded length; small batches are repeated
    longer             computed alone

A runtime chooses kernels, and with them the order of sums, by the shape of a batch. In all measurements, rows
of one padded length had equal bits in batches of at least two rows and 17 tokens. OpenVINO uses another
kernel up to 16 tokens (an AMX tile has 16 rows). So smaller batches repeat their rows. `Shapes.tried` tests
this when a version is opened; rare differences may escape it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.engines.form import Runtime

LENGTH_STEP = 8  # Tensor cores compute in tiles of 8 half-precision numbers.
MASK = "attention_mask"
# On a CPU, texts are padded to a multiple of this if only attention computes padding. OpenVINO compiles
# kernels for each shape, and took 9 to 18 % less time with this in bf16 (docs/PERFORMANCE.md, "bf16").
STEPS: dict[Runtime, int] = {"openvino": 16}
# Rows of a batch whose tokens are padded to such a multiple as well, by one more row. Linear layers compute
# all tokens of a batch at once, so each number of tokens has its own kernels: in bf16 with AMX, a new number
# cost 14 ms more in a batch of 27 ms. In smaller batches the row would cost too much.
FILLED_ROWS = 8


def rung(size: int) -> int:
    """Returns the first rung from `size` on. Rungs are 1 to 8, and 5, 6, 7 or 8 times a power of two."""
    step = 1 << max(0, (size - 1).bit_length() - 3)
    return -(-size // step) * step


def rounded(rows: int, length: int, longest: int) -> tuple[int, int]:
    """Returns the shape in which a batch of `rows` x `length` is computed.

    Args:
        longest: Limit of tokens in a row, which the rounded length does not exceed.
    """
    return rung(rows), max(length, min(longest, LENGTH_STEP * rung(-(-length // LENGTH_STEP))))


def stepped(length: int, step: int, longest: int) -> int:
    """Rounds `length` up to a multiple of `step`, but not above `longest`."""
    return max(length, min(longest, -(-length // step) * step))


def padded(feed: Mapping[str, NDArray[np.int64]], longest: int) -> dict[str, NDArray[np.int64]]:
    """Pads `feed` to its rounded shape.

    New columns are masked. New rows repeat the last row, which every pooling can compute.
    """
    rows, length = feed[MASK].shape
    to_rows, to_length = rounded(rows, length, longest)
    wider = {name: np.pad(array, ((0, 0), (0, to_length - length))) for name, array in feed.items()}
    return {name: np.pad(array, ((0, to_rows - rows), (0, 0)), mode="edge") for name, array in wider.items()}


_SHORT_TOKENS = 64  # Batches of longer texts are hardly faster than single texts.
# Steps of the padded length. Short steps pad less; long steps let more texts share a batch. 32 was the
# fastest of 8, 16, 32 and 64 if only attention computes padding, else 8 of 4, 8 and 16.
_STEP_TOKENS, _STEP_TOKENS_PACKED = 8, 32
_TRIED_ROWS = 12
_MIN_ROWS, _MIN_TOKENS = 2, 17

# Takes rows of ids and their padded length, returns vectors (rows, dimension).
Run = Callable[[Sequence[Sequence[int]], int], NDArray[np.float32]]


class Shapes(NamedTuple):
    short: int  # Maximum tokens of a text that shares batches; a multiple of `step`.
    step: int
    packed: bool

    @classmethod
    def of(cls, max_length: int, *, packed: bool) -> Shapes:
        step = _STEP_TOKENS_PACKED if packed else _STEP_TOKENS
        return cls(min(_SHORT_TOKENS, max_length) // step * step, step, packed)

    def tried(self, run: Run, ids: Sequence[int]) -> Shapes:
        """Tests whether texts have bitwise equal vectors in batches of two, three and twelve.

        Args:
            run: Computes the vectors of a batch.
            ids: Token ids from which the texts are made.

        Returns:
            These shapes if the test passes. Otherwise shapes that compute each text in a batch of its own.
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
        found: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(ids)
        for at, length in self._batches([len(row) for row in ids]):
            rows = [ids[position] for position in at]
            vectors = self._enough(run, rows, length) if length <= self.short else run(rows, length)
            for position, vector in zip(at, vectors, strict=True):
                found[position] = vector
        return np.stack(found)

    def _enough(self, run: Run, rows: Sequence[Sequence[int]], length: int) -> NDArray[np.float32]:
        """Calls `run`. Repeats the rows of a batch that is too small, and drops the extra vectors."""
        tokens = sum(map(len, rows)) if self.packed else length * len(rows)
        times = max(-(-_MIN_ROWS // len(rows)), -(-_MIN_TOKENS // max(1, tokens)))
        return run([*rows] * times, length)[: len(rows)]

    def _batches(self, lengths: Sequence[int]) -> Iterator[tuple[list[int], int]]:
        """Yields the positions of the rows of each batch, and its padded length."""
        alike: dict[int, list[int]] = defaultdict(list)
        for position, length in enumerate(lengths):
            padded = -(-length // self.step) * self.step
            if padded <= self.short:
                alike[padded].append(position)
            else:
                yield [position], length
        for padded, positions in alike.items():
            yield positions, padded

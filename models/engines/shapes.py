"""Rounds batches to few shapes, so that a GPU's memory pool stops growing and kernels are chosen once.

Rows and tokens are rounded up to the next rung of a ladder:

    1 2 3 4 5 6 7 8 | 10 12 14 16 | 20 24 28 32 | 40 48 56 64 | 80 …      rows: four rungs to each doubling
    8 16 24 32 40 48 56 64 | 80 96 112 128 | 160 192 224 256 | 320 …      tokens: the same, times 8

No side grows by more than a quarter, or by 7 tokens. docs/GPU.md has the costs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from models.engines.form import Runtime

LENGTH_STEP = 8  # Tensor cores compute in tiles of 8 half-precision numbers.
MASK = "attention_mask"
# On a CPU, texts are padded to a multiple of this if only attention computes padding. OpenVINO compiles
# kernels for each shape, and took 9 to 18 % less time with this in bf16 (docs/PERFORMANCE.md, "bf16").
STEPS: dict[Runtime, int] = {"openvino": 16}


def rung(size: int) -> int:
    """Returns the smallest rung of at least `size`: up to 8, or 5, 6, 7 or 8 times a power of two."""
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

    New columns are masked. New rows repeat the last row, because every pooling can compute that.
    """
    rows, length = feed[MASK].shape
    to_rows, to_length = rounded(rows, length, longest)
    wider = {name: np.pad(array, ((0, 0), (0, to_length - length))) for name, array in feed.items()}
    return {name: np.pad(array, ((0, to_rows - rows), (0, 0)), mode="edge") for name, array in wider.items()}

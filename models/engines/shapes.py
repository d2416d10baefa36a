"""Few shapes instead of every shape: a GPU's memory pool then stops growing, and kernels are chosen once.

A batch is rounded up to the next rung of a ladder, in its rows and in their length:

    1 2 3 4 5 6 7 8 | 10 12 14 16 | 20 24 28 32 | 40 48 56 64 | 80 …      rows: four rungs to each doubling
    8 16 24 32 40 48 56 64 | 80 96 112 128 | 160 192 224 256 | 320 …      tokens: the same, times 8

so no side grows by more than a quarter, or by 7 tokens. What this costs is in docs/GPU.md. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from models.engines.form import Runtime

LENGTH_STEP = 8  # tensor cores compute in tiles of 8 half-precision numbers
MASK = "attention_mask"
# Tokens to a multiple of which texts are padded on a processor, where padding costs attention only. OpenVINO
# compiles kernels for each shape; in bf16 it took 9 to 18 % less time so in an earlier run
# (docs/PERFORMANCE.md, "bf16").
STEPS: dict[Runtime, int] = {"openvino": 16}


def rung(size: int) -> int:
    """The smallest rung that is not below `size`: at most 8, or 5, 6, 7 or 8 times a power of two."""
    step = 1 << max(0, (size - 1).bit_length() - 3)
    return -(-size // step) * step


def rounded(rows: int, length: int, longest: int) -> tuple[int, int]:
    """The shape that a batch of `rows` x `length` is computed in.

    longest: tokens of the longest row that the model takes; lengths above the last rung below it become this.
    """
    return rung(rows), max(length, min(longest, LENGTH_STEP * rung(-(-length // LENGTH_STEP))))


def stepped(length: int, step: int, longest: int) -> int:
    """`length` rounded up to a multiple of `step`, or to `longest` where that is less."""
    return max(length, min(longest, -(-length // step) * step))


def padded(feed: Mapping[str, NDArray[np.int64]], longest: int) -> dict[str, NDArray[np.int64]]:
    """`feed` in its rounded shape. New columns are masked; new rows repeat the last one, so that they are
    rows that the model can compute whatever its pooling is.
    """
    rows, length = feed[MASK].shape
    to_rows, to_length = rounded(rows, length, longest)
    wider = {name: np.pad(array, ((0, 0), (0, to_length - length))) for name, array in feed.items()}
    return {name: np.pad(array, ((0, to_rows - rows), (0, 0)), mode="edge") for name, array in wider.items()}

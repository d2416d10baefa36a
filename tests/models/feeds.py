"""Converts rows of token ids to the inputs of a graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def padded(rows: Sequence[Sequence[int]], length: int, padding: int = 0) -> dict[str, np.ndarray]:
    """Returns the inputs of a graph. Each row is filled up to `length` with the id `padding`."""
    ids = np.full((len(rows), length), padding, np.int64)
    mask = np.zeros_like(ids)
    for at, row in enumerate(rows):
        ids[at, : len(row)], mask[at, : len(row)] = row, 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}

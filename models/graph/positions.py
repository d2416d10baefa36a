"""Token positions of families that differ from BERT (kin.py, modernbert.py)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from models.graph.nodes import Nodes

DISTANCES = "encoder.distances"  # Name of the table that `distances` writes.


def counted(n: Nodes, padding: int) -> str:
    """Returns positions that start after the padding id and skip padding, shape (batch, sequence)."""
    counts = n("Cast", n("Equal", "input_ids", n.tensor(padding, np.int64)), to=TensorProto.INT64)
    counts = n("Sub", n.tensor(1, np.int64), counts)
    places = n("Mul", n("CumSum", counts, n.tensor(1, np.int64)), counts)
    return n("Add", places, n.tensor(padding, np.int64))


def plain(n: Nodes) -> str:
    """Returns the positions 0, 1, 2 …, shape (sequence,)."""
    length = n("Gather", n("Shape", "attention_mask"), n.tensor(1, np.int64))
    return n("Range", n.tensor(0, np.int64), length, n.tensor(1, np.int64))


def distances(n: Nodes, by_distance: NDArray[np.float32]) -> str:
    """Returns the attention bias of each pair of tokens, shape (1, heads, sequence, sequence).

    Args:
        by_distance: Bias of the distances 1 - L to L - 1, shape (heads, 2 L - 1).
    """
    places = plain(n)
    apart = n("Sub", n("Unsqueeze", places, n.ints(0)), n("Unsqueeze", places, n.ints(1)))
    at = n("Add", apart, n.tensor(by_distance.shape[1] // 2, np.int64))
    return n("Unsqueeze", n("Gather", n.tensor(by_distance, name=DISTANCES), at, axis=1), n.ints(0))

"""Places of tokens as families other than BERT count them, as nodes of a graph; `kin.py` says which."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from models.graph.nodes import Nodes

DISTANCES = "encoder.distances"  # the table that `distances` writes


def counted(n: Nodes, padding: int) -> str:
    """(batch, sequence): places that begin behind the id of padding, which has its own and is not counted."""
    counts = n("Cast", n("Equal", "input_ids", n.tensor(padding, np.int64)), to=TensorProto.INT64)
    counts = n("Sub", n.tensor(1, np.int64), counts)
    places = n("Mul", n("CumSum", counts, n.tensor(1, np.int64)), counts)
    return n("Add", places, n.tensor(padding, np.int64))


def plain(n: Nodes) -> str:
    """(sequence,): 0, 1, 2 …"""
    length = n("Gather", n("Shape", "attention_mask"), n.tensor(1, np.int64))
    return n("Range", n.tensor(0, np.int64), length, n.tensor(1, np.int64))


def distances(n: Nodes, by_distance: NDArray[np.float32]) -> str:
    """(1, heads, sequence, sequence): what the distance from query to key adds to a score.

    by_distance: (heads, 2 L - 1), of the distances 1 - L to L - 1.
    """
    places = plain(n)
    apart = n("Sub", n("Unsqueeze", places, n.ints(0)), n("Unsqueeze", places, n.ints(1)))
    at = n("Add", apart, n.tensor(by_distance.shape[1] // 2, np.int64))
    return n("Unsqueeze", n("Gather", n.tensor(by_distance, name=DISTANCES), at, axis=1), n.ints(0))

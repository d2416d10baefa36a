"""From token embeddings to one unit vector: pooling, dense layers, normalisation, appended to any ONNX graph.

    last_hidden_state, attention_mask ─▶ pooling ─▶ dense … ─▶ pooled_embedding ─▶ L2 ─▶ sentence_embedding

Values it adds are named "simile.…", so the fingerprint of an imported graph can leave them out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from .nodes import OPSET, Nodes

SCOPE = "simile."
POOLED = "pooled_embedding"
SENTENCE = "sentence_embedding"
# As sentence-transformers names them, in the order in which its older releases concatenate them.
POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens")


@dataclass(frozen=True)
class Dense:
    """One `2_Dense` module: activation(x @ weight.T + bias)."""

    weight: NDArray[np.float32]  # (out, in)
    bias: NDArray[np.float32] | None  # (out,)
    activation: str  # tanh or identity


@dataclass(frozen=True)
class Head:
    """What follows the backbone. Several poolings are concatenated in the order given."""

    pooling: tuple[str, ...]
    dense: tuple[Dense, ...]

    def dimension(self, width: int) -> int:
        return len(self.dense[-1].weight) if self.dense else width * len(self.pooling)


def append_head(graph: onnx.GraphProto, hidden: str, head: Head, dimension: int, opset: int = OPSET) -> None:
    """Append to a `graph` that takes `attention_mask`; its value `hidden` is (batch, sequence, width)."""
    nodes = Nodes(graph, SCOPE, opset)
    mask = nodes("Cast", "attention_mask", to=TensorProto.FLOAT)
    mask = nodes("Unsqueeze", mask, nodes.ints(2))  # (batch, sequence, 1)
    pooled = [_pool(nodes, hidden, mask, mode) for mode in head.pooling]
    vector = pooled[0] if len(pooled) == 1 else nodes("Concat", *pooled, axis=-1)
    for dense in head.dense:
        vector = _dense(nodes, vector, dense)
    append_normalise(nodes, vector, dimension)


def append_normalise(nodes: Nodes, vector: str, dimension: int) -> None:
    """The two outputs, from the value `vector`: (batch, dimension)."""
    pooled = nodes("Identity", vector, out=POOLED)
    norm = nodes("Sqrt", nodes("ReduceSum", nodes("Mul", pooled, pooled), nodes.ints(1), keepdims=1))
    nodes("Div", pooled, nodes("Max", norm, nodes.tensor(1e-12)), out=SENTENCE)
    for name in (SENTENCE, POOLED):
        nodes.graph.output.append(
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", dimension])
        )


def _pool(nodes: Nodes, hidden: str, mask: str, mode: str) -> str:
    if mode == "cls":
        return nodes("Gather", hidden, nodes.tensor(0, np.int64), axis=1)
    if mode == "max":
        padded = nodes("Mul", nodes("Sub", nodes.tensor(1.0), mask), nodes.tensor(-1e30))
        kept = nodes("Add", nodes("Mul", hidden, mask), padded)
        return nodes.maximum(kept, axis=1)
    total = nodes("ReduceSum", nodes("Mul", hidden, mask), nodes.ints(1), keepdims=0)
    count = nodes("Max", nodes("ReduceSum", mask, nodes.ints(1), keepdims=0), nodes.tensor(1e-9))
    return nodes("Div", total, count if mode == "mean" else nodes("Sqrt", count))


def _dense(nodes: Nodes, x: str, dense: Dense) -> str:
    x = nodes("MatMul", x, nodes.tensor(dense.weight.T))
    if dense.bias is not None:
        x = nodes("Add", x, nodes.tensor(dense.bias))
    return nodes("Tanh", x) if dense.activation == "tanh" else x

"""From token vectors to one unit vector: pooling, dense layers, normalisation, appended to any ONNX graph.

    token vectors, attention_mask ─▶ pooling ─▶ dense … ─▶ pooled_embedding ─▶ L2 ─▶ sentence_embedding

Values it adds are named "simile.…", so the fingerprint of an imported graph can leave them out. Not here:
where the token vectors come from (bert.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from models.errors import Unsupported
from models.graph.nodes import OPSET, Nodes

SCOPE = "simile."
POOLED = "pooled_embedding"
SENTENCE = "sentence_embedding"
# As sentence-transformers names them, in the order in which its older releases concatenate them.
POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens")
TOKENS = ("last", "first_last", "static")
_MASK = re.compile(r"mask:(0|[1-9]\d{0,3})")


@dataclass(frozen=True)
class Dense:
    """A `2_Dense` module: activation(x @ weight.T + bias)."""

    weight: NDArray[np.float32]  # (out, in)
    bias: NDArray[np.float32] | None  # (out,)
    activation: str  # tanh or identity


@dataclass(frozen=True)
class Head:
    """The layers behind the backbone. Several poolings are concatenated in the order given.

    pooling: of POOLINGS, or `mask:K`: the vector K places before the last token of the row, where a prompt
        template has its [MASK] (template.py).
    tokens: which token vectors are pooled.
        last        of the last layer
        first_last  the mean of the first layer's and the last layer's; the embeddings are no layer
        static      the rows of the word table alone: no positions, no normalisation, no layer

    Raise Unsupported when there is no such pooling, or when it would not depend on the text.
    """

    pooling: tuple[str, ...]
    dense: tuple[Dense, ...]
    tokens: str = "last"

    def __post_init__(self) -> None:
        known = all(mode in POOLINGS or mask_distance(mode) is not None for mode in self.pooling)
        if not self.pooling or not known or self.tokens not in TOKENS:
            raise Unsupported(f"The pooling {self.names} is not supported; {', '.join(POOLINGS)} are.")
        if self.tokens == "static" and any(
            mode == "cls" or mask_distance(mode) is not None for mode in self.pooling
        ):
            raise Unsupported("The row of one special token in the word table is the same for every text.")

    @classmethod
    def of(cls, names: Sequence[str], dense: tuple[Dense, ...] = ()) -> Head:
        """From `names` as a folder has them. Raise Unsupported."""
        parts = [name.rpartition(".") for name in names]
        tokens = parts[0][0] or "last" if parts else "last"
        head = cls(tuple(mode for _, _, mode in parts), dense, tokens)
        if head.names != tuple(names):
            raise Unsupported(f"The pooling {tuple(names)} is not supported: all must be of the same tokens.")
        return head

    @property
    def names(self) -> tuple[str, ...]:
        """The poolings as folder and fingerprint name them: `mean`, `first_last.mean`, `mask:2`."""
        prefix = "" if self.tokens == "last" else f"{self.tokens}."
        return tuple(prefix + mode for mode in self.pooling)

    @property
    def portable(self) -> bool:
        """True if sentence-transformers has a word for it."""
        return set(self.names) <= set(POOLINGS)

    def dimension(self, width: int) -> int:
        return len(self.dense[-1].weight) if self.dense else width * len(self.pooling)


def mask_distance(mode: str) -> int | None:
    """K of `mask:K`; None for every other pooling."""
    found = _MASK.fullmatch(mode)
    return int(found[1]) if found else None


def append_head(graph: onnx.GraphProto, tokens: str, head: Head, dimension: int, opset: int = OPSET) -> None:
    """Append to a `graph` that takes `attention_mask`; its value `tokens` is (batch, sequence, width)."""
    nodes = Nodes(graph, SCOPE, opset)
    mask = nodes("Cast", "attention_mask", to=TensorProto.FLOAT)
    mask = nodes("Unsqueeze", mask, nodes.ints(2))  # (batch, sequence, 1)
    pooled = [_pool(nodes, tokens, mask, mode) for mode in head.pooling]
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
    distance = mask_distance(mode)
    if distance is not None:
        length = nodes("ReduceSum", "attention_mask", nodes.ints(1), keepdims=1)
        place = nodes("Sub", length, nodes.ints(distance + 1))  # (batch, 1): padding stands on the right
        return nodes("GatherND", hidden, place, batch_dims=1)
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

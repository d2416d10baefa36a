"""Builds the parts that the graphs of all families share: packing, positions and the steps of a layer.

`Packing` packs the tokens of a padded batch into rows without padding, and unpacks them again:

    (batch, sequence) ──pack──▶ (tokens,)
    (tokens, width) ──split──▶ (batch, heads, sequence, size) ──join──▶ (tokens, width)
    (tokens, width) ──unpack──▶ (batch, sequence, width)

Only attention then computes padding. Each of these steps is one Gather, which costs no more than the
Transpose of a padded batch. After `split` and `unpack`, padding positions contain the vector of some token.
Nodes that read them therefore need the mask. Functions return the names of values in the graph.
"""

from __future__ import annotations

import math
from typing import Generic, Protocol, TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from models.graph.backbone import Tensors
from models.graph.nodes import Nodes

ROWS = "bert.packed_rows"  # This value marks a graph that packs, even in copies by other tools.


class Packing:
    """Packs and unpacks the tokens of a batch. The constructor adds nodes that read `attention_mask`.

    Args:
        heads: Number of pieces that a token's vector is split into.
        size: Numbers in a piece.
    """

    def __init__(self, nodes: Nodes, heads: int, size: int) -> None:
        self._nodes = n = nodes
        self._heads, self._size, self._width = heads, size, heads * size
        grid = n("Shape", "attention_mask")
        mask = n("Reshape", "attention_mask", n.ints(-1))
        # `cells` maps each token to its cell of the grid, and `tokens` each cell to its token. Padding maps
        # to the token before it.
        cells = n("Reshape", n("NonZero", mask), n.ints(-1), out=ROWS)
        before = n("Sub", n("CumSum", mask, n.tensor(0, np.int64)), n.tensor(1, np.int64))
        tokens = n("Reshape", n("Max", before, n.tensor(0, np.int64)), grid)
        length = n("Gather", grid, n.tensor(1, np.int64))
        text = n("Div", cells, length)
        self.columns = n("Sub", cells, n("Mul", text, length))  # (tokens,): the position in the text
        self._cells, self._tokens = cells, tokens
        # Head h of token t is piece t * heads + h of the rows, and piece
        # (text * heads + h) * length + column of the padded grid.
        piece = n("Unsqueeze", n("Mul", tokens, n.tensor(heads, np.int64)), n.ints(1))
        self._split = n("Add", piece, n.tensor(np.arange(heads)[:, None], np.int64))  # (batch, heads, length)
        first = n("Add", n("Mul", text, n("Mul", length, n.tensor(heads, np.int64))), self.columns)
        later = n("Mul", n.tensor(np.arange(heads), np.int64), length)
        self._join = n("Add", n("Unsqueeze", first, n.ints(1)), later)  # (tokens, heads)

    def pack(self, grid: str) -> str:
        return self._nodes("Gather", self._nodes("Reshape", grid, self._nodes.ints(-1)), self._cells)

    def unpack(self, rows: str, out: str) -> str:
        return self._nodes("Gather", rows, self._tokens, out=out)

    def first(self, rows: str) -> str:
        """Returns the rows of the first token of each text, shape (batch, width)."""
        n = self._nodes
        return n("Gather", rows, n("Gather", self._tokens, n.tensor(0, np.int64), axis=1))

    def split(self, rows: str) -> str:
        return self._nodes("Gather", self._pieces(rows), self._split)

    def join(self, mixed: str) -> str:
        found = self._nodes("Gather", self._pieces(mixed), self._join)
        return self._nodes("Reshape", found, self._nodes.ints(-1, self._width))

    def attend(self, query: str, key: str, value: str, mask: str, *, first: bool = False) -> str:
        """Adds nodes that compute the attention inside each text. Their result has the shape (tokens, width).

        Args:
            query: Name of the queries, shape (tokens, width).
            key: Name of the keys, same shape.
            value: Name of the values, same shape.
            mask: Name of the mask, which is added to the attention scores.
            first: Whether only the first token of each text attends. Queries and result are (batch, width).
        """
        n = self._nodes
        key, value = map(self.split, (key, value))
        if first:
            query = n("Reshape", query, n.ints(-1, self._heads, 1, self._size))
            mask = n("Slice", mask, n.ints(0), n.ints(1), n.ints(2))
        else:
            query = self.split(query)
        # ONNX Runtime fuses the Transpose into the MatMul.
        scores = n("MatMul", query, n("Transpose", key, perm=(0, 1, 3, 2)))
        scores = n("Add", n("Div", scores, n.tensor(math.sqrt(self._size))), mask)
        mixed = n("MatMul", n("Softmax", scores, axis=3), value)
        return n("Reshape", mixed, n.ints(-1, self._width)) if first else self.join(mixed)

    def _pieces(self, x: str) -> str:
        return self._nodes("Reshape", x, self._nodes.ints(-1, self._size))


def packs(graph: onnx.GraphProto) -> bool:
    return any(ROWS in node.output for node in graph.node)


DISTANCES = "encoder.distances"  # Name of the table that `distances` writes.


def counted(n: Nodes, padding: int) -> str:
    """Returns the positions of families such as RoBERTa, shape (batch, sequence).

    The first position is `padding` + 1. Padding tokens have the position `padding`, and are not counted.
    """
    counts = n("Cast", n("Equal", "input_ids", n.tensor(padding, np.int64)), to=TensorProto.INT64)
    counts = n("Sub", n.tensor(1, np.int64), counts)
    places = n("Mul", n("CumSum", counts, n.tensor(1, np.int64)), counts)
    return n("Add", places, n.tensor(padding, np.int64))


def plain(n: Nodes) -> str:
    """Returns the positions 0, 1, 2 …, shape (sequence,), as BERT counts them."""
    length = n("Gather", n("Shape", "attention_mask"), n.tensor(1, np.int64))
    return n("Range", n.tensor(0, np.int64), length, n.tensor(1, np.int64))


def distances(n: Nodes, by_distance: NDArray[np.float32]) -> str:
    """Returns the attention bias of each pair of tokens, shape (1, heads, sequence, sequence).

    Args:
        by_distance: Bias of each distance from 1 - L to L - 1, shape (heads, 2 L - 1).
    """
    places = plain(n)
    apart = n("Sub", n("Unsqueeze", places, n.ints(0)), n("Unsqueeze", places, n.ints(1)))
    at = n("Add", apart, n.tensor(by_distance.shape[1] // 2, np.int64))
    return n("Unsqueeze", n("Gather", n.tensor(by_distance, name=DISTANCES), at, axis=1), n.ints(0))


# exp(-1e4) is exactly 0 in float32, so a padded token gets no weight.
MASKED = -10000.0


class Functions(Protocol):
    """The fields of a backbone that `Steps` uses."""

    @property
    def activation(self) -> str: ...
    @property
    def epsilon(self) -> float: ...


Kind = TypeVar("Kind", bound=Functions)


class Steps(Generic[Kind]):
    def __init__(self, backbone: Kind, tensors: Tensors, nodes: Nodes) -> None:
        self._backbone = backbone
        self._tensors = tensors
        self._nodes = nodes

    def _mask(self) -> str:
        """Returns the attention mask, shape (batch, 1, 1, sequence): 0 for tokens and MASKED for padding."""
        n = self._nodes
        mask = n("Unsqueeze", "attention_mask", n.ints(1))
        mask = n("Cast", n("Unsqueeze", mask, n.ints(2)), to=TensorProto.FLOAT)
        return n("Mul", n("Sub", n.tensor(1.0), mask), n.tensor(MASKED))

    def _activate(self, x: str) -> str:
        n = self._nodes
        if self._backbone.activation == "relu":
            return n("Relu", x)
        if self._backbone.activation == "gelu":
            return n.gelu(x)
        cubed = n("Mul", n("Pow", x, n.tensor(3.0)), n.tensor(0.044715))
        tanh = n("Tanh", n("Mul", n("Add", x, cubed), n.tensor(math.sqrt(2 / math.pi))))
        return n("Mul", n("Mul", x, n.tensor(0.5)), n("Add", tanh, n.tensor(1.0)))

    def _linear(self, x: str, at: str) -> str:
        n = self._nodes
        product = n("MatMul", x, n.tensor(self._tensors[f"{at}.weight"].T, name=f"{at}.weight"))
        bias = self._tensors.get(f"{at}.bias")
        return product if bias is None else n("Add", product, n.tensor(bias, name=f"{at}.bias"))

    def _normalize(self, x: str, at: str) -> str:
        n = self._nodes
        scale, bias = self._tensors[f"{at}.weight"], self._tensors.get(f"{at}.bias")
        both = [n.tensor(scale, name=f"{at}.weight")]
        both.append(n.tensor(0 * scale if bias is None else bias, name=f"{at}.bias"))
        return n("LayerNormalization", x, *both, axis=-1, epsilon=self._backbone.epsilon)

    def _weight(self, at: str) -> str:
        return self._nodes.tensor(self._tensors[f"{at}.weight"], name=f"{at}.weight")

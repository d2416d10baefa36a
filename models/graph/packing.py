"""Packs the tokens of a padded batch into rows without padding, and unpacks them again.

    (batch, sequence) ──pack──▶ (tokens,)
    (tokens, width) ──split──▶ (batch, heads, sequence, size) ──join──▶ (tokens, width)
    (tokens, width) ──unpack──▶ (batch, sequence, width)

Only attention then computes padding. Each direction is one Gather, which costs no more than the Transpose of
a padded batch. After `split` and `unpack`, padding holds the vector of some token, so readers need the mask.
"""

from __future__ import annotations

import numpy as np
import onnx

from models.graph.nodes import Nodes

ROWS = "bert.packed_rows"  # This value marks a graph that packs, even in copies by other tools.


class Packing:
    """Adds the nodes that find the tokens of `attention_mask` (batch, sequence).

    Args:
        heads: Pieces of a token's vector.
        size: Numbers in a piece.
    """

    def __init__(self, nodes: Nodes, heads: int, size: int) -> None:
        self._nodes = n = nodes
        self._size = size
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

    def split(self, rows: str) -> str:
        return self._nodes("Gather", self._pieces(rows), self._split)

    def join(self, mixed: str, width: int) -> str:
        found = self._nodes("Gather", self._pieces(mixed), self._join)
        return self._nodes("Reshape", found, self._nodes.ints(-1, width))

    def _pieces(self, x: str) -> str:
        return self._nodes("Reshape", x, self._nodes.ints(-1, self._size))


def packs(graph: onnx.GraphProto) -> bool:
    return any(ROWS in node.output for node in graph.node)

"""Packing: the tokens of a padded batch in a row, without the padding between them, and back.

    (batch, sequence) ──pack──▶ (tokens,)
    (tokens, width) ──split──▶ (batch, heads, sequence, size) ──join──▶ (tokens, width)
    (tokens, width) ──unpack──▶ (batch, sequence, width)

What works on one token at a time is computed for the tokens alone, so padding costs attention only, which is
the one part that needs texts apart. Each way is one Gather: `split` and `join` pick every head's piece from
its place, which costs no more than the Transpose that a padded batch needs there.

A cell of padding gets the vector of some token: whoever reads it has to have a mask, as attention has.
"""

from __future__ import annotations

import numpy as np
import onnx

from models.graph.nodes import Nodes

ROWS = "bert.packed_rows"  # the value by which a graph that packs is known, also when others have copied it


class Packing:
    """Nodes that say where the tokens of `attention_mask` (batch, sequence) of 0 and 1 are."""

    def __init__(self, nodes: Nodes, heads: int, size: int) -> None:
        """heads: pieces of a token's vector; size: numbers in each."""
        self._nodes = n = nodes
        self._size = size
        grid = n("Shape", "attention_mask")
        mask = n("Reshape", "attention_mask", n.ints(-1))
        # Of each token its cell in the grid, and of each cell its token; of padding the token before it.
        cells = n("Reshape", n("NonZero", mask), n.ints(-1), out=ROWS)
        before = n("Sub", n("CumSum", mask, n.tensor(0, np.int64)), n.tensor(1, np.int64))
        tokens = n("Reshape", n("Max", before, n.tensor(0, np.int64)), grid)
        length = n("Gather", grid, n.tensor(1, np.int64))
        text = n("Div", cells, length)
        self.columns = n("Sub", cells, n("Mul", text, length))  # (tokens,): the place of each in its text
        self._cells, self._tokens = cells, tokens
        # The same for pieces: head h of token t is the rows' piece t * heads + h, and the padded grid's piece
        # (text * heads + h) * length + column.
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
    """True if padding costs attention only."""
    return any(ROWS in node.output for node in graph.node)

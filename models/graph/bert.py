"""Writes the ONNX graph of a BERT from its tensors, without torch. Start at `bert_graph`.

    input_ids, token_type_ids ─▶ pack ─▶ embeddings ─▶ layer, layer, … ─▶ unpack: last_hidden_state ─▶ head.py
    attention_mask ─▶ positions of the tokens: blocks.py
                   ─▶ 0 or -1e4, added to every attention score
                                       (first layer + last layer) / 2 ─▶ unpack ─▶ head.py, for `first_last`
                                       (last two layers) / 2 ─▶ unpack ─▶ head.py, for `top2`
    input_ids ─▶ rows of the word table, as last_hidden_state ─────▶ head.py, for `static`

The operators are in the order that ONNX Runtime's optimizer recognizes. It fuses MatMul and bias (Gemm), Gelu
and scaled MatMul. Matrix products then take nine tenths of the time (docs/PERFORMANCE.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from models.graph.backbone import Backbone, Tensors, distance_buckets
from models.graph.blocks import Packing, Steps, counted, distances
from models.graph.file import HIDDEN
from models.graph.head import FIRST, MIXED, beside_last
from models.graph.nodes import Aside, Nodes

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
WORDS = "embeddings.word_embeddings.weight"
_MIXED = {tokens: f"bert.{tokens}" for tokens in MIXED}
# The graph value that head.py pools.
POOLED_FROM = {"last": HIDDEN, "static": HIDDEN, FIRST: HIDDEN} | _MIXED


def bert_graph(
    backbone: Backbone,
    tensors: Tensors,
    tokens: str = "last",
    writer: Callable[[Backbone, Tensors, Nodes], Writer] | None = None,
    aside: Aside | None = None,
) -> onnx.GraphProto:
    """Builds the graph from token ids to `last_hidden_state`, float32, shape (batch, sequence, width).

    Vectors at masked positions have no meaning. Each text must have at least one token. With the tokens
    FIRST, the last layer computes little more than the first token of each text.

    Args:
        backbone: Sizes of the encoder.
        tensors: The tensors that `backbone.shapes(tokens)` lists.
        tokens: Which token vectors are pooled (`Head`). The graph computes them as the value
            POOLED_FROM[tokens].
        writer: Creates the writer of the layers; `Writer` by default.
        aside: Collects large tensors for a data file, if one ONNX file cannot hold them.
    """
    typed = tokens != "static" and backbone.types
    graph = empty_graph("bert", INPUTS if typed else INPUTS[:2], backbone.width)
    nodes = Nodes(graph, "bert.", aside=aside)
    written = (writer or Writer)(backbone, tensors, nodes)
    if tokens == "static":
        written.words(out=HIDDEN)
    else:
        written.layers(tokens)
    return graph


def table_graph(table: NDArray[np.float32]) -> onnx.GraphProto:
    """Builds a graph that looks up rows of `table`, shape (words, width), as `last_hidden_state`."""
    graph = empty_graph("table", INPUTS[:2], table.shape[1])
    nodes = Nodes(graph, "bert.")
    nodes("Gather", nodes.tensor(table, name=WORDS), "input_ids", out=HIDDEN)
    return graph


def empty_graph(name: str, inputs: Sequence[str], width: int) -> onnx.GraphProto:
    """Builds a graph that has inputs and the output `last_hidden_state`, but no nodes."""
    graph = onnx.GraphProto(name=name)
    for given in inputs:
        graph.input.append(helper.make_tensor_value_info(given, TensorProto.INT64, ["batch", "sequence"]))
    shape: list[str | int | None] = ["batch", "sequence", width]
    graph.output.append(helper.make_tensor_value_info(HIDDEN, TensorProto.FLOAT, shape))
    return graph


class Writer(Steps[Backbone]):
    """Writes the layers in float32. A subclass may write the linear layers differently (int8.py)."""

    def layers(self, tokens: str) -> None:
        n, backbone = self._nodes, self._backbone
        mask = self._mask()
        if backbone.buckets:
            mask = n("Add", mask, self._distances())
        packing = Packing(n, backbone.heads, backbone.width // backbone.heads)
        x = self._embeddings(packing)
        found = []
        for layer in range(backbone.layers):
            first = tokens == FIRST and layer == backbone.layers - 1
            x = self._layer(x, mask, packing, f"encoder.layer.{layer}", first=first)
            found.append(x)
        if tokens == FIRST:
            n("Unsqueeze", x, n.ints(1), out=HIDDEN)
            return
        packing.unpack(x, HIDDEN)
        if tokens in MIXED:
            mean = n("Mul", n("Add", found[beside_last(tokens, backbone.layers)], x), n.tensor(0.5))
            packing.unpack(mean, POOLED_FROM[tokens])

    def words(self, ids: str = "input_ids", out: str = "") -> str:
        """Adds a node that looks up the word vectors of `ids`, shape (…, width)."""
        return self._nodes("Gather", self._weight("embeddings.word_embeddings"), ids, out=out)

    def _embeddings(self, packing: Packing) -> str:
        # With three dimensions, ONNX Runtime 1.31 would fuse Add and LayerNormalization. That kernel took
        # 14 % of the time on a CPU; the two operators took 5 %.
        n = self._nodes
        words = self.words(packing.pack("input_ids"))
        if self._backbone.types:
            kinds = packing.pack("token_type_ids")
            words = n("Add", words, n("Gather", self._weight("embeddings.token_type_embeddings"), kinds))
        padding = self._backbone.padding
        places = packing.columns if padding is None else packing.pack(counted(n, padding))
        positions = n("Gather", self._weight("embeddings.position_embeddings"), places)
        x = self._normalize(n("Add", words, positions), "embeddings.LayerNorm")
        return self._linear(x, "embeddings_project") if self._backbone.table else x

    def _distances(self) -> str:
        table = self._tensors["encoder.relative_attention_bias.weight"]  # (buckets, heads)
        buckets = distance_buckets(self._backbone.positions, self._backbone.buckets)
        return distances(self._nodes, table[buckets].T)

    def _layer(self, x: str, mask: str, packing: Packing, at: str, *, first: bool = False) -> str:
        """Adds a layer. Returns its output for each token, or for the first token of each text."""
        n = self._nodes
        parts = [f"{at}.attention.self.{part}" for part in ("query", "key", "value")]
        if first:
            key, value = self.linears(x, *parts[1:])
            x = packing.first(x)
            (query,) = self.linears(x, parts[0])
        else:
            query, key, value = self.linears(x, *parts)
        mixed = packing.attend(query, key, value, mask, first=first)
        (attended,) = self.linears(mixed, f"{at}.attention.output.dense")
        x = self._normalize(n("Add", attended, x), f"{at}.attention.output.LayerNorm")
        (inner,) = self.linears(x, f"{at}.intermediate.dense")
        (transformed,) = self.linears(self._activate(inner), f"{at}.output.dense")
        return self._normalize(n("Add", transformed, x), f"{at}.output.LayerNorm")

    def linears(self, x: str, *layers: str) -> list[str]:
        """Adds linear layers that share the input `x`, shape (tokens, width). Returns their outputs."""
        return [self._linear(x, at) for at in layers]

"""The BERT graph: safetensors in, ONNX out, without torch.

    input_ids, token_type_ids ─▶ pack ─▶ embeddings ─▶ layer, layer, … ─▶ unpack: last_hidden_state ─▶ head.py
    attention_mask ─▶ where the tokens are: packing.py
                   ─▶ 0 or -1e4, added to every attention score
                                       (first layer + last layer) / 2 ─▶ unpack ─▶ head.py, for `first_last`
    input_ids ─▶ rows of the word table, as last_hidden_state ─────▶ head.py, for `static`

Plain operators in an order that ONNX Runtime's own session optimiser knows: on rows (tokens, width) it joins
each bias with its MatMul (Gemm), and makes Gelu and scaled MatMul of theirs. Nine tenths of what is left is
matrix products (docs/PERFORMANCE.md). The families of kin.py have these layers, too; torch exports others.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from models.graph.aside import Aside
from models.graph.backbone import Backbone, Tensors
from models.graph.kin import distance_buckets
from models.graph.nodes import Nodes
from models.graph.packing import Packing
from models.graph.positions import counted, distances

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
HIDDEN = "last_hidden_state"
WORDS = "embeddings.word_embeddings.weight"
FIRST_LAST = "bert.first_last"
POOLED_FROM = {"last": HIDDEN, "first_last": FIRST_LAST, "static": HIDDEN}  # the value that head.py takes

# exp(-1e4) is exactly 0 in float32, so a padded token has no weight at all; a larger number gains nothing.
_MASKED = -10000.0


def bert_graph(
    backbone: Backbone,
    tensors: Tensors,
    tokens: str = "last",
    writer: Callable[[Backbone, Tensors, Nodes], Writer] | None = None,
    aside: Aside | None = None,
) -> onnx.GraphProto:
    """The graph up to the token vectors, float32 (batch, sequence, width); `last_hidden_state` is its output.

    Where `attention_mask` is 0 they mean nothing; each text has a token at least.

    tensors: by their backbone names, as `backbone.shapes(tokens)` lists them.
    tokens: as in head.py; the value POOLED_FROM[tokens] is then in the graph.
    writer: how layers are written; as Writer does unless given.
    aside: as of Nodes.
    """
    graph = onnx.GraphProto(name="bert")
    for name in INPUTS[:2] if tokens == "static" or not backbone.types else INPUTS:
        graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"]))
    nodes = Nodes(graph, "bert.", aside=aside)
    written = (writer or Writer)(backbone, tensors, nodes)
    if tokens == "static":
        written.words(out=HIDDEN)
    else:
        written.layers(first_last=tokens == "first_last")
    shape: list[str | int | None] = ["batch", "sequence", backbone.width]
    graph.output.append(helper.make_tensor_value_info(HIDDEN, TensorProto.FLOAT, shape))
    return graph


def table_graph(table: NDArray[np.float32]) -> onnx.GraphProto:
    """A graph without a backbone: `last_hidden_state` are rows of the table (words, width)."""
    graph = onnx.GraphProto(name="table")
    for name in INPUTS[:2]:
        graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"]))
    nodes = Nodes(graph, "bert.")
    nodes("Gather", nodes.tensor(table, name=WORDS), "input_ids", out=HIDDEN)
    shape: list[str | int | None] = ["batch", "sequence", table.shape[1]]
    graph.output.append(helper.make_tensor_value_info(HIDDEN, TensorProto.FLOAT, shape))
    return graph


class Writer:
    """Each linear layer as it is in the checkpoint; a subclass may write it another way (int8.py)."""

    def __init__(self, backbone: Backbone, tensors: Tensors, nodes: Nodes) -> None:
        self._backbone = backbone
        self._tensors = tensors
        self._nodes = nodes

    def layers(self, *, first_last: bool) -> None:
        """`last_hidden_state`, and the mean of the first and the last layer's output where asked for."""
        n, backbone = self._nodes, self._backbone
        mask = self._mask()
        if backbone.buckets:
            mask = n("Add", mask, self._distances())
        packing = Packing(n, backbone.heads, backbone.width // backbone.heads)
        x = self._embeddings(packing)
        found = []
        for layer in range(backbone.layers):
            x = self._layer(x, mask, packing, f"encoder.layer.{layer}")
            found.append(x)
        packing.unpack(x, HIDDEN)
        if first_last:
            mean = n("Mul", n("Add", found[0], x), n.tensor(0.5))
            packing.unpack(mean, FIRST_LAST)

    def words(self, ids: str = "input_ids", out: str = "") -> str:
        """A row of the word table for each token: (…, width)."""
        return self._nodes("Gather", self._weight("embeddings.word_embeddings"), ids, out=out)

    def _mask(self) -> str:
        """(batch, 1, 1, sequence): what is added to the scores."""
        n = self._nodes
        mask = n("Unsqueeze", "attention_mask", n.ints(1))
        mask = n("Cast", n("Unsqueeze", mask, n.ints(2)), to=TensorProto.FLOAT)
        return n("Mul", n("Sub", n.tensor(1.0), mask), n.tensor(_MASKED))

    def _embeddings(self, packing: Packing) -> str:
        """(tokens, width), as everything but attention.

        ONNX Runtime 1.31 joins an Add with its LayerNormalization into SkipLayerNormalization only where a
        batch has three dimensions; its CPU kernel took 14 % of the time where the two took 5 %.
        """
        n = self._nodes
        words = self.words(packing.pack("input_ids"))
        if self._backbone.types:
            kinds = packing.pack("token_type_ids")
            words = n("Add", words, n("Gather", self._weight("embeddings.token_type_embeddings"), kinds))
        padding = self._backbone.padding
        places = packing.columns if padding is None else packing.pack(counted(n, padding))
        positions = n("Gather", self._weight("embeddings.position_embeddings"), places)
        x = self._normalise(n("Add", words, positions), "embeddings.LayerNorm")
        return self._linear(x, "embeddings_project") if self._backbone.table else x

    def _distances(self) -> str:
        table = self._tensors["encoder.relative_attention_bias.weight"]  # (buckets, heads)
        buckets = distance_buckets(self._backbone.positions, self._backbone.buckets)
        return distances(self._nodes, table[buckets].T)

    def _layer(self, x: str, mask: str, packing: Packing, at: str) -> str:
        n = self._nodes
        mixed = self._attention(x, mask, packing, f"{at}.attention.self")
        (attended,) = self.linears(mixed, f"{at}.attention.output.dense")
        x = self._normalise(n("Add", attended, x), f"{at}.attention.output.LayerNorm")
        (inner,) = self.linears(x, f"{at}.intermediate.dense")
        (transformed,) = self.linears(self._activate(inner), f"{at}.output.dense")
        return self._normalise(n("Add", transformed, x), f"{at}.output.LayerNorm")

    def _attention(self, x: str, mask: str, packing: Packing, at: str) -> str:
        n, width = self._nodes, self._backbone.width
        parts = self.linears(x, *(f"{at}.{part}" for part in ("query", "key", "value")))
        query, key, value = map(packing.split, parts)
        # The runtime reads the key transposed on the way.
        scores = n("MatMul", query, n("Transpose", key, perm=(0, 1, 3, 2)))
        scores = n("Add", n("Div", scores, n.tensor(math.sqrt(width // self._backbone.heads))), mask)
        return packing.join(n("MatMul", n("Softmax", scores, axis=3), value), width)

    def _activate(self, x: str) -> str:
        n = self._nodes
        if self._backbone.activation == "relu":
            return n("Relu", x)
        if self._backbone.activation == "gelu":
            gate = n("Add", n("Erf", n("Div", x, n.tensor(math.sqrt(2)))), n.tensor(1.0))
            return n("Mul", n("Mul", x, gate), n.tensor(0.5))
        cubed = n("Mul", n("Pow", x, n.tensor(3.0)), n.tensor(0.044715))
        tanh = n("Tanh", n("Mul", n("Add", x, cubed), n.tensor(math.sqrt(2 / math.pi))))
        return n("Mul", n("Mul", x, n.tensor(0.5)), n("Add", tanh, n.tensor(1.0)))

    def linears(self, x: str, *layers: str) -> list[str]:
        """The results of several linear layers on the same rows `x` (tokens, width)."""
        return [self._linear(x, at) for at in layers]

    def _linear(self, x: str, at: str) -> str:
        n = self._nodes
        product = n("MatMul", x, n.tensor(self._tensors[f"{at}.weight"].T, name=f"{at}.weight"))
        return n("Add", product, n.tensor(self._tensors[f"{at}.bias"], name=f"{at}.bias"))

    def _normalise(self, x: str, at: str) -> str:
        n = self._nodes
        scale = self._weight(at)
        bias = n.tensor(self._tensors[f"{at}.bias"], name=f"{at}.bias")
        return n("LayerNormalization", x, scale, bias, axis=-1, epsilon=self._backbone.epsilon)

    def _weight(self, at: str) -> str:
        return self._nodes.tensor(self._tensors[f"{at}.weight"], name=f"{at}.weight")

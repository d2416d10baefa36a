"""The BERT graph: safetensors in, ONNX out, without torch.

    input_ids, token_type_ids ─▶ embeddings ─▶ layer, layer, … ─▶ last_hidden_state ─▶ head.py
    attention_mask ─▶ 0 or -1e4, added to every attention score
                                   (first layer + last layer) / 2 ─▶ head.py, for `first_last`
    input_ids ─▶ rows of the word table, as last_hidden_state ─────▶ head.py, for `static`

Plain operators in an order that ONNX Runtime's own session optimiser knows. On CPU it makes BiasGelu and
scaled MatMul of them, which is the fastest form that was found; its SkipLayerNormalization is slower there
(see `_embeddings`). Not here: any other family.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto, helper

from .backbone import Backbone, Tensors
from .nodes import Nodes

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
HIDDEN = "last_hidden_state"
_FIRST_LAST = "bert.first_last"
POOLED_FROM = {"last": HIDDEN, "first_last": _FIRST_LAST, "static": HIDDEN}  # the value that head.py takes

# exp(-1e4) is exactly 0 in float32, so a padded token has no weight at all; a larger number gains nothing.
_MASKED = -10000.0


def bert_graph(backbone: Backbone, tensors: Tensors, tokens: str = "last") -> onnx.GraphProto:
    """The graph up to the token vectors, float32 (batch, sequence, width); `last_hidden_state` is its output.

    tensors: by their backbone names, as `backbone.shapes(tokens)` lists them.
    tokens: as in head.py; the value POOLED_FROM[tokens] is then in the graph.
    """
    graph = onnx.GraphProto(name="bert")
    for name in INPUTS[:2] if tokens == "static" else INPUTS:
        graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"]))
    nodes = Nodes(graph, "bert.")
    writer = _Writer(backbone, tensors, nodes)
    if tokens == "static":
        writer.words(out=HIDDEN)
    else:
        first, last = writer.layers()
        if tokens == "first_last":
            nodes("Mul", nodes("Add", first, last), nodes.tensor(0.5), out=_FIRST_LAST)
    shape: list[str | int | None] = ["batch", "sequence", backbone.width]
    graph.output.append(helper.make_tensor_value_info(HIDDEN, TensorProto.FLOAT, shape))
    return graph


class _Writer:
    def __init__(self, backbone: Backbone, tensors: Tensors, nodes: Nodes) -> None:
        self._backbone = backbone
        self._tensors = tensors
        self._nodes = nodes

    def layers(self) -> tuple[str, str]:
        """The output of the first layer and that of the last, which is `last_hidden_state`."""
        mask = self._mask()
        x = self._embeddings()
        found = []
        for layer in range(self._backbone.layers):
            last = layer == self._backbone.layers - 1
            x = self._layer(x, mask, f"encoder.layer.{layer}", out=HIDDEN if last else "")
            found.append(x)
        return found[0], found[-1]

    def words(self, out: str = "") -> str:
        """(batch, sequence, width): a row of the word table for each token."""
        return self._nodes("Gather", self._weight("embeddings.word_embeddings"), "input_ids", out=out)

    def _mask(self) -> str:
        """(batch, 1, 1, sequence): what is added to the scores."""
        n = self._nodes
        mask = n("Unsqueeze", "attention_mask", n.ints(1))
        mask = n("Cast", n("Unsqueeze", mask, n.ints(2)), to=TensorProto.FLOAT)
        return n("Mul", n("Sub", n.tensor(1.0), mask), n.tensor(_MASKED))

    def _embeddings(self) -> str:
        """(batch, sequence, width).

        The position ids are cut from a table: their length is then unknown to shape inference, which keeps
        ONNX Runtime 1.31 from joining each Add with its LayerNormalization into SkipLayerNormalization, whose
        CPU kernel took 14 % of the time where the two took 5 % (one thread: 132 instead of 159 GFLOP/s).
        """
        n = self._nodes
        words = self.words()
        types = n("Gather", self._weight("embeddings.token_type_embeddings"), "token_type_ids")
        length = n("Gather", n("Shape", "input_ids"), n.tensor(1, np.int64))
        table = n.tensor(np.arange(self._backbone.positions)[None], np.int64)
        ids = n("Slice", table, n.ints(0), n("Unsqueeze", length, n.ints(0)), n.ints(1), n.ints(1))
        positions = n("Gather", self._weight("embeddings.position_embeddings"), ids)
        return self._normalise(n("Add", n("Add", words, types), positions), "embeddings.LayerNorm")

    def _layer(self, x: str, mask: str, at: str, out: str) -> str:
        n = self._nodes
        attended = self._linear(
            self._attention(x, mask, f"{at}.attention.self"), f"{at}.attention.output.dense"
        )
        x = self._normalise(n("Add", attended, x), f"{at}.attention.output.LayerNorm")
        inner = self._activate(self._linear(x, f"{at}.intermediate.dense"))
        return self._normalise(
            n("Add", self._linear(inner, f"{at}.output.dense"), x), f"{at}.output.LayerNorm", out
        )

    def _attention(self, x: str, mask: str, at: str) -> str:
        n, heads = self._nodes, self._backbone.heads
        size = self._backbone.width // heads

        def split(part: str, order: tuple[int, ...]) -> str:
            shape = n.ints(0, 0, heads, size)
            return n("Transpose", n("Reshape", self._linear(x, f"{at}.{part}"), shape), perm=order)

        scores = n("MatMul", split("query", (0, 2, 1, 3)), split("key", (0, 2, 3, 1)))
        scores = n("Add", n("Div", scores, n.tensor(math.sqrt(size))), mask)
        mixed = n("MatMul", n("Softmax", scores, axis=3), split("value", (0, 2, 1, 3)))
        return n("Reshape", n("Transpose", mixed, perm=(0, 2, 1, 3)), n.ints(0, 0, self._backbone.width))

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

    def _linear(self, x: str, at: str) -> str:
        n = self._nodes
        product = n("MatMul", x, n.tensor(self._tensors[f"{at}.weight"].T, name=f"{at}.weight"))
        return n("Add", product, n.tensor(self._tensors[f"{at}.bias"], name=f"{at}.bias"))

    def _normalise(self, x: str, at: str, out: str = "") -> str:
        n = self._nodes
        scale = self._weight(at)
        bias = n.tensor(self._tensors[f"{at}.bias"], name=f"{at}.bias")
        return n("LayerNormalization", x, scale, bias, out=out, axis=-1, epsilon=self._backbone.epsilon)

    def _weight(self, at: str) -> str:
        return self._nodes.tensor(self._tensors[f"{at}.weight"], name=f"{at}.weight")

"""Writes the int8 graph of a BERT. Only the linear layers use 8-bit integers. Start at `int8_model`.

    x ─▶ / smoothing ─▶ uint8 ─▶ MatMulIntegerToFloat, weights int8 ─▶ float32, with the bias

Each layer input has one fixed range for all texts, so the vector of a text does not depend on its batch. The
range spans all input columns. `find_spans` reads the minimum and maximum of each column from the float32
graph. Each output column of a weight matrix has its own range. Most layers divide each input column by a
factor, and multiply its weights by the same factor (SmoothQuant, Xiao et al. 2023, equation 4). The number 0
is represented exactly.

MatMulIntegerToFloat exists only in ONNX Runtime, and is exact only on processors with VNNI
(engines/opening.py). Other tools therefore must not find the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper

from models.graph.backbone import Backbone, Tensors
from models.graph.bert import POOLED_FROM, Writer, bert_graph
from models.graph.head import Head, append_head
from models.graph.nodes import CONTRIB, Nodes, build_model
from models.progress import Progress
from models.tokens.tokenizer import build_feed

Vector = NDArray[np.float32]
_ROWS = 32  # Texts in a batch.


class Span(NamedTuple):
    """The minimum and maximum of each input column of a layer, both of shape (columns,)."""

    least: Vector
    most: Vector


Spans = dict[str, Span]  # Keyed by the first of the layers that share an input.


def find_spans(
    backbone: Backbone, tensors: Tensors, tokens: str, rows: Sequence[Sequence[int]], progress: Progress
) -> Spans:
    """Measures the `Span` of each input of linear layers.

    Args:
        rows: Token ids of each text.
    """
    taken: list[str] = []
    graph = bert_graph(backbone, tensors, tokens, partial(_Recorder, taken=taken))
    del graph.output[0]
    for name in (_output(at, kind) for at in taken for kind in Span._fields):
        graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [None]))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        build_model(graph).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: dict[str, Vector] = {}
    names = [output.name for output in session.get_outputs()]
    inputs = [given.name for given in session.get_inputs()]
    ordered = sorted(rows, key=len)
    for start in range(0, len(ordered), _ROWS):
        batch = ordered[start : start + _ROWS]
        values = session.run(names, build_feed(batch, inputs))
        progress.add(len(batch))
        for name, value in zip(names, values, strict=True):
            choose = np.minimum if name.endswith(Span._fields[0]) else np.maximum
            found[name] = choose(found.get(name, value), value)
    return {at: Span(*(found[_output(at, kind)] for kind in Span._fields)) for at in taken}


class _Recorder(Writer):
    def __init__(self, backbone: Backbone, tensors: Tensors, nodes: Nodes, *, taken: list[str]) -> None:
        super().__init__(backbone, tensors, nodes)
        self._taken = taken

    def linears(self, x: str, *layers: str) -> list[str]:
        self._taken.append(layers[0])
        for kind, reduction in zip(Span._fields, ("ReduceMin", "ReduceMax"), strict=True):
            self._nodes(reduction, x, out=_output(layers[0], kind), axes=[0], keepdims=0)
        return super().linears(x, *layers)


def _output(at: str, kind: str) -> str:
    return f"{at}.{kind}"


_WEIGHT_LEVELS, _INPUT_LEVELS = 127, 255
_MIN_DIVISOR = 1e-5  # Smallest divisor.

# The share of a column's width that moves to its weights, 0 to 1: the best values on all-MiniLM-L6-v2. In the
# input of `output.dense`, single columns are ten times as wide as the rest. `_MIXED` gains nothing.
_SMOOTHING = {
    "attention.self.query": 0.7,
    "attention.self.key": 0.7,
    "intermediate.dense": 0.7,
    "output.dense": 0.9,
}
_MIXED = "attention.output.dense"


def int8_model(backbone: Backbone, tensors: Tensors, head: Head, spans: Spans) -> onnx.ModelProto:
    """Builds the int8 model. It has the same inputs and outputs as the float32 model."""
    writer = partial(Quantized, spans=spans)
    graph = bert_graph(backbone, tensors, head.graph_tokens, writer)
    append_head(graph, POOLED_FROM[head.graph_tokens], head, head.dimension(backbone.width))
    return build_model(graph, contrib=True)


class Quantized(Writer):
    def __init__(self, backbone: Backbone, tensors: Tensors, nodes: Nodes, *, spans: Spans) -> None:
        super().__init__(backbone, tensors, nodes)
        self._spans = spans

    def words(self, ids: str = "input_ids", out: str = "") -> str:
        # Half precision is finer than int8, and the table is most of a small model.
        table = self._nodes.tensor(self._tensors["embeddings.word_embeddings.weight"], np.float16)
        return self._nodes("Cast", self._nodes("Gather", table, ids), to=TensorProto.FLOAT, out=out)

    def linears(self, x: str, *layers: str) -> list[str]:
        n, span = self._nodes, self._spans[layers[0]]
        weights = [self._tensors[f"{at}.weight"] for at in layers]
        smoothing = _smoothing(layers[0], span, weights)
        if smoothing is not None:
            x = n("Mul", x, n.tensor(1 / smoothing))
            span = Span(span.least / smoothing, span.most / smoothing)
            weights = [weight * smoothing for weight in weights]
        step, zero = _range(span)
        steps, zeros = n.tensor(step), n.tensor(zero, np.uint8)
        rounded = n("QuantizeLinear", x, steps, zeros)
        found = []
        for at, weight in zip(layers, weights, strict=True):
            widths = np.maximum(np.abs(weight).max(axis=1), np.float32(_MIN_DIVISOR)) / _WEIGHT_LEVELS
            whole = n.tensor(np.rint(weight / widths[:, None]).T, np.int8, f"{at}.weight")
            bias = n.tensor(self._tensors[f"{at}.bias"], name=f"{at}.bias")
            inputs = (rounded, whole, steps, n.tensor(widths), zeros, "", bias)
            found.append(n("MatMulIntegerToFloat", *inputs, domain=CONTRIB))
        return found


def _smoothing(at: str, span: Span, weights: Sequence[NDArray[np.float32]]) -> NDArray[np.float32] | None:
    """Returns the divisor of each input column, with a geometric mean of 1. None: no division."""
    kind = at.split(".", 3)[3]  # after encoder.layer.N
    if kind == _MIXED:
        return None
    share = _SMOOTHING[kind]
    widths = np.maximum(np.maximum(np.abs(span.least), np.abs(span.most)), _MIN_DIVISOR)
    taken = np.maximum(np.max([np.abs(weight).max(axis=0) for weight in weights], axis=0), _MIN_DIVISOR)
    smoothing = widths**share / taken ** (1 - share)
    scaled: NDArray[np.float32] = (smoothing / np.exp(np.log(smoothing).mean())).astype(np.float32)
    return scaled


def _range(span: Span) -> tuple[float, int]:
    """Returns the quantization step and the zero point of a layer input."""
    least, most = min(float(span.least.min()), 0.0), max(float(span.most.max()), 0.0)
    step = max(most - least, _MIN_DIVISOR) / _INPUT_LEVELS
    return step, round(-least / step)

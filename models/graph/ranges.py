"""Measures the range of values that reaches each linear layer of a BERT, for the int8 graph.

`find_spans` runs the float32 graph with the minimum and maximum of each input column as its outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper

from models.graph.backbone import Backbone, Tensors
from models.graph.bert import Writer, bert_graph
from models.graph.nodes import Nodes, model_of
from models.words.progress import Progress

Vector = NDArray[np.float32]
_ROWS = 32  # Texts in a batch.


class Span(NamedTuple):
    """The minimum and maximum of a layer's input columns, shape (columns,) each."""

    least: Vector
    most: Vector


Spans = dict[str, Span]  # Keyed by the first of the layers that share an input.


def find_spans(
    backbone: Backbone, tensors: Tensors, tokens: str, rows: Sequence[Sequence[int]], progress: Progress
) -> Spans:
    """Measures the spans of all linear layers over `rows`, the token ids of each text."""
    taken: list[str] = []
    graph = bert_graph(backbone, tensors, tokens, partial(_Recorder, taken=taken))
    del graph.output[0]
    for name in (_output(at, kind) for at in taken for kind in Span._fields):
        graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [None]))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model_of(graph).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: dict[str, Vector] = {}
    names = [output.name for output in session.get_outputs()]
    inputs = [given.name for given in session.get_inputs()]
    ordered = sorted(rows, key=len)
    for start in range(0, len(ordered), _ROWS):
        batch = ordered[start : start + _ROWS]
        values = session.run(names, _feed(batch, inputs))
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


def _feed(rows: Sequence[Sequence[int]], inputs: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    shape = (len(rows), max(map(len, rows)))
    feed = {name: np.zeros(shape, np.int64) for name in inputs}
    for at, row in enumerate(rows):
        feed["input_ids"][at, : len(row)] = row
        feed["attention_mask"][at, : len(row)] = 1
    return feed

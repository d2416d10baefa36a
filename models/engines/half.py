"""Converts a graph to fp16, except pooling, head and normalization. Start at `to_half`.

    token ids ─▶ backbone, fp16 ─▶ Cast ─▶ simile.…: pooling, dense, L2, fp32 ─▶ float32 (n, dimension)

The nodes of head.py stay in fp32: sums over 512 tokens and squared lengths lose digits in fp16, and fp32
costs almost nothing there. Normalization between layers returns fp16, because fp32 gained nothing: on 192
texts, all-MiniLM-L6-v2 had a smallest cosine to fp32 of 0.999999 either way.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.errors import Unsupported
from models.graph.head import POOLED, SCOPE, SENTENCE

_TINIEST, _LARGEST = 2.0**-24, 65504.0  # Finite positive range of half precision.
_SUFFIX = ".fp16"


def to_half(model: onnx.ModelProto) -> None:
    """Converts a published graph in place. Its outputs are then the pooled vectors in fp32.

    Raises:
        Unsupported: The graph has branches or loops.
    """
    graph = model.graph
    for node in graph.node:
        if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            raise Unsupported(
                f"The graph has a {node.op_type}, which cannot be served in fp16. Set SIMILE_PRECISION=fp32."
            )
    del graph.value_info[:]
    outputs = [output for output in graph.output if output.name in {SENTENCE, POOLED}]
    del graph.output[:]
    graph.output.extend(outputs)
    head = [node for node in graph.node if node.name.startswith(SCOPE)]
    body = [node for node in graph.node if not node.name.startswith(SCOPE)]
    _halve_weights(graph, body, head)
    for node in body:
        _halve_attributes(node)
    _cast_between(graph, body, head)


def _halve_weights(
    graph: onnx.GraphProto, body: Iterable[onnx.NodeProto], head: Iterable[onnx.NodeProto]
) -> None:
    """Converts the weights of the backbone. The head keeps fp32 copies of weights that it shares."""
    of_body = {name for node in body for name in node.input}
    of_head = {name for node in head for name in node.input}
    for tensor in list(graph.initializer):
        if tensor.data_type != TensorProto.FLOAT or tensor.name not in of_body:
            continue
        small = numpy_helper.from_array(half(numpy_helper.to_array(tensor)), tensor.name)
        if tensor.name not in of_head:
            tensor.CopyFrom(small)
            continue
        small.name += _SUFFIX
        graph.initializer.append(small)
        for node in body:
            node.input[:] = [small.name if name == tensor.name else name for name in node.input]


def half(array: NDArray[np.float32]) -> NDArray[np.float16]:
    """Rounds to fp16 without new zeros or infinities.

    1e-12 must keep a quotient finite, and a mask of -3.4e38 must not become 0 times infinity.
    """
    near = np.clip(array, -_LARGEST, _LARGEST)
    near = np.where((array != 0) & (np.abs(near) < _TINIEST), np.copysign(_TINIEST, array), near)
    return near.astype(np.float16)


def _halve_attributes(node: onnx.NodeProto) -> None:
    """Converts constants, and casts to fp32."""
    for attribute in node.attribute:
        if attribute.HasField("t") and attribute.t.data_type == TensorProto.FLOAT:
            attribute.t.CopyFrom(numpy_helper.from_array(half(numpy_helper.to_array(attribute.t))))
        elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.FLOAT16
        elif node.op_type == "Constant" and attribute.name in {"value_float", "value_floats"}:
            values = [attribute.f] if attribute.name == "value_float" else list(attribute.floats)
            shape = () if attribute.name == "value_float" else (len(values),)
            array = half(np.asarray(values, np.float32)).reshape(shape)
            attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(array)))


def _cast_between(graph: onnx.GraphProto, body: list[onnx.NodeProto], head: list[onnx.NodeProto]) -> None:
    """Casts values that leave the backbone to fp32."""
    leaving = {name for node in head for name in node.input} | {output.name for output in graph.output}
    casts = []
    for name in [name for node in body for name in node.output if name in leaving]:
        inside = name + _SUFFIX
        for node in body:
            for names in (node.input, node.output):
                names[:] = [inside if known == name else known for known in names]
        casts.append(helper.make_node("Cast", [inside], [name], name=inside, to=TensorProto.FLOAT))
    del graph.node[:]
    graph.node.extend([*body, *casts, *head])

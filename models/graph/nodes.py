"""Writes an ONNX graph one operator at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, DTypeLike
from onnx import helper, numpy_helper

from models.graph.aside import Aside

OPSET = 17  # The first with LayerNormalization. Supported since ONNX Runtime 1.13 and OpenVINO 2022.3.
IR_VERSION = 8
CONTRIB = "com.microsoft"


class Nodes:
    """Appends nodes to `graph`. Every method returns the name of the value that it adds.

    Args:
        scope: Prefix of generated names, which must be new to the graph.
        aside: Collects large tensors, if one file cannot hold them.
    """

    def __init__(
        self, graph: onnx.GraphProto, scope: str, opset: int = OPSET, aside: Aside | None = None
    ) -> None:
        self.graph = graph
        self._scope = scope
        self._opset = opset
        self._aside = aside
        self._count = 0

    def __call__(self, operator: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        name = self._name(operator)
        output = out or name
        node = helper.make_node(operator, list(inputs), [output], name=name, **attributes)
        self.graph.node.append(node)
        return output

    def tensor(self, value: ArrayLike, dtype: DTypeLike = np.float32, name: str = "") -> str:
        name = name or self._name("constant")
        if self._aside is not None and self._aside.takes(value, dtype):
            self._aside.add(self.graph, name, value, dtype)
            return name
        array = np.ascontiguousarray(value, dtype=dtype).reshape(np.shape(value))
        self.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def ints(self, *values: int) -> str:
        return self.tensor(values, np.int64)

    def maximum(self, x: str, axis: int) -> str:
        """Computes the maximum along `axis`, and drops that axis."""
        if self._opset < 18:  # Opset 18 turned the attribute `axes` into an input.
            return self("ReduceMax", x, axes=[axis], keepdims=0)
        return self("ReduceMax", x, self.ints(axis), keepdims=0)

    def unit(self, x: str, out: str = "") -> str:
        """Divides each row of `x` by its length."""
        norm = self("Sqrt", self("ReduceSum", self("Mul", x, x), self.ints(1), keepdims=1))
        return self("Div", x, self("Max", norm, self.tensor(1e-12)), out=out)

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{self._scope}{kind}_{self._count}"


def model_of(graph: onnx.GraphProto, *, contrib: bool = False) -> onnx.ModelProto:
    """Wraps a graph in a model. `contrib` allows operators that only ONNX Runtime has."""
    opsets = [helper.make_opsetid("", OPSET), *([helper.make_opsetid(CONTRIB, 1)] if contrib else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="simile")

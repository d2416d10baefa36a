"""Nodes: write an ONNX graph one operator at a time. Plain operators only, so that every runtime reads it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, DTypeLike
from onnx import helper, numpy_helper

from models.graph.aside import Aside

OPSET = 17  # the first with LayerNormalization as one operator; ONNX Runtime 1.13 and OpenVINO 2022.3 read it
IR_VERSION = 8
CONTRIB = "com.microsoft"


class Nodes:
    """Appends to `graph`; every method answers the name of the value it made.

    Names that Nodes makes itself begin with `scope`, so they cannot meet names already in the graph.
    """

    def __init__(
        self, graph: onnx.GraphProto, scope: str, opset: int = OPSET, aside: Aside | None = None
    ) -> None:
        """aside: takes the large tensors of a graph that one file cannot hold."""
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
        """The largest along `axis`, which is dropped; opset 18 moved the axis from attribute to input."""
        if self._opset < 18:
            return self("ReduceMax", x, axes=[axis], keepdims=0)
        return self("ReduceMax", x, self.ints(axis), keepdims=0)

    def unit(self, x: str, out: str = "") -> str:
        """The rows of `x`, each divided by its length."""
        norm = self("Sqrt", self("ReduceSum", self("Mul", x, x), self.ints(1), keepdims=1))
        return self("Div", x, self("Max", norm, self.tensor(1e-12)), out=out)

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{self._scope}{kind}_{self._count}"


def model_of(graph: onnx.GraphProto, *, contrib: bool = False) -> onnx.ModelProto:
    """contrib: with operators that ONNX Runtime has beside those of the standard."""
    opsets = [helper.make_opsetid("", OPSET), *([helper.make_opsetid(CONTRIB, 1)] if contrib else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="simile")

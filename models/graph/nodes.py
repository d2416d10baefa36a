"""Writes an ONNX graph one operator at a time, and writes large weights to a data file.

An ONNX file holds at most 2 GB. `Aside` copies large tensors one by one from the mapped checkpoint to the
data file, so the weights of a large model need not fit into memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, DTypeLike
from onnx import helper, numpy_helper

from models.graph.file import LARGEST

DATA = "model.onnx_data"  # Next to model.onnx, where other tools also expect it.
SMALLEST = 1 << 16  # Bytes. Smaller tensors may define shapes, so they stay in the graph.
_PAGE = 4096  # Tensors start on page boundaries, so each can be mapped separately.


class Aside:
    """Collects large tensors of one graph, and writes them to the data file."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, ArrayLike, DTypeLike]] = []  # (offset, values, type)
        self._end = 0

    def takes(self, value: ArrayLike, dtype: DTypeLike) -> bool:
        return np.size(value) * np.dtype(dtype).itemsize >= SMALLEST

    def add(self, graph: onnx.GraphProto, name: str, value: ArrayLike, dtype: DTypeLike) -> None:
        """Declares a tensor in the graph, with a reference to the data file."""
        tensor = graph.initializer.add()
        tensor.name = name
        tensor.data_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        tensor.dims.extend(np.shape(value))
        tensor.data_location = onnx.TensorProto.EXTERNAL
        start, size = -(-self._end // _PAGE) * _PAGE, np.size(value) * np.dtype(dtype).itemsize
        for key, entry in (("location", DATA), ("offset", start), ("length", size)):
            tensor.external_data.add(key=key, value=str(entry))
        self._waiting.append((start, value, dtype))
        self._end = start + size

    def write(self, file: Path) -> None:
        with file.open("wb") as stream:
            for start, value, dtype in self._waiting:
                stream.seek(start)
                stream.write(np.ascontiguousarray(value, dtype=dtype).data)


def save(model: onnx.ModelProto, file: Path, aside: Aside | None) -> None:
    """Writes a model. If necessary, large weights go to a data file."""
    if aside is not None:
        aside.write(file.with_name(DATA))
        onnx.save(model, file)
    elif sum(len(tensor.raw_data) for tensor in model.graph.initializer) > LARGEST:
        onnx.save_model(model, file, save_as_external_data=True, location=DATA, size_threshold=SMALLEST)
    else:
        onnx.save(model, file)


OPSET = 17  # The first with LayerNormalization. Supported since ONNX Runtime 1.13 and OpenVINO 2022.3.
IR_VERSION = 8
CONTRIB = "com.microsoft"


class Nodes:
    """Appends nodes to `graph`. Every method returns the name of the value that it adds.

    Args:
        scope: Prefix of generated names. No name in the graph may start with it yet.
        aside: Collects large tensors for a data file, if one ONNX file cannot hold them.
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

    def gelu(self, x: str) -> str:
        """Computes the exact GELU, by the error function."""
        gate = self("Add", self("Erf", self("Div", x, self.tensor(math.sqrt(2)))), self.tensor(1.0))
        return self("Mul", self("Mul", x, gate), self.tensor(0.5))

    def unit(self, x: str, out: str = "") -> str:
        """Divides each row of `x` by its length."""
        norm = self("Sqrt", self("ReduceSum", self("Mul", x, x), self.ints(1), keepdims=1))
        return self("Div", x, self("Max", norm, self.tensor(1e-12)), out=out)

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{self._scope}{kind}_{self._count}"


def rename(nodes: Iterable[onnx.NodeProto], old: str, new: str) -> None:
    """Renames a value in the inputs and outputs of nodes."""
    for node in nodes:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]


def build_model(graph: onnx.GraphProto, *, contrib: bool = False) -> onnx.ModelProto:
    """Wraps a graph in a model. `contrib` allows operators that only ONNX Runtime has."""
    opsets = [helper.make_opsetid("", OPSET), *([helper.make_opsetid(CONTRIB, 1)] if contrib else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="simile")

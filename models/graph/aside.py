"""Stores large weights next to the graph, because an ONNX file holds at most 2 GB.

Tensors are written one by one from the mapped checkpoint, so a large model need not fit into memory.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import ArrayLike, DTypeLike
from onnx import helper

from models.graph.file import LARGEST

DATA = "model.onnx_data"  # Next to model.onnx, where other tools also expect it.
SMALLEST = 1 << 16  # Bytes. Smaller tensors may define shapes, so they stay in the graph.
_PAGE = 4096  # Tensors start on page boundaries, so each can be mapped separately.


class Aside:
    """Tensors of one graph that go to the data file."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, ArrayLike, DTypeLike]] = []  # (offset, values, type)
        self._end = 0

    def takes(self, value: ArrayLike, dtype: DTypeLike) -> bool:
        return np.size(value) * np.dtype(dtype).itemsize >= SMALLEST

    def add(self, graph: onnx.GraphProto, name: str, value: ArrayLike, dtype: DTypeLike) -> None:
        """Declares the tensor in the graph."""
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
    """Writes a model, and its large weights to a data file if necessary."""
    if aside is not None:
        aside.write(file.with_name(DATA))
        onnx.save(model, file)
    elif sum(len(tensor.raw_data) for tensor in model.graph.initializer) > LARGEST:
        onnx.save_model(model, file, save_as_external_data=True, location=DATA, size_threshold=SMALLEST)
    else:
        onnx.save(model, file)

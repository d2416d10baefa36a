"""Weights in a file of their own beside the graph: one ONNX file is one message of at most 2 GB.

Tensors stay where they are, views of the mapped checkpoint most of all, until they are written one by one.
So a model is published without being in memory as a whole, and a runtime maps the file instead of reading it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import ArrayLike, DTypeLike
from onnx import helper

from models.graph.file import LARGEST

DATA = "model.onnx_data"  # beside model.onnx; other tools look there, too
SMALLEST = 1 << 16  # bytes of a tensor that is moved; small ones shape the graph, and stay in it
_PAGE = 4096  # where each begins, so that it can be mapped by itself


class Aside:
    """Tensors of one graph that wait to be written."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, ArrayLike, DTypeLike]] = []  # the first: where it begins
        self._end = 0

    def takes(self, value: ArrayLike, dtype: DTypeLike) -> bool:
        return np.size(value) * np.dtype(dtype).itemsize >= SMALLEST

    def add(self, graph: onnx.GraphProto, name: str, value: ArrayLike, dtype: DTypeLike) -> None:
        """Say in the graph where the tensor will be."""
        tensor = graph.initializer.add()
        tensor.name = name
        tensor.data_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        tensor.dims.extend(np.shape(value))
        tensor.data_location = onnx.TensorProto.EXTERNAL
        start, size = -(-self._end // _PAGE) * _PAGE, np.size(value) * np.dtype(dtype).itemsize
        for key, said in (("location", DATA), ("offset", start), ("length", size)):
            tensor.external_data.add(key=key, value=str(said))
        self._waiting.append((start, value, dtype))
        self._end = start + size

    def write(self, file: Path) -> None:
        with file.open("wb") as stream:
            for start, value, dtype in self._waiting:
                stream.seek(start)
                stream.write(np.ascontiguousarray(value, dtype=dtype).data)


def save(model: onnx.ModelProto, file: Path, aside: Aside | None) -> None:
    """Write a model, with large weights beside it where one file cannot hold them."""
    if aside is not None:
        aside.write(file.with_name(DATA))
        onnx.save(model, file)
    elif sum(len(tensor.raw_data) for tensor in model.graph.initializer) > LARGEST:
        onnx.save_model(model, file, save_as_external_data=True, location=DATA, size_threshold=SMALLEST)
    else:
        onnx.save(model, file)

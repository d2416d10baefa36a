"""Reads the metadata and the largest matrix of an ONNX file, and skips the rest of the file.

An ONNX file is one protobuf message. Field 14 contains the metadata, repeated pairs of strings. Field 7 is
the graph; field 5 of the graph contains its tensors. Start at `read_metadata` and `read_table`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

LARGEST = 1_900_000_000  # Bytes of tensors in one ONNX file of at most 2 GB.
FINGERPRINT = "simile.fingerprint"
SPACE = "simile.space"
HIDDEN = "last_hidden_state"  # Output of graphs: vectors of tokens, before pooling.
POOLED, SENTENCE = "pooled_embedding", "sentence_embedding"  # Outputs of encoders.
LOGITS, SCORES = "logits", "scores"  # Outputs of rerankers, before and after the activation.
RESULTS = frozenset({POOLED, SENTENCE, LOGITS, SCORES})
_METADATA, _GRAPH, _INITIALIZER = 14, 7, 5
_DIMS, _TYPE, _NAME, _RAW = 1, 2, 8, 9  # Fields of a tensor.
_TYPES: dict[int, DTypeLike] = {1: np.float32, 10: np.float16}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Table(NamedTuple):
    name: str
    values: NDArray[np.float32] | NDArray[np.float16]  # (rows, columns)


class _Field(NamedTuple):
    number: int
    start: int  # Offset of the content; 0 for an integer.
    end: int
    value: int  # Value of an integer; 0 for other content.


def read_metadata(file: Path) -> dict[str, str]:
    """Reads the metadata of an ONNX file.

    Raises:
        ValueError: The file is not a protobuf message.
        OSError: The file cannot be read.
    """
    with file.open("rb") as stream:
        end = os.fstat(stream.fileno()).st_size
        return dict(_pair(stream, field) for field in _fields(stream, end) if field.number == _METADATA)


def read_table(file: Path) -> Table | None:
    """Reads the largest matrix of floats in an ONNX file. In an encoder, this is the word table.

    Returns:
        The matrix, or None if the file contains no matrix; external weights are not read.

    Raises:
        ValueError: The file is not a protobuf message.
        OSError: The file cannot be read.
    """
    largest: tuple[str, DTypeLike, list[int], _Field] | None = None
    with file.open("rb") as stream:
        for graph in _fields(stream, os.fstat(stream.fileno()).st_size):
            if graph.number != _GRAPH:
                continue
            stream.seek(graph.start)
            for field in _fields(stream, graph.end):
                found = _matrix(stream, field) if field.number == _INITIALIZER else None
                if found and (largest is None or _size(found[3]) > _size(largest[3])):
                    largest = found
    if largest is None:
        return None
    name, kind, shape, raw = largest
    values = np.fromfile(file, kind, shape[0] * shape[1], offset=raw.start)
    return Table(name, values.reshape(shape))


def _matrix(stream: BinaryIO, tensor: _Field) -> tuple[str, DTypeLike, list[int], _Field] | None:
    """Returns the name, type, shape and values' field of a tensor.

    Returns None unless the tensor is a matrix of floats whose values are in this file.
    """
    stream.seek(tensor.start)
    fields = list(_fields(stream, tensor.end))
    shape = [field.value for field in fields if field.number == _DIMS]
    kind = next((_TYPES.get(field.value) for field in fields if field.number == _TYPE), None)
    raw = next((field for field in fields if field.number == _RAW), None)
    name = next((field for field in fields if field.number == _NAME), None)
    if kind is None or raw is None or name is None or len(shape) != 2:
        return None
    if _size(raw) != shape[0] * shape[1] * np.dtype(kind).itemsize:
        return None
    text = _text(stream, name)
    stream.seek(tensor.end)
    return text, kind, shape, raw


def _size(field: _Field) -> int:
    return field.end - field.start


def _pair(stream: BinaryIO, entry: _Field) -> tuple[str, str]:
    stream.seek(entry.start)
    texts = {1: "", 2: ""}
    for field in _fields(stream, entry.end):
        texts[field.number] = _text(stream, field)
    stream.seek(entry.end)
    return texts[1], texts[2]


def _text(stream: BinaryIO, field: _Field) -> str:
    stream.seek(field.start)
    return stream.read(_size(field)).decode()


def _fields(stream: BinaryIO, end: int) -> Iterator[_Field]:
    """Yields the fields of a message up to the offset `end`. Numbers of fixed length are skipped."""
    while stream.tell() < end:
        number, wire = divmod(_varint(stream), 8)
        if wire == _VARINT:
            yield _Field(number, 0, 0, _varint(stream))
        elif wire in (_FIXED64, _FIXED32):
            stream.seek(8 if wire == _FIXED64 else 4, os.SEEK_CUR)
        elif wire == _BYTES:
            length = _varint(stream)
            start = stream.tell()
            if start + length > end:
                raise ValueError("a field is longer than the file")
            yield _Field(number, start, start + length, 0)
            stream.seek(start + length)
        else:
            raise ValueError(f"{wire} is not a protobuf wire type")


def _varint(stream: BinaryIO) -> int:
    value = 0
    for shift in range(0, 64, 7):
        byte = stream.read(1)
        if not byte:
            raise ValueError("the file ends inside a number")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise ValueError("a number does not end")

"""The metadata of an ONNX file, read without its graph: 90 MB of weights are stepped over, not parsed.

An ONNX file is one protobuf message; field 14 is a repeated pair of strings. Not here: anything else of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

FINGERPRINT = "simile.fingerprint"
SPACE = "simile.space"
_METADATA = 14
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read_metadata(file: Path) -> dict[str, str]:
    """Raise ValueError when the file is not a protobuf message, OSError when it cannot be read."""
    with file.open("rb") as stream:
        end = os.fstat(stream.fileno()).st_size
        return dict(_pair(stream, *at) for number, *at in _fields(stream, end) if number == _METADATA)


def _pair(stream: BinaryIO, start: int, end: int) -> tuple[str, str]:
    stream.seek(start)
    texts = {1: "", 2: ""}
    for number, inner_start, inner_end in _fields(stream, end):
        stream.seek(inner_start)
        texts[number] = stream.read(inner_end - inner_start).decode()
    stream.seek(end)
    return texts[1], texts[2]


def _fields(stream: BinaryIO, end: int) -> Iterator[tuple[int, int, int]]:
    """(number, start, end) of each length-delimited field up to `end`."""
    while stream.tell() < end:
        number, wire = divmod(_varint(stream), 8)
        if wire == _VARINT:
            _varint(stream)
        elif wire in (_FIXED64, _FIXED32):
            stream.seek(8 if wire == _FIXED64 else 4, os.SEEK_CUR)
        elif wire == _BYTES:
            length = _varint(stream)
            start = stream.tell()
            if start + length > end:
                raise ValueError("a field is longer than the file")
            yield number, start, start + length
            stream.seek(start + length)
        else:
            raise ValueError(f"no protobuf field has wire type {wire}")


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

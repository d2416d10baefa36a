"""Small files, read whole: manifests, pointers, configurations.

A file that is too large, nested too deeply, or no regular file (a pipe would be waited for) is refused
before it costs memory or time.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

MOST_BYTES = 16 << 20


def read_bytes(file: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a regular file of at most `most` bytes.

    Raises:
        OSError: the file is missing or cannot be read.
        ValueError: the file is too large, or it is a pipe, a folder or a device.

    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            content = stream.read(most + 1)
    finally:
        os.close(descriptor)
    if len(content) > most:
        raise ValueError(f"it is larger than {most >> 10} KiB")
    return content


def read_json(file: Path, most: int = MOST_BYTES) -> Any:
    """The JSON value in a file.

    Raises:
        OSError: the file is missing or cannot be read.
        ValueError: `read_bytes` refuses it, or it is no JSON, or nested too deeply.

    """
    content = read_bytes(file, most)
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None

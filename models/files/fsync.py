"""Writes that survive a power cut."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def sync(path: Path) -> None:
    """Force a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Force a folder, and all files and folders in it, to the disk."""
    for path in (*folder.rglob("*"), folder):
        sync(path)


def replace_text(file: Path, text: str) -> None:
    """`replace_bytes` of a text, in UTF-8."""
    replace_bytes(file, text.encode())


def replace_bytes(file: Path, content: bytes) -> None:
    """Atomic: a reader sees the old content or the new one, never a part; after this returns, the new one."""
    with replaced(file) as stream:
        stream.write(content)


@contextlib.contextmanager
def replaced(file: Path) -> Iterator[BinaryIO]:
    """A stream whose bytes become the file at the end, in one step and on the disk; after an error, never."""
    temporary = file.with_name(f".{file.name}-{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    sync(file.parent)

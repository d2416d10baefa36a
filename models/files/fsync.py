"""Writes files so that they survive a power cut."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def sync(path: Path) -> None:
    """Flushes a file, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Flushes a folder with all its files and subfolders to the disk."""
    for path in (*folder.rglob("*"), folder):
        sync(path)


def replace_text(file: Path, text: str) -> None:
    replace_bytes(file, text.encode())


def replace_bytes(file: Path, content: bytes) -> None:
    """Replaces a file atomically. Readers see the old or the new content, never a part."""
    with replaced(file) as stream:
        stream.write(content)


@contextlib.contextmanager
def replaced(file: Path) -> Iterator[BinaryIO]:
    """Opens a stream that replaces the file atomically when the `with` block ends without an error."""
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

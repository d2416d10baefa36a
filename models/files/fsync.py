"""Writes that survive a power cut."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def sync(path: Path) -> None:
    """Force a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_text(file: Path, text: str) -> None:
    """As `replace_bytes`, in UTF-8."""
    replace_bytes(file, text.encode())


def replace_bytes(file: Path, content: bytes) -> None:
    """Atomic: a reader sees the old content or the new one, never a part; after this returns, the new one."""
    temporary = file.with_name(f".{file.name}-{secrets.token_hex(4)}")
    try:
        temporary.write_bytes(content)
        sync(temporary)
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    sync(file.parent)

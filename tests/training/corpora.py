"""Writes corpus files, and computes the digest that a corpus should have."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path


def write(folder: Path, name: str, content: str | bytes) -> Path:
    raw = content.encode() if isinstance(content, str) else content
    (folder / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return folder / name


def compute_digest(*texts: str, before: str = "") -> str:
    """Returns the SHA-256 of `before` and each text in UTF-8. Eight bytes with its length precede a text."""
    whole = before.encode() + b"".join(len(t.encode()).to_bytes(8, "big") + t.encode() for t in texts)
    return hashlib.sha256(whole).hexdigest()

"""Titles of documents as a service has them, and as its exports do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def title_of(document: Mapping[str, Any]) -> tuple[str, bool]:
    """A document's title, empty where there is none; and True when searches look into it.

    Documents stored before they could have a title have it in `metadata.title`, where no search looks.
    """
    own, metadata = document.get("title"), document.get("metadata")
    if isinstance(own, str) and own.strip():
        return own.strip(), True
    kept = metadata.get("title") if isinstance(metadata, Mapping) else None
    return (kept.strip(), False) if isinstance(kept, str) else ("", True)

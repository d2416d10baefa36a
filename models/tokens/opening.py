"""A tokenizer, opened from the content of its tokenizer.json, and what it puts around a text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from models.errors import Unsupported
from models.files.bounded import parse_json
from models.tokens.japanese import WORDS, use_mecab

MAX_GROWTH = 1000  # of a text by its normalizers; published tokenizers have 1 or 2


def read_tokenizer(file: Path) -> dict[str, Any]:
    """The content of a tokenizer.json. Raise Unsupported."""
    try:
        content: dict[str, Any] = parse_json(file.read_bytes())
    except ValueError as error:
        raise Unsupported(f"{file.name} cannot be read: {error}") from None
    return content


def open_tokenizer(content: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Without padding and truncation. Raise Unsupported."""
    _require_bounded(content)
    plain = {name: part for name, part in content.items() if name != WORDS}
    try:
        opened = tokenizers.Tokenizer.from_str(json.dumps(plain))
    except Exception as error:  # noqa: BLE001  the library raises nothing narrower
        raise Unsupported(f"tokenizer.json cannot be read: {error}") from None
    opened.no_padding()
    opened.no_truncation()
    if (words := content.get(WORDS)) is not None:
        use_mecab(opened, words)
    return opened


def _require_bounded(content: Mapping[str, Any]) -> None:
    """Raise Unsupported for normalizers that make a text many times as long."""
    growth = 1.0
    for part in _normalizers(content.get("normalizer")):
        if part.get("type") == "Replace" and isinstance(added := part.get("content"), str):
            pattern = part.get("pattern") or {}
            found = pattern.get("String") if isinstance(pattern, Mapping) else None
            # A regular expression may match one character, or none.
            growth *= max(1.0, len(added) / len(found) if found else len(added) + 1)
        elif part.get("type") == "Prepend":
            growth += len(str(part.get("prepend")))
    if growth > MAX_GROWTH:
        raise Unsupported(
            f"tokenizer.json may make a text more than {MAX_GROWTH} times as long (its Replace normalizers)."
        )


def _normalizers(normalizer: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(normalizer, Mapping):
        yield normalizer
        inner = normalizer.get("normalizers")
        for part in inner if isinstance(inner, list) else ():
            yield from _normalizers(part)


def affixes(tokenizer: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """The ids that `tokenizer` puts before and after a text. Raise Unsupported when it does more than that.

    Without truncation and padding. The ids alone would not do: those of a template may be in the text too.
    """
    bare = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a")
    own = [place for place, sequence in enumerate(whole.sequence_ids) if sequence is not None]
    if own:
        start, end = own[0], own[-1] + 1
        if whole.ids[start:end] == bare and len(own) == len(bare):
            return whole.ids[:start], whole.ids[end:]
    raise Unsupported("The tokenizer does more to a text than to add tokens before and after it.")

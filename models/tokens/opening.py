"""Opens a tokenizer from the content of its tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from models.errors import Unsupported
from models.files.bounded import parse_json
from models.tokens.japanese import WORDS, use_mecab

MAX_GROWTH = 1000  # Growth of a text by its normalizers. Published tokenizers have 1 or 2.


def read_tokenizer(file: Path) -> dict[str, Any]:
    """Reads a tokenizer.json. Raises Unsupported if it is not valid JSON."""
    try:
        content: dict[str, Any] = parse_json(file.read_bytes())
    except ValueError as error:
        raise Unsupported(f"{file.name} cannot be read: {error}") from None
    return content


def open_tokenizer(content: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Opens a tokenizer without padding and truncation. Raises Unsupported."""
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
    """Rejects normalizers that make a text many times as long."""
    growth = 1.0
    for part in _normalizers(content.get("normalizer")):
        if part.get("type") == "Replace" and isinstance(added := part.get("content"), str):
            pattern = part.get("pattern") or {}
            found = pattern.get("String") if isinstance(pattern, Mapping) else None
            # A regular expression may match a single character, or the empty text.
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
    """Returns the ids that a tokenizer adds before and after a text.

    Raises:
        Unsupported: It changes the text's own tokens.
    """
    bare = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a")
    # Sequence ids identify the text's tokens. Token ids do not, because a template may repeat them.
    own = [place for place, sequence in enumerate(whole.sequence_ids) if sequence is not None]
    if own:
        start, end = own[0], own[-1] + 1
        if whole.ids[start:end] == bare and len(own) == len(bare):
            return whole.ids[:start], whole.ids[end:]
    raise Unsupported("The tokenizer does more to a text than to add tokens before and after it.")

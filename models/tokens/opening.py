"""A tokenizer, opened from the content of its tokenizer.json, and what it puts around a text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from models.errors import Unsupported
from models.tokens.japanese import WORDS, use_mecab


def read_tokenizer(file: Path) -> dict[str, Any]:
    """The content of a tokenizer.json. Raise Unsupported."""
    try:
        content: dict[str, Any] = json.loads(file.read_bytes())
    except ValueError as error:
        raise Unsupported(f"{file.name} cannot be read: {error}") from None
    return content


def open_tokenizer(content: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Without padding and truncation. Raise Unsupported."""
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

"""Where a text may be cut so that tokenising its pieces gives exactly the tokens of the whole.

True for BERT's own pipeline (BertNormalizer, BertPreTokenizer, WordPiece) before ASCII whitespace, before ASCII
punctuation and, where ideographs are set apart, before one of those: each of these begins a new word whatever stands
before it, none is dropped or joined by the normaliser, and none combines with its left neighbour. A character that
occurs in an added token ("[" of "[SEP]") is not used. For every other pipeline the text is left whole.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_IDEOGRAPHS = "\u4e00-\u9fff"  # the block that BertNormalizer puts spaces around and that normalisation leaves as it is


class Cuts:
    def __init__(self, pattern: re.Pattern[str] | None) -> None:
        self._pattern = pattern

    @classmethod
    def of(cls, tokenizer_file: Path) -> Cuts:
        return cls(_pattern(json.loads(tokenizer_file.read_bytes())))

    def split(self, text: str, size: int, left: bool) -> tuple[str, str]:
        """A piece of about `size` characters from the start (left: from the end) of `text`, and what remains."""
        if self._pattern is None or len(text) <= size:
            return text, ""
        found = self._pattern.search(text, len(text) - size if left else size)
        if found is None:
            return text, ""
        at = found.start()
        return (text[at:], text[:at]) if left else (text[:at], text[at:])


def _pattern(tokenizer: Mapping[str, Any]) -> re.Pattern[str] | None:
    kinds = [(tokenizer.get(part) or {}).get("type") for part in ("normalizer", "pre_tokenizer", "model")]
    if kinds != ["BertNormalizer", "BertPreTokenizer", "WordPiece"]:
        return None
    added = tokenizer.get("added_tokens") or []
    taken = {character for token in added for character in token["content"]}
    usable = [c for c in " \t\n\r" + string.punctuation if c not in taken]
    inside = "".join(re.escape(c) for c in usable)
    # An added token that must stand alone looks at its neighbours, and an ideograph counts as a letter there.
    alone = any(token.get("single_word") for token in added)
    if tokenizer["normalizer"].get("handle_chinese_chars") and not alone and all(c.isascii() for c in taken):
        inside += _IDEOGRAPHS
    return re.compile(f"[{inside}]") if inside else None

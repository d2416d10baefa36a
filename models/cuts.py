"""Where a text may be cut so that tokenising its pieces gives exactly the tokens of the whole.

True for BERT's own pipeline (BertNormalizer, BertPreTokenizer, WordPiece) before whitespace, before
punctuation and, where ideographs are set apart, before one of those: each begins a new word whatever stands
before it, none is dropped or joined by the normaliser, and none combines with its left neighbour. A
character inside an added token ("]" of "[SEP]") is not used; its first character is, unless the token must
stand alone. A text without such a place, or for another pipeline, is cut after MOST characters all the same,
before white space if there is some: it costs hundreds of bytes for each character until it is tokenised.
Only there may tokens differ from the whole text's.

Two runs are shortened as well, since a text may be one of them from end to end: whitespace, which gives no
token, and letters without a boundary, which give one unknown token as soon as the word is longer than
WordPiece looks at.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WHITESPACE = " \t\n\r\u00a0\u3000"
PUNCTUATION = string.punctuation + "¡¿«»–—‘’“”…、。「」『』・，．：；！？（）"  # noqa: RUF001  meant as they are
# The block that BertNormalizer puts spaces around and that normalisation leaves as it is.
_IDEOGRAPHS = "\u4e00-\u9fff"
# Letters (and pictures) of which each leaves at least one character of a word: Latin, Greek, Cyrillic,
# Hebrew, Arabic, kana, Hangul, emoji. Not all that exist: what is not here is tokenised at its full length.
LETTERS = "0-9A-Za-zÀ-ÖØ-öø-ʯΑ-ΡΣ-ωЀ-ҁא-תء-غف-يぁ-ゖァ-ヺ가-힣\U0001f300-\U0001f64f"
_MARKS = "\u0300-\u036f"
_LONG_GAP = 64  # characters of whitespace that are worth shortening
MOST = 1 << 17  # characters of a piece behind which no place to cut was found


class Cuts:
    """Without a pattern for the cuts, a text stays whole up to MOST characters."""

    def __init__(self, cut: re.Pattern[str] | None = None, long_run: re.Pattern[str] | None = None) -> None:
        self._cut = cut
        self._long_run = long_run

    @classmethod
    def of(cls, tokenizer_file: Path) -> Cuts:
        return _cuts(json.loads(tokenizer_file.read_bytes()))

    def split(self, text: str, size: int, left: bool) -> tuple[str, str]:
        """A piece from the start (left: from the end) of `text`, and what remains.

        The piece covers `size` to MOST characters, or more when `size` is larger, and may stand for more
        than it has.
        """
        if len(text) <= size or (self._cut is None and len(text) <= MOST):
            return text, ""
        at = self._from_the_end(text, size) if left else self._from_the_start(text, size)
        piece, rest = (text[at:], text[:at]) if left else (text[:at], text[at:])
        return self._shorten(piece), rest

    def _from_the_start(self, text: str, size: int) -> int:
        end = min(len(text), max(size, MOST))
        found = None if self._cut is None else self._cut.search(text, size, end + 1)
        if found:
            return found.start()
        return end if end == len(text) else _before_white_space(text, end // 2, end, end)

    def _from_the_end(self, text: str, size: int) -> int:
        start = max(0, len(text) - max(size, MOST))
        found = None
        if self._cut is not None:
            found = self._cut.search(text, len(text) - size) or self._cut.search(text, start)
        if found:
            return found.start()
        return start if start == 0 else _before_white_space(text, start, (start + len(text)) // 2, start)

    def _shorten(self, piece: str) -> str:
        return piece if self._long_run is None else self._long_run.sub(r"\1\2", piece)


def _before_white_space(text: str, start: int, end: int, otherwise: int) -> int:
    """The last place in `text[start:end]` where white space begins."""
    found = max(text.rfind(" ", start, end), text.rfind("\n", start, end))
    return found if found > start else otherwise


def _cuts(tokenizer: Mapping[str, Any]) -> Cuts:
    kinds = [(tokenizer.get(part) or {}).get("type") for part in ("normalizer", "pre_tokenizer", "model")]
    if kinds != ["BertNormalizer", "BertPreTokenizer", "WordPiece"]:
        return Cuts()
    added = tokenizer.get("added_tokens") or []
    taken = {character for token in added for character in token["content"]}
    # An added token that must stand alone looks at its neighbours, and an ideograph counts as a letter there.
    alone = any(token.get("single_word") for token in added)
    inner = taken if alone else {character for token in added for character in token["content"][1:]}
    usable = "".join(re.escape(c) for c in WHITESPACE + PUNCTUATION if c not in inner)
    plain = all(character.isascii() for character in taken)
    if tokenizer["normalizer"].get("handle_chinese_chars") and plain and not alone:
        usable += _IDEOGRAPHS
    longest = int(tokenizer["model"].get("max_input_chars_per_word", 100))
    # Runs are shortened only where no added token can begin, end or lie inside one.
    apart = all(
        re.fullmatch(r"\[\S*\]", token["content"]) and len(token["content"]) <= longest for token in added
    )
    return Cuts(re.compile(f"[{usable}]"), _long_run(longest + 1) if apart and not alone else None)


def _long_run(kept: int) -> re.Pattern[str]:
    letter = f"[{LETTERS}][{_MARKS}]*+"
    return re.compile(
        f"([{WHITESPACE}])[{WHITESPACE}]{{{_LONG_GAP},}}+|(?<![{LETTERS}])((?:{letter}){{{kept}}})(?:{letter})++"
    )

"""Cuts a text into pieces whose tokens, joined, are those of the whole text. Start at `Cuts.split`.

In BERT's pipeline (BertNormalizer, BertPreTokenizer, WordPiece), whitespace, punctuation and separated
ideographs start a new word, and never combine with the character before. Texts are cut before these
characters, but not inside added tokens, for example before "]" of "[SEP]".

Tokenizing takes up to 400 bytes of memory per character, so pieces must be small. After `FURTHEST` characters
without a safe place, a text is cut anyway. Texts of other pipelines are cut before whitespace. Tokens around
such cuts may differ.

Two kinds of runs are shortened. A run of whitespace has no tokens. A word that is longer than WordPiece
accepts is always one unknown token.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Any

from models.tokens.normalize import piece_end

WHITESPACE = " \t\n\r\u00a0\u3000"
PUNCTUATION = string.punctuation + "¡¿«»–—‘’“”…、。「」『』・，．：；！？（）"  # noqa: RUF001  meant as they are
# BertNormalizer puts spaces around these characters, and Unicode normalization does not change them.
_IDEOGRAPHS = "\u4e00-\u9fff"
# Letters and emoji of which normalization leaves at least one character. Other runs are tokenized in full.
LETTERS = "0-9A-Za-zÀ-ÖØ-öø-ʯΑ-ΡΣ-ωЀ-ҁא-תء-غف-يぁ-ゖァ-ヺ가-힣\U0001f300-\U0001f64f"
_MARKS = "\u0300-\u036f"
_LONG_GAP = 64  # Longer runs of whitespace are shortened.
FURTHEST = 1 << 17  # Maximum number of characters in which a safe cut is searched for.
LONGEST_RUN = 1 << 22  # Limit of the characters of a piece before its runs are shortened.
_SPACE = re.compile(r"\s")


class Cuts:
    """Cuts texts at the matches of a pattern.

    Without a pattern, texts of up to FURTHEST characters stay whole. Longer texts are cut before whitespace.
    """

    def __init__(self, cut: re.Pattern[str] | None = None, long_run: re.Pattern[str] | None = None) -> None:
        self._cut = cut
        self._long_run = long_run

    @classmethod
    def of(cls, tokenizer: Mapping[str, Any]) -> Cuts:
        """Derives the patterns from the content of tokenizer.json."""
        kinds = [(tokenizer.get(part) or {}).get("type") for part in ("normalizer", "pre_tokenizer", "model")]
        if kinds != ["BertNormalizer", "BertPreTokenizer", "WordPiece"]:
            return cls()
        added = tokenizer.get("added_tokens") or []
        taken = {character for token in added for character in token["content"]}
        # A `single_word` token depends on its neighbors, where an ideograph counts as a letter.
        alone = any(token.get("single_word") for token in added)
        inner = taken if alone else {character for token in added for character in token["content"][1:]}
        usable = "".join(re.escape(c) for c in WHITESPACE + PUNCTUATION if c not in inner)
        plain = all(character.isascii() for character in taken)
        if tokenizer["normalizer"].get("handle_chinese_chars") and plain and not alone:
            usable += _IDEOGRAPHS
        longest = int(tokenizer["model"].get("max_input_chars_per_word", 100))
        # Runs are shortened only if added tokens cannot overlap with them.
        apart = all(
            re.fullmatch(r"\[\S*\]", token["content"]) and len(token["content"]) <= longest for token in added
        )
        return cls(re.compile(f"[{usable}]"), _long_run(longest + 1) if apart and not alone else None)

    def split(self, text: str, size: int, left: bool) -> tuple[str, str]:
        """Cuts a piece from the start of `text`, or from its end if `left`.

        Args:
            size: Minimum number of characters that the piece covers, if the text has that many.

        Returns:
            The piece and the rest of the text. Long runs of whitespace and letters in the piece are
            shortened, so it has at most about 2 * `size` + `FURTHEST` characters.
        """
        if len(text) <= size or (self._cut is None and len(text) <= FURTHEST):
            return text, ""
        return self._last(text, size) if left else self._first(text, size)

    def _first(self, text: str, size: int) -> tuple[str, str]:
        piece, at = "", 0
        while True:
            end = min(at + size + FURTHEST, len(text))
            found = (self._cut or _SPACE).search(text, self._from(at + size, end), end)
            end = found.start() if found else piece_end(text, end)
            piece = self._shorten(piece + text[at:end])
            if found or end == len(text) or len(piece) >= size or end >= LONGEST_RUN:
                return piece, text[end:]
            at = end  # The run was shortened to less than `size`.

    def _last(self, text: str, size: int) -> tuple[str, str]:
        piece, at = "", len(text)
        while True:
            start, near = max(at - size - FURTHEST, 0), max(at - size, 0)
            cut = self._cut or _SPACE
            found = (self._cut and cut.search(text, near, at)) or cut.search(text, start, near)
            start = found.start() if found else start and piece_end(text, start)
            piece = self._shorten(text[start:at] + piece)
            if found or start == 0 or len(piece) >= size or len(text) - start >= LONGEST_RUN:
                return piece, text[:start]
            at = start

    def _from(self, at: int, end: int) -> int:
        """Returns where the search for a cut starts. If cuts may change tokens, this is near the end."""
        return at if self._cut is not None else max(at, end - FURTHEST // 4)

    def _shorten(self, piece: str) -> str:
        return piece if self._long_run is None else self._long_run.sub(r"\1\2", piece)


def _long_run(kept: int) -> re.Pattern[str]:
    letter = f"[{LETTERS}][{_MARKS}]*+"
    return re.compile(
        f"([{WHITESPACE}])[{WHITESPACE}]{{{_LONG_GAP},}}+|(?<![{LETTERS}])((?:{letter}){{{kept}}})(?:{letter})++"
    )

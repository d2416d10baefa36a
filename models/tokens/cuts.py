"""Cuts of a text such that tokenising its pieces gives exactly the tokens of the whole.

True for BERT's own pipeline (BertNormalizer, BertPreTokenizer, WordPiece) before whitespace, before
punctuation and, where ideographs are set apart, before one of those: each begins a new word whatever stands
before it, none is dropped or joined by the normaliser, and none combines with its left neighbour. A
character inside an added token ("]" of "[SEP]") is not used; its first character is, unless the token must
stand alone.

No piece grows without end, since a character takes up to 400 bytes while its piece is tokenised: one without
a place to cut at for `FURTHEST` characters is cut there all the same, and a text of another pipeline before
white space behind as many. Only then may the tokens around the cut differ from the whole text's.

Two runs are shortened as well, since a text may be one of them from end to end: whitespace, which gives no
token, and letters without a boundary, which give one unknown token as soon as the word is longer than
WordPiece looks at. A run of millions is cut as well.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Any

from models.tokens.normalize import piece_end

WHITESPACE = " \t\n\r\u00a0\u3000"
PUNCTUATION = string.punctuation + "¡¿«»–—‘’“”…、。「」『』・，．：；！？（）"  # noqa: RUF001  meant as they are
# The block that BertNormalizer puts spaces around and that normalisation leaves as it is.
_IDEOGRAPHS = "\u4e00-\u9fff"
# Letters (and pictures) of which each leaves at least one character of a word: Latin, Greek, Cyrillic,
# Hebrew, Arabic, kana, Hangul, emoji. Not all that exist: what is not here is tokenised at its full length.
LETTERS = "0-9A-Za-zÀ-ÖØ-öø-ʯΑ-ΡΣ-ωЀ-ҁא-תء-غف-يぁ-ゖァ-ヺ가-힣\U0001f300-\U0001f64f"
_MARKS = "\u0300-\u036f"
_LONG_GAP = 64  # characters of whitespace that are worth shortening
FURTHEST = 1 << 17  # characters in which a place to cut at is looked for
LONGEST_RUN = 1 << 22  # characters that are shortened in one piece
_SPACE = re.compile(r"\s")


class Cuts:
    """Without a pattern for the cuts, a text stays whole up to FURTHEST characters."""

    def __init__(self, cut: re.Pattern[str] | None = None, long_run: re.Pattern[str] | None = None) -> None:
        self._cut = cut
        self._long_run = long_run

    @classmethod
    def of(cls, tokenizer: Mapping[str, Any]) -> Cuts:
        """tokenizer: the content of tokenizer.json."""
        kinds = [(tokenizer.get(part) or {}).get("type") for part in ("normalizer", "pre_tokenizer", "model")]
        if kinds != ["BertNormalizer", "BertPreTokenizer", "WordPiece"]:
            return cls()
        added = tokenizer.get("added_tokens") or []
        taken = {character for token in added for character in token["content"]}
        # An added token that must stand alone looks at its neighbours; an ideograph counts as a letter there.
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
        return cls(re.compile(f"[{usable}]"), _long_run(longest + 1) if apart and not alone else None)

    def split(self, text: str, size: int, left: bool) -> tuple[str, str]:
        """A piece from the start (left: from the end) of `text`, and what remains.

        The piece covers at least `size` characters where there is a cut, and may stand for more than it has.
        However long the text, it has at most `size` and `FURTHEST` characters, or so many of a text that
        this pipeline is given whole.
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
            at = end  # in a run that leaves little

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
        """The place from which a cut is looked for: farther from the end where it may change a token."""
        return at if self._cut is not None else max(at, end - FURTHEST // 4)

    def _shorten(self, piece: str) -> str:
        return piece if self._long_run is None else self._long_run.sub(r"\1\2", piece)


def _long_run(kept: int) -> re.Pattern[str]:
    letter = f"[{LETTERS}][{_MARKS}]*+"
    return re.compile(
        f"([{WHITESPACE}])[{WHITESPACE}]{{{_LONG_GAP},}}+|(?<![{LETTERS}])((?:{letter}){{{kept}}})(?:{letter})++"
    )

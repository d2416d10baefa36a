"""Normalizes Unicode in linear time. Start at `normalized`.

    text ─▶ piece │ piece │ …    cut before characters that do not interact with the text before them
              └▶ stream-safe ─▶ normalized, piece by piece

`unicodedata.normalize` sorts runs of combining marks in quadratic time, and holds the GIL: 480 KB of marks
take half a minute. So this module inserts U+034F after each 30 marks in a row (Stream-Safe Text Process, UAX
#15), and normalizes some thousand characters per call. Only U+034F and a cut that is forced after
`LONGEST_RUN` characters change the result.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Literal

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]

MAX_MARKS = 30  # Marks in a row, by UAX #15.
BREAK = "\u034f"  # COMBINING GRAPHEME JOINER, which stops the sorting of marks.
PIECE = 4096  # characters
LONGEST_RUN = 1024  # Maximum number of characters after a piece in which its end is searched for.
# The fewest characters that can decompose to more than 30 marks: two from each, after a letter with three.
_SUSPICIOUS = 14
_BMP = 0xFFFF
_BEYOND_BMP = re.compile("[\U00010000-\U0010ffff]")
_LAST_CHANGED = 0x1FFFF  # Characters above are not marks, and do not decompose into two.
_HANGUL_VOWELS_AND_ENDS = {*map(chr, range(0x1161, 0x1176)), *map(chr, range(0x11A8, 0x11C3))}


def normalized(text: str, form: Form) -> str:
    """Returns `text` in a Unicode normalization form. U+034F is inserted after each 30 marks in a row."""
    return "".join(unicodedata.normalize(form, stream_safe(piece)) for piece in pieces(text))


def pieces(text: str) -> Iterator[str]:
    """Yields pieces of a text that can be normalized separately.

    The pieces may also be normalized after their case was folded or their marks were removed.
    """
    start = 0
    while len(text) - start > PIECE:
        end = piece_end(text, start + PIECE)
        yield text[start:end]
        start = end
    yield text[start:]


def piece_end(text: str, at: int) -> int:
    """Returns the first index from `at` on where a piece may end, at most `LONGEST_RUN` characters later."""
    most = min(at + LONGEST_RUN, len(text))
    while at < most and not begins_anew(text[at]):
        at += 1
    return at


@lru_cache(1 << 14)
def begins_anew(character: str) -> bool:
    """Returns True if a character neither combines nor changes places with the character before it."""
    first = unicodedata.normalize("NFKD", character)[0]
    return not any(
        unicodedata.combining(one) or unicodedata.category(one)[0] == "M" or one in _seconds()
        for one in (character, first)
    )


def stream_safe(text: str) -> str:
    """Inserts U+034F after each 30 marks in a row."""
    if text.isascii():
        return text
    run = _long_run(_BMP if _BEYOND_BMP.search(text) is None else _LAST_CHANGED)
    return _stream_safe(text) if run.search(text) else text


def _stream_safe(text: str) -> str:
    safe: list[str] = []
    marks = 0  # at the end of `safe`
    for character in text:
        starts = [not unicodedata.combining(one) for one in unicodedata.normalize("NFKD", character)]
        if not any(starts):
            before = after = len(starts)
        else:
            before, after = starts.index(True), starts[::-1].index(True)
        if marks + before > MAX_MARKS:
            safe.append(BREAK)
            marks = 0
        safe.append(character)
        marks = after if any(starts) else marks + after
    return "".join(safe)


@cache
def _seconds() -> frozenset[str]:
    """Returns the characters that can combine with the character before them."""
    pairs = (
        parts for parts in _decompositions().values() if len(parts) == 2 and not parts[0].startswith("<")
    )
    return frozenset({chr(int(second, 16)) for _, second in pairs} | _HANGUL_VOWELS_AND_ENDS)


@cache
def _long_run(last: int) -> re.Pattern[str]:
    """Compiles a pattern that finds runs of characters that may have too many marks.

    Args:
        last: The highest code point of the runs. Without characters beyond the BMP, the pattern is four times
            as fast.
    """
    marks = set(filter(unicodedata.combining, _characters()))
    for character in _decompositions():
        if unicodedata.combining(unicodedata.normalize("NFKD", character)[0]):
            marks.add(character)
    return re.compile(f"[{''.join(sorted(mark for mark in marks if ord(mark) <= last))}]{{{_SUSPICIOUS}}}")


def _decompositions() -> dict[str, list[str]]:
    """Returns the decomposition of each character: an optional kind such as `<font>`, then code points."""
    return {
        one: unicodedata.decomposition(one).split() for one in _characters() if unicodedata.decomposition(one)
    }


def _characters() -> Iterator[str]:
    return map(chr, range(0x80, _LAST_CHANGED + 1))

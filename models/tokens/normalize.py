"""Unicode normalisation at a cost that grows with the length of a text, whatever is in it.

    text ─▶ piece │ piece │ …    cut before a character that nothing before it changes
              └▶ stream-safe ─▶ normalised, one piece after the other

`unicodedata.normalize` sorts a run of combining marks in quadratic time, and holds the interpreter while it
does: 480 KB of marks take half a minute. Two things bound it. A run is broken by U+034F after 30 marks (the
Stream-Safe Text Process, UAX #15), which no writing needs. And a call sees some thousand characters, so that
other threads run between two calls.

The pieces' forms put together are the form of the whole, unless a run has more than 30 marks, or more than
`LONGEST_RUN` characters without one that begins anew.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Literal

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]

MOST_MARKS = 30  # in a row, by UAX #15
BREAK = "\u034f"  # COMBINING GRAPHEME JOINER: no mark is sorted past it
PIECE = 4096  # characters
LONGEST_RUN = 1024  # characters behind a piece in which its end is looked for
# As few as can hold more than 30 marks once they are decomposed: into two each, behind a letter with three.
_SUSPICIOUS = 14
_BMP = 0xFFFF
_BEYOND_BMP = re.compile("[\U00010000-\U0010ffff]")
_LAST_CHANGED = 0x1FFFF  # no character above has a decomposition into two, or is a mark that is sorted
_HANGUL_VOWELS_AND_ENDS = {*map(chr, range(0x1161, 0x1176)), *map(chr, range(0x11A8, 0x11C3))}


def normalized(text: str, form: Form) -> str:
    """`text` in a normalisation form; runs of more than 30 marks are broken by U+034F."""
    return "".join(unicodedata.normalize(form, stream_safe(piece)) for piece in pieces(text))


def pieces(text: str) -> Iterator[str]:
    """`text` in pieces of at most `PIECE` + `LONGEST_RUN` characters.

    They may be normalised one by one, and also lose their case, or any marks, before that.
    """
    start = 0
    while len(text) - start > PIECE:
        end = piece_end(text, start + PIECE)
        yield text[start:end]
        start = end
    yield text[start:]


def piece_end(text: str, at: int) -> int:
    """The first place from `at` on where a piece may end, at most `LONGEST_RUN` further."""
    most = min(at + LONGEST_RUN, len(text))
    while at < most and not begins_anew(text[at]):
        at += 1
    return at


@lru_cache(1 << 14)
def begins_anew(character: str) -> bool:
    """True if no character before this one is sorted past it, or makes one with it."""
    first = unicodedata.normalize("NFKD", character)[0]
    return not any(
        unicodedata.combining(one) or unicodedata.category(one)[0] == "M" or one in _seconds()
        for one in (character, first)
    )


def stream_safe(text: str) -> str:
    """`text` with U+034F after each 30 marks in a row."""
    if text.isascii():
        return text
    run = _long_run(_BMP if _BEYOND_BMP.search(text) is None else _LAST_CHANGED)
    return _stream_safe(text) if run.search(text) else text


def _stream_safe(text: str) -> str:
    safe: list[str] = []
    marks = 0  # at the end of what is in `safe`
    for character in text:
        starts = [not unicodedata.combining(one) for one in unicodedata.normalize("NFKD", character)]
        if not any(starts):
            before = behind = len(starts)
        else:
            before, behind = starts.index(True), starts[::-1].index(True)
        if marks + before > MOST_MARKS:
            safe.append(BREAK)
            marks = 0
        safe.append(character)
        marks = behind if any(starts) else marks + behind
    return "".join(safe)


@cache
def _seconds() -> frozenset[str]:
    """Characters that may become one with the character before them."""
    pairs = (
        parts for parts in _decompositions().values() if len(parts) == 2 and not parts[0].startswith("<")
    )
    return frozenset({chr(int(second, 16)) for _, second in pairs} | _HANGUL_VOWELS_AND_ENDS)


@cache
def _long_run(last: int) -> re.Pattern[str]:
    """So many characters in a row that begin with a mark that there may be too many marks.

    Of characters up to `last`: a set of those of the BMP alone is looked into four times as fast.
    """
    marks = set(filter(unicodedata.combining, _characters()))
    for character in _decompositions():
        if unicodedata.combining(unicodedata.normalize("NFKD", character)[0]):
            marks.add(character)
    return re.compile(f"[{''.join(sorted(mark for mark in marks if ord(mark) <= last))}]{{{_SUSPICIOUS}}}")


def _decompositions() -> dict[str, list[str]]:
    """Each character that has one, and its parts: a kind, if it is of compatibility, and codes."""
    return {
        one: unicodedata.decomposition(one).split() for one in _characters() if unicodedata.decomposition(one)
    }


def _characters() -> Iterator[str]:
    return map(chr, range(0x80, _LAST_CHANGED + 1))

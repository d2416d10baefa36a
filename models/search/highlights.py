"""Finds a query's terms in texts, and chooses snippets. Start at `Matcher.find` and `choose_snippet`.

    text ─▶ pieces ─▶ places of terms ─▶ window with the rarest terms ─▶ snippet, from sentence to sentence

The terms are those of keyword search (terms.py). Most texts repeat their words, so a matcher remembers the
places in each piece. Positions are characters (Unicode code points).
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

from models.search.passages import BORDER
from models.search.terms import PIECE, Place, find_terms
from models.tokens.normalize import MAX_MARKS, begins_anew

Range: TypeAlias = tuple[int, int]  # Start and end. The end is exclusive.

MAX_CHARACTERS = 50_000  # Of a text, from its start. Its best passage is searched wherever it is.
MAX_RANGES = 1000  # Of a text.
SNIPPET_CHARACTERS = 240
MIN_SNIPPET = 80  # A snippet that would be shorter does not end with a sentence.
SENTENCES_CHARACTERS = 4000  # A passage's beginning that is split into sentences.
_MAX_WORD = 64  # Characters before a passage that may belong to its first word.
_BLOCK = 500  # Pieces between two checks.
_SPACE = re.compile(r"\s")
_WEIGHTS = 1000  # Weights are compared as integers, because sums of floats depend on their order.


class Matcher:
    """Finds terms in texts.

    Args:
        terms: The terms to find, as `Query.terms`.
        beginnings: Characters to find, as `Query.beginnings`.
    """

    def __init__(self, terms: Iterable[str], beginnings: Iterable[str] = ()) -> None:
        self._terms, self._beginnings = frozenset(terms), frozenset(beginnings)
        self._known: dict[str, list[Place]] = {}

    def find(
        self, text: str, passage: Range | None = None, check: Callable[[], None] = lambda: None
    ) -> list[Place]:
        """Returns the places of terms at the start of a text (MAX_CHARACTERS) and in its best passage.

        Args:
            text: The text.
            passage: Its best passage.
            check: Called again and again. May raise to end the work.
        """
        if not (self._terms or self._beginnings):
            return []
        start, end = passage or (0, 0)
        end = min(end, start + MAX_CHARACTERS)  # A long word may be one token.
        if start <= MAX_CHARACTERS:
            return self._find(text, 0, min(len(text), max(MAX_CHARACTERS, end)), check)
        head = self._find(text, 0, MAX_CHARACTERS, check)
        return head + self._find(text, max(MAX_CHARACTERS, start - _MAX_WORD), end, check)

    def _find(self, text: str, start: int, end: int, check: Callable[[], None]) -> list[Place]:
        """Returns the places between `start` and `end`, without those that the borders may cut."""
        found: list[Place] = []
        for count, piece in enumerate(PIECE.finditer(text, start, end)):
            if not count % _BLOCK:
                check()
            if (places := self._known.get(piece[0])) is None:
                places = self._known[piece[0]] = sorted(
                    set(find_terms(piece[0], self._terms, self._beginnings)), key=lambda place: place[1:]
                )
            if places:
                at = piece.start()
                found += [Place(term, at + first, at + last) for term, first, last in places]
        after, before = start or -1, end if end < len(text) else end + 1
        return [place for place in found if place.start > after and place.end < before]


def merge(places: Sequence[Place]) -> list[Range]:
    """Returns the ranges of a text that the places cover, in order. Places that overlap share a range.

    At most MAX_RANGES are returned.
    """
    ranges: list[Range] = []
    for _, start, end in places:
        if ranges and start < ranges[-1][1]:
            ranges[-1] = ranges[-1][0], max(end, ranges[-1][1])
        elif len(ranges) == MAX_RANGES:
            break
        else:
            ranges.append((start, end))
    return ranges


def choose_snippet(
    text: str, places: Sequence[Place], idf: Mapping[str, float], passage: Range | None
) -> Range:
    """Returns the part of a text with most of the terms, of about SNIPPET_CHARACTERS.

    Args:
        text: The text.
        places: Places of terms in it, in order, at least one.
        idf: The weight of each term.
        passage: The best passage. If it has terms, the part is chosen from it.
    """
    start, end = passage or (0, len(text))
    if inside := [place for place in places if start <= place.start and place.end <= end]:
        return cut_snippet(text, _find_window(inside, idf), (start, end))
    return cut_snippet(text, _find_window(places, idf), (0, len(text)))


def _find_window(places: Sequence[Place], idf: Mapping[str, float]) -> Range:
    """Returns the first range of SNIPPET_CHARACTERS whose terms weigh most. Each term counts once."""
    weights = {term: round(_WEIGHTS * idf.get(term, 0.0)) + 1 for term, _, _ in places}
    counts, left, weight = Counter[str](), 0, 0
    best, chosen = 0, (0, 0)
    for right, (term, _, end) in enumerate(places):
        weight += 0 if counts[term] else weights[term]
        counts[term] += 1
        while left < right and end - places[left].start > SNIPPET_CHARACTERS:
            gone = places[left].term
            counts[gone] -= 1
            weight -= 0 if counts[gone] else weights[gone]
            left += 1
        if weight > best:
            best, chosen = weight, (left, right)
    first, last = chosen
    return places[first].start, max(place.end for place in places[first : last + 1])


def cut_snippet(text: str, inner: Range, within: Range) -> Range:
    """Returns a range of at most SNIPPET_CHARACTERS around `inner`, with borders at sentences or words.

    Args:
        text: The text.
        inner: The range to show. Its end is left out if it is too long.
        within: A range around it, such as a passage.
    """
    if within[1] - within[0] <= SNIPPET_CHARACTERS:
        return strip(text, *within)
    first, last = inner[0], min(inner[1], inner[0] + SNIPPET_CHARACTERS)
    start = _get_start(text, within[0], first, SNIPPET_CHARACTERS - (last - first))
    end = _get_end(text, start, last, within[1])
    return strip(text, start, end)


def strip(text: str, start: int, end: int) -> Range:
    """Returns a range without white space at its ends."""
    part = text[start:end]
    start += len(part) - len(part.lstrip())
    return start, max(start, start + len(part.strip()))


def _get_start(text: str, least: int, first: int, room: int) -> int:
    """Returns the start of the sentence around `first`, or of a word less than `room` before it."""
    earliest = max(least, first - room)
    borders = [border.end() for border in BORDER.finditer(text, earliest, first)]
    if borders:
        return borders[-1]
    if earliest == least:
        return least
    near = first - room // 3
    space = _SPACE.search(text, near, first)
    return space.end() if space else _get_cluster(text, near, first)


def _get_end(text: str, start: int, last: int, most: int) -> int:
    """Returns the end of the last sentence or word that fits after `last`."""
    limit = start + SNIPPET_CHARACTERS
    if most <= limit:
        return most
    ends = [border.end() for border in BORDER.finditer(text, last, limit)]
    if ends and ends[-1] - start >= MIN_SNIPPET:
        return ends[-1]
    spaces = [space.start() for space in _SPACE.finditer(text, last, limit + 1)]
    return spaces[-1] if spaces else max(last, _get_cluster(text, limit, limit + MAX_MARKS))


def _get_cluster(text: str, at: int, most: int) -> int:
    """Returns the first position from `at` where no character combines with the one before it."""
    while at < min(most, len(text)) and not begins_anew(text[at]):
        at += 1
    return at


def split_sentences(text: str, within: Range) -> list[Range]:
    """Returns the sentences at the start of a range of a text."""
    start, end = within[0], min(within[1], within[0] + SENTENCES_CHARACTERS)
    borders = [start, *(border.end() for border in BORDER.finditer(text, start, end)), end]
    found = [strip(text, *pair) for pair in pairwise(borders)]
    return [(first, last) for first, last in found if first < last]

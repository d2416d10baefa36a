"""Finds the terms that are nearest to a misspelled word. Start at `find_words` and `Vocabulary.find_nearest`.

    query ─▶ words of letters only ─▶ near terms ─▶ those that documents have, most frequent first
                                      (service/corpus/spelling.py)

An edit inserts, deletes or replaces a letter, or swaps two neighbors (optimal string alignment). Terms lack
endings: heating is heat. So an edit is undone in two ways:

    word with its ending   every edit of an ASCII word is tried, and its stem is looked up: heatnig is heat
    term                   is compared with all terms of similar length and similar letters
"""

import re
import threading
import unicodedata
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.search.terms import FUNCTION_WORDS, HUMP, get_forms, stem


class _Letters(NamedTuple):
    """Least letters of a word and of its term."""

    form: int
    term: int


MIN_LETTERS = 5  # Shorter words are not corrected, because too many others are near.
MIN_FAR_LETTERS = 9  # Words that may have two edits.
_LEAST_LETTERS = _Letters(MIN_LETTERS, 4), _Letters(MIN_FAR_LETTERS, 7)  # For one edit and for two.
MAX_LETTERS = 32
_MIN_STEM = 3  # Letters of a term that is found.
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_TOKEN = re.compile(r"[^\s,;!?\"()\[\]{}<>|“”„«»…—–]+")  # noqa: RUF001
_PART = re.compile("[^-'\u2010\u2011\u2019]+")  # Between hyphens and apostrophes.
_ENDS = ".:'\u2018\u2019-"


class Word(NamedTuple):
    """A word of a query that may be misspelled.

    Attributes:
        start: Its first character in the query.
        end: The character after its last.
        form: The folded word, with its ending.
        term: The term of keyword search.
    """

    start: int
    end: int
    form: str
    term: str


class Near(NamedTuple):
    """Terms near to a word.

    Attributes:
        edits: Most edits between the word, or its term, and what the terms come from.
        terms: The terms. Documents may have them in other forms, which are not near.
    """

    edits: int
    terms: AbstractSet[str]


def find_words(query: str) -> Iterator[Word]:
    """Yields the words of a query that consist of letters only, and are no parts of codes."""
    for token in _TOKEN.finditer(query):
        core = token[0].strip(_ENDS)
        start = token.start() + token[0].find(core)
        parts = [*_PART.finditer(core)]
        if not all(map(_is_letters, (part[0] for part in parts))) or HUMP.search(core):
            continue
        if len(parts) > 1 and core.isupper():  # A code such as ABC-DEF.
            continue
        for part in parts:
            if len(part[0]) > 2 * MAX_LETTERS:
                continue
            forms = get_forms(part[0])
            if len(forms) != 1 or forms[0] in FUNCTION_WORDS:
                continue
            if MIN_LETTERS <= len(forms[0]) <= MAX_LETTERS:
                yield Word(start + part.start(), start + part.end(), forms[0], stem(forms[0]))


def _is_letters(text: str) -> bool:
    return text.isalpha() or all(unicodedata.category(character)[0] in "LM" for character in text)


def is_known_kind(term: str) -> bool:
    """Returns whether a vocabulary keeps a term: a word of letters that is neither short nor very long."""
    return _MIN_STEM <= len(term) <= MAX_LETTERS and max(term) <= "\uffff" and _is_letters(term)


class _Block(NamedTuple):
    """Terms of one length, as UTF-16 characters, shape (n, length), and a bit for each of their letters."""

    characters: NDArray[np.uint16]
    letters: NDArray[np.uint64]


class Vocabulary:
    """The terms of a collection that are words. May have terms that no document has any more. Thread-safe.

    A term takes 16 bytes and two for each letter.

    Attributes:
        state: The state of the store whose terms were added, None at first. Each store has its own kind.
    """

    def __init__(self) -> None:
        self.state: object = None
        self._lock = threading.Lock()
        self._hashes = np.empty(0, np.int64)  # Sorted.
        self._blocks: dict[int, _Block] = {}  # By length. Blocks are replaced, never changed.

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, terms: Iterable[str]) -> None:
        """Adds those of the terms that are words."""
        words = [*{term for term in terms if is_known_kind(term)}]
        hashes = _hash(words)
        with self._lock:
            new: dict[int, list[str]] = {}
            added = ~_is_among(hashes, self._hashes)
            for at in np.flatnonzero(added).tolist():
                new.setdefault(len(words[at]), []).append(words[at])
            for length, some in new.items():
                block, old = _build_block(some), self._blocks.get(length)
                if old is not None:
                    characters = np.concatenate([old.characters, block.characters])
                    block = _Block(characters, np.concatenate([old.letters, block.letters]))
                self._blocks[length] = block
            self._hashes = np.sort(np.concatenate([self._hashes, hashes[added]]), kind="stable")

    def find_nearest(self, word: Word) -> Iterator[Near]:
        """Yields groups of terms, nearest first, without the term of the word itself."""
        if word.form.isascii():
            stems = [*filter(is_known_kind, {*map(stem, _list_edits(word.form))} - {word.term})]
            known = _is_among(_hash(stems), self._hashes)
            yield Near(1, {stems[at] for at in np.flatnonzero(known).tolist()})
        for edits, letters in enumerate(_LEAST_LETTERS, start=1):
            if len(word.form) >= letters.form and len(word.term) >= letters.term:
                yield Near(edits, {*self._compare(word.term, edits)} - {word.term})

    def _compare(self, term: str, edits: int) -> Iterator[str]:
        """Yields the terms within `edits` edits of a term."""
        if max(term) > "\uffff":
            return
        own = _build_block([term])
        for length in range(len(term) - edits, len(term) + edits + 1):
            if (block := self._blocks.get(length)) is None:
                continue
            # Each edit changes at most two of the letters that a term has.
            alike = np.flatnonzero(np.bitwise_count(block.letters ^ own.letters) <= 2 * edits)
            rows = block.characters[alike]
            rows = rows[_count_edits(own.characters[0], rows, edits) <= edits]
            text = rows.tobytes().decode("utf-16-le")
            yield from (text[at : at + length] for at in range(0, len(text), length))


def _build_block(terms: list[str]) -> _Block:
    length = len(terms[0])
    characters = np.frombuffer("".join(terms).encode("utf-16-le"), np.uint16).reshape(-1, length)
    bits = np.left_shift(np.uint64(1), characters.astype(np.uint64) % np.uint64(64))
    return _Block(characters, np.bitwise_or.reduce(bits, axis=1))


def _hash(terms: list[str]) -> NDArray[np.int64]:
    return np.fromiter(map(hash, terms), np.int64, len(terms))


def _is_among(hashes: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.bool_]:
    if not len(known):
        return np.zeros(len(hashes), bool)
    found: NDArray[np.bool_] = known[np.searchsorted(known, hashes) % len(known)] == hashes
    return found


def _list_edits(word: str) -> list[str]:
    """Returns every text within one edit of an ASCII word, in order."""
    found = {f"{word[:at]}{letter}{word[at:]}" for at in range(len(word) + 1) for letter in _LETTERS}
    for at in range(len(word)):
        found.add(word[:at] + word[at + 1 :])
        found |= {f"{word[:at]}{letter}{word[at + 1 :]}" for letter in _LETTERS}
    for at, (left, right) in enumerate(pairwise(word)):
        found.add(f"{word[:at]}{right}{left}{word[at + 2 :]}")
    return sorted(found)


def count_edits(left: str, right: str) -> int:
    """Returns the number of edits between two words."""
    before: list[int] = []
    last: list[int] = [*range(len(right) + 1)]
    for at, letter in enumerate(left, start=1):
        row = [at]
        for to, other in enumerate(right, start=1):
            cell = min(last[to - 1] + (letter != other), last[to] + 1, row[to - 1] + 1)
            if at > 1 and to > 1 and letter == right[to - 2] and left[at - 2] == other:
                cell = min(cell, before[to - 2] + 1)
            row.append(cell)
        before, last = last, row
    return last[-1]


def _count_edits(word: NDArray[Any], others: NDArray[Any], most: int) -> NDArray[np.int8]:
    """Returns the number of edits between a word and each of the others, exact if it is at most `most`.

    Args:
        word: Characters, shape (w,).
        others: Characters of other words, shape (n, m).
        most: Larger numbers may be wrong, but stay larger.
    """
    count, length = others.shape
    far = np.full(count, most + 1, np.int8)
    columns = others.T
    before: list[NDArray[np.int8]] = []
    last = [np.full(count, min(at, most + 1), np.int8) for at in range(length + 1)]
    for at, letter in enumerate(word, start=1):
        row = [np.full(count, min(at, most + 1), np.int8)] + [far] * length
        for to in range(max(1, at - most), min(length, at + most) + 1):
            same = columns[to - 1] == letter
            cell = np.minimum(last[to - 1] + ~same, np.minimum(last[to], row[to - 1]) + 1)
            if at > 1 and to > 1:
                swapped = (columns[to - 1] == word[at - 2]) & (columns[to - 2] == letter)
                cell = np.where(swapped, np.minimum(cell, before[to - 2] + 1), cell)
            row[to] = cell.astype(np.int8)
        before, last = last, row
    return last[length]

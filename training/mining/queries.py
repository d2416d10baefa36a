"""Queries made of text alone: what a document says of itself, and the document without it.

    title            "Reset a password"    and the text behind it
    heading          "# Before you begin"  a line of Markdown, and the rest of the document
    first sentence   of the document, and the rest of it
    passages         of a long document: the first sentence of each, and the rest of the passage

A query is cut out of its document, or each would find its own by the very words (Izacard et al. 2022 leave
them in for one query in ten; here the teacher scores what is left). The document's title stands in front of
that, unless the title is the query. Not here: queries that people asked;
they are a `Query` without a source.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from training.mining.pairs import body_of, folded

_HEADING = re.compile(r"^#{1,6}[ \t]+(\S[^\n]*)\n", re.MULTILINE)
# Behind a full stop, a question or exclamation mark and white space; scripts without spaces; an empty line.
_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n\s*\n")  # noqa: RUF001  full-width marks
_SHORTEST, _LONGEST = 4, 60  # words of a sentence that can ask; chosen by us
_CHARACTERS = 8, 200  # of one whose script writes no spaces
_PASSAGE = 150  # words of a passage: about as many as the default model reads of a text
_LETTERS = 2  # of a word, in a script without spaces


class Query(NamedTuple):
    text: str
    source: int | None = None  # the place of the document that it was cut out of; None: somebody asked it
    rest: str = ""  # that document, or its passage, without it
    title: str = ""  # of that document, where the query is not cut out of the title


def queries_of(documents: Sequence[tuple[str, str]]) -> list[Query]:
    """Queries of each (title, text), without those that several documents have."""
    found = [query for place, (title, text) in enumerate(documents) for query in _cut(place, title, text)]
    used = Counter(query.text.casefold() for query in found)
    return [query for query in found if used[query.text.casefold()] == 1]


def _cut(place: int, title: str, text: str) -> Iterator[Query]:
    body = body_of(folded(title), folded(text))
    if title.strip() and body and folded(title) != body:
        yield Query(folded(title), place, body)
    for heading in _HEADING.finditer(text):
        rest = folded(text[: heading.start()] + text[heading.end() :])
        if rest:
            yield Query(folded(heading[1]), place, rest, _beside(title, heading[1]))
    plain = _HEADING.sub("", text).strip()
    sentences = [folded(part) for part in _END.split(plain, maxsplit=1)]
    if len(sentences) == 2 and sentences[1] and _asks(sentences[0]):
        yield Query(sentences[0], place, sentences[1], _beside(title, sentences[0]))
    for first, *others in _passages(plain):
        if others and _asks(first):
            yield Query(first, place, folded(" ".join(others)), _beside(title, first))


def _beside(title: str, query: str) -> str:
    """The title, unless one of both begins with the other: a text may begin with its title."""
    one, other = (folded(text).casefold() for text in (title, query))
    return "" if one.startswith(other.rstrip(" .:-")) or other.startswith(one) else folded(title)


def _passages(text: str) -> Iterator[list[str]]:
    """The sentences of each passage behind the first."""
    passage: list[str] = []
    size, head = 0, True
    for sentence in filter(None, map(folded, _END.split(text))):
        words = len(sentence.split()) if " " in sentence else len(sentence) // _LETTERS
        if size + words > _PASSAGE and passage:
            if not head:
                yield passage
            passage, size, head = [], 0, False
        passage.append(sentence)
        size += words
    if not head:
        yield passage


def _asks(sentence: str) -> bool:
    if " " not in sentence and not sentence.isascii():
        return _CHARACTERS[0] <= len(sentence) <= _CHARACTERS[1]
    return _SHORTEST <= len(sentence.split()) <= _LONGEST

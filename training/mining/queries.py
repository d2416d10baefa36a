"""Create queries from unlabeled documents. Each query comes with the text that answers it.

    query                                        text
    the title                                    the text of the document
    a heading, such as "# Before you begin"      the rest of the document
    the first sentence                           the rest of the document
    the first sentence of a passage              the rest of the passage, for long documents

The query is removed from the text, because the model could otherwise find the text by equal words. (Izacard
et al. 2022 keep the query in one of ten texts.) The title of the document precedes the text, unless the title
is the query. A query of a user is a `Query` without a source.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from training.mining.pairs import folded, get_body

_HEADING = re.compile(r"^#{1,6}[ \t]+(\S[^\n]*)\n", re.MULTILINE)
# Sentences end after . ? or ! with white space, after full-width marks, and at an empty line.
_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n\s*\n")  # noqa: RUF001  full-width marks
_SHORTEST, _LONGEST = 4, 60  # words of a sentence that can be a query. Our choice
_CHARACTERS = 8, 200  # the same in scripts without spaces
_PASSAGE = 150  # words of a passage; the default model reads about as many of a text
_LETTERS = 2  # letters of a word, in a script without spaces


class Query(NamedTuple):
    text: str
    source: int | None = None  # place of its document; None for a user's query
    rest: str = ""  # the document or its passage, without the query
    title: str = ""  # title of the document, unless the query comes from the title


def build_queries(documents: Sequence[tuple[str, str]]) -> list[Query]:
    """Returns the queries of all documents, given as (title, text). Drops queries that occur twice."""
    found = [query for place, (title, text) in enumerate(documents) for query in _cut(place, title, text)]
    used = Counter(query.text.casefold() for query in found)
    return [query for query in found if used[query.text.casefold()] == 1]


def _cut(place: int, title: str, text: str) -> Iterator[Query]:
    body = get_body(folded(title), folded(text))
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
    """Returns the title, or an empty string if the title begins with the query, or the query with the title.

    A query begins with the title if a text repeats its title, and the query is the first sentence.
    """
    one, other = (folded(text).casefold() for text in (title, query))
    return "" if one.startswith(other.rstrip(" .:-")) or other.startswith(one) else folded(title)


def _passages(text: str) -> Iterator[list[str]]:
    """Yields the sentences of each passage of a text, except the first passage."""
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

"""Adds synonyms to the terms of a query. Start at `Synonyms.expand`.

    groups   [["car", "automobile"]]                    each phrase of a group finds the others
    one way  [{"from": "tv", "to": ["television"]}]     `from` finds `to`

A phrase of several words is found in a query where its words follow each other. A document must have all its
words, in any order.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from models.search.terms import Query, parse_query

MAX_ENTRIES = 1000  # Groups and one-way entries of a collection.
MAX_PHRASES, MAX_ALL_PHRASES = 50, 10_000  # Of an entry, and of all. Reading all takes 0.2 s, once.
MAX_CHARACTERS = 100  # Of a phrase.
MAX_WORDS = 8  # Of a phrase.
MAX_ADDED = 64  # Phrases that are added to a query.
WEIGHT = 0.8  # Of an added word in BM25, and of the mean of an added phrase of several words.


class _Phrase(NamedTuple):
    """A phrase: its words in their order, and the terms that a document must have."""

    words: tuple[str, ...]
    terms: tuple[str, ...]


class Added(NamedTuple):
    """What synonyms add to a query.

    Attributes:
        weights: Weights of the added phrases (`terms.Weights`).
        same: For synonyms that are single words of single words: the word of the query that each stands for.
    """

    weights: Mapping[tuple[str, ...], float]
    same: Mapping[str, str]


def parse_phrase(phrase: str) -> _Phrase:
    """Returns the words and terms of a phrase. Both are empty if it has no word."""
    parsed = parse_query(phrase)
    return _Phrase((*parsed.words,), (*parsed.terms, *parsed.beginnings))


class Synonyms:
    """The synonyms of a collection.

    Args:
        groups: Phrases that find each other.
        one_way: Phrases with those that they find.
    """

    def __init__(self, groups: Iterable[Sequence[str]], one_way: Iterable[tuple[str, Sequence[str]]]) -> None:
        # In the order of the entries. A dict, because it keeps that order without repetitions.
        self._found: dict[tuple[str, ...], tuple[_Phrase, dict[_Phrase, None]]] = {}
        for group in groups:
            phrases = [*map(parse_phrase, group)]
            for phrase in phrases:
                self._add(phrase, [other for other in phrases if other != phrase])
        for start, to in one_way:
            self._add(parse_phrase(start), [*map(parse_phrase, to)])
        self.words = frozenset(word for words in self._found for word in words)
        self._longest = max(map(len, self._found), default=0)

    def _add(self, phrase: _Phrase, others: Iterable[_Phrase]) -> None:
        self._found.setdefault(phrase.words, (phrase, {}))[1].update(dict.fromkeys(others))

    def expand(self, query: Query) -> Added:
        """Returns what the synonyms add to a query. After MAX_ADDED phrases, others are ignored."""
        terms, words = {*query.terms, *query.beginnings}, query.words
        weights: dict[tuple[str, ...], float] = {}
        same: dict[str, str] = {}
        for start in range(len(words)):
            for end in range(start + 1, min(start + self._longest, len(words)) + 1):
                phrase, others = self._found.get(tuple(words[start:end]), (None, {}))
                if phrase is None or not terms.issuperset(phrase.terms):  # C is not C++.
                    continue
                for other in others:
                    if terms.issuperset(other.terms):
                        continue
                    if len(weights) == MAX_ADDED:
                        return Added(weights, same)
                    weights[other.terms] = WEIGHT / len(other.terms)
                    if len(other.words) == len(phrase.words) == 1:
                        same.setdefault(other.words[0], phrase.words[0])
        return Added(weights, same)


NO_SYNONYMS = Synonyms((), ())


@lru_cache(maxsize=64)
def read_synonyms(stored: str) -> Synonyms:
    """Returns synonyms from their stored JSON (`service/api/synonyms.py`)."""
    parsed: Any = orjson.loads(stored)
    return Synonyms(parsed["groups"], [(each["from"], each["to"]) for each in parsed["one_way"]])

"""Parses the explicit syntax of queries. Start at `parse_syntax`.

    "exact words"     documents with these words one after the other
    -word  -"…"       no documents with the word, or with these words one after the other
    title:word        documents with the word in the title. Also title:"…", -title:word
    all else          plain text

Words are compared as in keyword search, so endings, case and accents do not count.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from models.search.terms import CJK_RUN, get_words, parse_query

MAX_CONDITIONS = 16
_QUOTES = str.maketrans("“”„", '"""')  # Phones type these quotes.
_PART = re.compile(r'(?P<not>-)?(?P<title>title:)?(?:"(?P<phrase>[^"]*)"|(?P<word>[^\s"]+))')


class SyntaxProblem(Exception):
    """Raised for a query that breaks the syntax. The message says what to do."""


class Condition(NamedTuple):
    """Words that a document must have, or must not have.

    Attributes:
        words: Terms that follow each other in the document.
        terms: All terms that a document with these words has, such as the terms of codes.
        in_title: True if only the title counts.
        is_excluded: True if a document must not have the words.
    """

    words: tuple[str, ...]
    terms: tuple[str, ...]
    in_title: bool
    is_excluded: bool


class Parsed(NamedTuple):
    """A parsed query: the text to look for, and the conditions that documents must meet."""

    text: str
    conditions: Sequence[Condition]


def parse_syntax(query: str) -> Parsed:
    """Parses a query.

    Raises:
        SyntaxProblem: A quote has no partner, a condition has no word, the query has too many conditions, or
            it excludes documents without looking for any.
    """
    query = query.translate(_QUOTES)
    if query.count('"') % 2:
        raise SyntaxProblem('A quote (") has no partner. Add one, or leave syntax out.')
    texts: list[str] = []
    conditions: list[Condition] = []
    for part in _PART.finditer(query):
        phrase, word, is_excluded = part["phrase"], part["word"], bool(part["not"])
        text = word if phrase is None else phrase
        if word == "title:":
            raise SyntaxProblem("title: has no word. Write the word without a space, or leave syntax out.")
        if phrase is None and not is_excluded and not part["title"]:
            texts.append(text)
            continue
        parsed = parse_query(text)
        if parsed.beginnings:
            raise SyntaxProblem(
                f"{part[0][:80]!r} has a single character. Chinese, Japanese and Korean need two or more."
            )
        if not parsed.terms:
            raise SyntaxProblem(f"{part[0][:80]!r} has no word to look for. Leave it out.")
        words = _get_phrase(text)
        conditions.append(Condition((*words,), (*parsed.terms,), bool(part["title"]), is_excluded))
        if not is_excluded:
            texts.append(text)
    if len(conditions) > MAX_CONDITIONS:
        raise SyntaxProblem(
            f"The query has {len(conditions)} phrases, exclusions and title words; at most {MAX_CONDITIONS} "
            "go in one query."
        )
    if not texts:
        raise SyntaxProblem("The query only excludes documents. Add a word to look for.")
    return Parsed(" ".join(texts), conditions)


def _get_phrase(text: str) -> list[str]:
    """Returns the words of a phrase as documents have them.

    Each run of Chinese ends with its last character as a word. At the end of the phrase, this word is left
    out, because the run may continue in a document.
    """
    words = get_words(text)
    return words[:-1] if len(words[-1]) == 1 and CJK_RUN.match(words[-1]) else words


def has_phrase(terms: Sequence[str], words: Sequence[str]) -> bool:
    """Returns whether `words` follow each other in `terms`."""
    count = len(words)
    return any(
        terms[at] == words[0] and [*terms[at : at + count]] == [*words]
        for at in range(len(terms) - count + 1)
    )

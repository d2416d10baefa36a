"""Finds terms near a misspelled word in SQLite, and documents with a term. Start at `nearest_terms`.

At first, FTS5 lists all terms of a collection, which takes a second for 10 million postings. Afterwards, the
operation log names the new documents, and only their texts are split into terms again.
"""

import sqlite3
from collections.abc import Iterable, Sequence

import numpy as np

from models.search.content import Content
from models.search.spelling import MAX_LETTERS, Near, Vocabulary, Word
from models.search.terms import get_terms
from service.store.scheduling import pause
from service.store.sql.connection import fetch_column, fetch_value
from service.store.sqlite.documents import get_number, sequence
from service.store.sqlite.filter_cache import FilterMatches
from service.store.sqlite.postings import open_vocabulary, table
from service.store.values import MAX_COUNTED, MAX_TRIED, TRIED, Budget, Revisions
from service.store.vocabularies import Vocabularies

# All terms are listed again after FAR operations, or FAR_SHARE times the number of terms if that is more.
# Splitting a document into terms takes about 15 times the time of reading its postings.
FAR, FAR_SHARE = 1000, 1 / 30
LARGE = 50_000  # Terms. A search does not list more terms than this again. `load` does it soon.
TOGETHER = 20_000  # Terms that are added at a time, in about 20 ms.
_NONE = np.empty(0, np.int64)


def nearest_terms(
    connection: sqlite3.Connection, vocabularies: Vocabularies, word: Word, collection: str
) -> Iterable[Near]:
    """Returns terms near to a word, as `protocol.Snapshot.nearest_terms` says."""
    number = get_number(connection, collection)
    if number is None:
        return []
    vocabulary = vocabularies.get(number)
    _update(connection, vocabulary, number, collection, lists=len(vocabulary) <= LARGE)
    return vocabulary.find_nearest(word)


def load(connection: sqlite3.Connection, vocabularies: Vocabularies, collection: str) -> None:
    """Reads terms into memory, as `protocol.Snapshot.load_vocabulary` says."""
    if (number := get_number(connection, collection)) is not None:
        _update(connection, vocabularies.get(number), number, collection, lists=True)


def _update(
    connection: sqlite3.Connection, vocabulary: Vocabulary, number: int, collection: str, *, lists: bool
) -> None:
    """Adds all terms of the current state that are missing from the vocabulary.

    If `lists` is false, does nothing when many documents are new.
    """
    now, state = sequence(connection), vocabulary.state
    known = state if isinstance(state, int) else None
    if known is not None and known >= now:
        return
    far = max(FAR, len(vocabulary) * FAR_SHARE)
    if known is not None and now - known > far and not lists:
        return
    new = None if known is None or now - known > far else _list_new(connection, known, now, collection)
    terms = _list_all(connection, number) if new is None else [*new]
    for start in range(0, len(terms), TOGETHER):
        pause()
        vocabulary.add(terms[start : start + TOGETHER])
    # In the meantime, another thread may have added the terms of a later state.
    vocabulary.state = max(now, vocabulary.state) if isinstance(vocabulary.state, int) else now


def _list_all(connection: sqlite3.Connection, number: int) -> list[str]:
    vocabulary = open_vocabulary(connection, number, "row")
    return fetch_column(connection, f"SELECT term FROM {vocabulary} WHERE length(term) <= ?", MAX_LETTERS)


def _list_new(connection: sqlite3.Connection, known: int, now: int, collection: str) -> set[str] | None:
    """Returns the terms of the documents that were stored after the operation `known`.

    Returns None if the operation log does not go back so far.
    """
    sql = "SELECT count(*) FROM operations WHERE sequence > ? AND sequence <= ?"
    if int(fetch_value(connection, sql, known, now)) < now - known:
        return None
    rows = connection.execute(
        "SELECT text, title FROM documents WHERE collection = ? AND revision IN "
        "(SELECT revision FROM operations WHERE sequence > ? AND sequence <= ? AND kind = 'put')",
        (collection, known, now),
    )
    found: set[str] = set()
    for text, title in rows:
        pause()
        found.update(get_terms(Content(text, title).whole))
    return found


def count_documents(connection: sqlite3.Connection, terms: Sequence[str], collection: str) -> dict[str, int]:
    """Returns the number of documents with each term, as `protocol.Snapshot.count_documents` says."""
    number = get_number(connection, collection)
    if number is None:
        return {}
    name = table(number)
    sql = f"SELECT count(*) FROM (SELECT 1 FROM {name} WHERE {name} MATCH ? LIMIT {MAX_COUNTED})"
    found = {term: int(fetch_value(connection, sql, f'"{term}"')) for term in terms}
    return {term: count for term, count in found.items() if count}


def documents_with(
    connection: sqlite3.Connection, term: str, allowed: FilterMatches | None, count: int, collection: str
) -> Revisions:
    """Returns documents with a term, as `protocol.Snapshot.documents_with` says."""
    number = get_number(connection, collection)
    if number is None:
        return _NONE
    name = table(number)
    rows = connection.execute(f"SELECT rowid FROM {name} WHERE {name} MATCH ? ORDER BY rowid", (f'"{term}"',))
    first = np.array([row[0] for row in rows.fetchmany(count if allowed is None else TRIED)], np.int64)
    if allowed is None or not len(first):
        return first
    if len(inside := allowed.among(first)):
        return inside[:count]
    rest = np.array([row[0] for row in rows.fetchmany(MAX_TRIED)], np.int64)
    return np.intersect1d(rest, allowed.all, assume_unique=True)[:count] if len(rest) else _NONE


def documents_with_phrase(
    connection: sqlite3.Connection,
    words: Sequence[str],
    terms: Sequence[str],
    collection: str,
    budget: Budget,
) -> Revisions:
    """Returns the documents with a phrase, as `protocol.Snapshot.documents_with_phrase` says."""
    number = get_number(connection, collection)
    if number is None:
        return _NONE
    name = table(number)
    match = " AND ".join([f'"{" ".join(words)}"', *(f'"{term}"' for term in terms)])
    return np.array(
        fetch_column(connection, f"SELECT rowid FROM {name} WHERE {name} MATCH ?", match), np.int64
    )

"""Keyword search in SQLite, with the terms in FTS5 and BM25 computed here.

Start reading at `nearest`. models/search/terms.py cuts titles and texts into terms. The FTS5 tables do not
store the texts, because the documents have them: 100,000 sentences of Wikipedia take 9 MB instead of 24 MB.
To remove a document from a table, its text must therefore be cut again by the same rules. If the rules have
changed, secondary_indexes.py rebuilds the tables.

Each collection has its own table, named by the collection's number, so frequencies and lengths are counted
within the collection. With 1,000 collections, creating a table takes 5 ms and dropping one takes 8 ms. Each
table takes at least 64 KiB on disk.
"""

import sqlite3
from collections.abc import Mapping
from itertools import chain
from typing import Literal

import numpy as np

from models.search.terms import (
    NO_TERMS,
    NO_WEIGHTS,
    TABLE,
    Query,
    Weights,
    compute_idf,
    cut,
    expression,
    expressions,
    parse_query,
)
from service.store.scheduling import pause
from service.store.sql.bm25 import compute_scores, is_in, select_best
from service.store.sql.connection import fetch_column, fetch_value
from service.store.sqlite.documents import get_number
from service.store.sqlite.filter_cache import FilterMatches
from service.store.sqlite.filters import read_revisions
from service.store.sqlite.postings import PREFIX, PostingCache, Reader, table
from service.store.values import TIES, Ranking, Revisions

SPARE = 16
NARROW = 1000  # A filter is narrow if at most this many documents match.
MIN_SHARE = 0.125  # Share of the best documents that must match, or else all matches are found first.
_NONE: Ranking = np.empty(0, np.int64), np.empty(0, np.float32)


def make(connection: sqlite3.Connection, number: int) -> None:
    connection.execute(f"CREATE VIRTUAL TABLE {table(number)} USING {TABLE}")


def has_table(connection: sqlite3.Connection, number: int) -> bool:
    return fetch_value(connection, "SELECT 1 FROM sqlite_master WHERE name = ?", table(number)) is not None


def drop(connection: sqlite3.Connection, number: int) -> None:
    connection.execute(f"DROP TABLE IF EXISTS {table(number)}")


def add(connection: sqlite3.Connection, number: int, revision: int, text: str) -> None:
    add_many(connection, number, {revision: cut(text)})


def add_many(connection: sqlite3.Connection, number: int, terms: Mapping[int, str]) -> None:
    """Adds texts to the table. `terms` are the results of `cut` by revision."""
    sql = f"INSERT INTO {table(number)} (rowid, text) VALUES (?, ?)"
    connection.executemany(sql, terms.items())


def remove(connection: sqlite3.Connection, number: int, revision: int, text: str) -> None:
    """Removes a text from the table. `text` must be the text that was added."""
    name = table(number)
    connection.execute(
        f"INSERT INTO {name} ({name}, rowid, text) VALUES ('delete', ?, ?)", (revision, cut(text))
    )


def command(connection: sqlite3.Connection, number: int, said: Literal["delete-all", "optimize"]) -> None:
    """Runs a command of FTS5.

    `optimize` merges the segments of the table, which removes the terms of deleted documents from the file.
    """
    name = table(number)
    connection.execute(f"INSERT INTO {name} ({name}) VALUES ('{said}')")


def numbers(connection: sqlite3.Connection) -> set[int]:
    """Returns the numbers of the collections that have a table."""
    names = fetch_column(connection, "SELECT name FROM sqlite_master WHERE name GLOB ?", f"{PREFIX}*")
    endings = (name.removeprefix(PREFIX) for name in names)
    return {int(ending) for ending in endings if ending.isdecimal()}  # FTS5's own tables have a suffix.


def lacking(connection: sqlite3.Connection) -> str | None:
    """Returns the part of a sentence that names a collection without a table.

    Returns None if every collection has a table.
    """
    there = numbers(connection)
    for number, name in connection.execute("SELECT number, name FROM collections ORDER BY number"):
        if number not in there:
            return f"it lacks the table {table(number)!r} of the collection {name!r}"
    return None


def nearest(
    connection: sqlite3.Connection,
    cache: PostingCache,
    query: str,
    depth: int,
    allowed: FilterMatches | None,
    collection: str,
    weights: Weights = NO_WEIGHTS,
) -> Ranking:
    """Ranks documents, as `protocol.Snapshot.nearest_words` says."""
    number = get_number(connection, collection)
    if number is None:
        return _NONE
    parsed, reader = parse_query(query), Reader(connection, cache, number)
    every = parsed.add(chain.from_iterable(weights))
    postings = reader.get(every.terms, every.beginnings)
    pause()
    revisions, scores = compute_scores(parsed, weights, postings, reader.size)
    if allowed is None:
        return select_best(revisions, scores, depth)
    size = depth + SPARE
    while len(revisions) and not allowed.is_narrow(NARROW):
        names, best = select_best(revisions, scores, size)
        inside = np.isin(names, allowed.among(names))
        if inside.mean() < MIN_SHARE:
            break
        found, kept = best[inside], select_best(names[inside], best[inside], depth)
        if len(names) == len(revisions) or len(found) > depth + TIES:
            return kept
        if len(found) > depth and found[-1] < found[depth - 1]:
            return kept
        size *= 2
    inside = is_in(revisions, allowed.all)
    return select_best(revisions[inside], scores[inside], depth)


def get_idf(
    connection: sqlite3.Connection, cache: PostingCache, query: Query, collection: str
) -> dict[str, float]:
    """Implements `protocol.Snapshot.get_idf`."""
    number = get_number(connection, collection)
    if number is None:
        return {}
    reader = Reader(connection, cache, number)
    postings = reader.get(query.terms, query.beginnings)
    return {
        term: compute_idf(reader.size.documents, len(found.revisions)) for term, found in postings.items()
    }


def list_worded(
    connection: sqlite3.Connection, query: str, collection: str, weights: Weights = NO_WEIGHTS
) -> Revisions:
    """Returns the documents that have a term of a query, as `protocol.Snapshot.list_worded` says."""
    matches = expressions(NO_TERMS.add(chain.from_iterable(weights)))
    groups = [" AND ".join(matches[term] for term in group) for group in weights]
    match = " OR ".join(f"({part})" for part in (expression(query, weights), *groups) if part)
    number = get_number(connection, collection)
    if not match or number is None:
        return _NONE[0]
    return read_revisions(connection, "rowid", f"{table(number)} WHERE {table(number)} MATCH ?", [match])

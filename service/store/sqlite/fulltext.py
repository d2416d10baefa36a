"""Keyword search in SQLite, with BM25 by FTS5.

Start reading at `nearest`. models/search/terms.py cuts titles and texts into terms. The FTS5 tables do not
store the texts, because the documents have them: 100,000 sentences of Wikipedia take 9 MB instead of 24 MB.
To remove a document from a table, its text must therefore be cut again by the same rules. If the rules have
changed, secondary_indexes.py rebuilds the tables.

Each collection has its own table, named by the collection's number, so frequencies and lengths are counted
within the collection. With 1,000 collections, creating a table takes 5 ms and dropping one takes 8 ms. Each
table takes at least 64 KiB on disk.
"""

import sqlite3
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Literal

import numpy as np
import orjson

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
)
from service.store.sql.connection import fetch_column, fetch_value
from service.store.sqlite.documents import INLINE_REVISIONS, get_number
from service.store.sqlite.filter_cache import FilterMatches
from service.store.sqlite.filters import read_revisions
from service.store.values import TIES, Ranking, Revisions

SPARE = 16
NARROW = 1000  # A filter is narrow if at most this many documents match.
MIN_SHARE = 0.125  # Share of the best documents that must match, or else all matches are found first.
_NONE: Ranking = np.empty(0, np.int64), np.empty(0, np.float32)
_TABLE = "lexical_"  # Followed by the number of a collection.


def table(number: int) -> str:
    return f"{_TABLE}{number}"


def make(connection: sqlite3.Connection, number: int) -> None:
    connection.execute(f"CREATE VIRTUAL TABLE {table(number)} USING {TABLE}")


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
    names = fetch_column(connection, "SELECT name FROM sqlite_master WHERE name GLOB ?", f"{_TABLE}*")
    endings = (name.removeprefix(_TABLE) for name in names)
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
    query: str,
    depth: int,
    allowed: FilterMatches | None,
    collection: str,
    weights: Weights = NO_WEIGHTS,
) -> Ranking:
    """Ranks documents, as `protocol.Snapshot.nearest_words` says.

    The scores are those of FTS5's bm25 with the opposite sign, so larger is better.
    """
    parts = _parts(query, weights)
    number = get_number(connection, collection)
    if not parts or number is None:
        return _NONE
    name = table(number)

    def ranked(condition: str = "", *listed: str) -> sqlite3.Cursor:
        if [*parts.values()] == [1.0]:
            sql = f"SELECT rowid, -rank FROM {name} WHERE {name} MATCH ? {condition} ORDER BY rank"
            return connection.execute(sql, [*parts, *listed])
        part = f"SELECT rowid AS name, ? * -rank AS score FROM {name} WHERE {name} MATCH ? {condition}"
        sql = f"SELECT name, sum(score) FROM ({' UNION ALL '.join([part] * len(parts))}) GROUP BY name "
        values = [value for match, weight in parts.items() for value in (weight, match, *listed)]
        return connection.execute(f"{sql} ORDER BY 2 DESC, 1", values)

    if allowed is None:
        return _first(ranked(), depth, None) or _NONE
    if not allowed.is_narrow(NARROW):
        tried = _first(ranked(), depth, allowed.among, MIN_SHARE)
        if tried is not None:
            return tried
    revisions = allowed.all
    if len(revisions) > INLINE_REVISIONS:
        return _first(ranked(), depth, lambda names: np.intersect1d(names, revisions, True)) or _NONE
    listed = orjson.dumps(revisions, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    # The plus keeps SQLite from querying FTS5 once for each revision.
    some = ranked("AND +rowid IN (SELECT value FROM json_each(?))", listed)
    return _first(some, depth, None) or _NONE


def get_idf(connection: sqlite3.Connection, query: Query, collection: str) -> dict[str, float]:
    """Implements `protocol.Snapshot.get_idf`."""
    number = get_number(connection, collection)
    if number is None:
        return {}
    name = table(number)
    documents = fetch_value(connection, f"SELECT count(*) FROM {name}_docsize")
    sql = f"SELECT count(*) FROM {name} WHERE {name} MATCH ?"
    return {
        term: compute_idf(documents, fetch_value(connection, sql, match))
        for term, match in expressions(query).items()
    }


def _parts(query: str, weights: Weights) -> dict[str, float]:
    """Returns expressions whose weighted scores are summed, with their weights."""
    match = expression(query, weights)
    parts = {match: 1.0} if match else {}
    matches = expressions(NO_TERMS.add(chain.from_iterable(weights)))
    single: dict[float, list[str]] = {}
    for group, weight in weights.items():
        if len(group) == 1:
            single.setdefault(weight, []).append(matches[group[0]])
        else:
            parts[" AND ".join(matches[term] for term in group)] = weight
    return parts | {" OR ".join(terms): weight for weight, terms in single.items()}


def list_worded(
    connection: sqlite3.Connection, query: str, collection: str, weights: Weights = NO_WEIGHTS
) -> Revisions:
    """Returns the documents that have a term of a query, as `protocol.Snapshot.list_worded` says."""
    match = " OR ".join(f"({part})" for part in _parts(query, weights))
    number = get_number(connection, collection)
    if not match or number is None:
        return _NONE[0]
    return read_revisions(connection, "rowid", f"{table(number)} WHERE {table(number)} MATCH ?", [match])


def _first(
    rows: sqlite3.Cursor, depth: int, among: Callable[[Revisions], Revisions] | None, least: float = 0
) -> Ranking | None:
    """Returns the first `depth` matching rows, and up to TIES that tie with the last one.

    Args:
        rows: Ranked rows.
        depth: Number of rows.
        among: Returns the revisions that match, of those given. None if all match.
        least: Smallest share of matching rows in a batch. Below it, the result is None.
    """
    revisions, scores = _NONE
    size = depth + SPARE
    while batch := rows.fetchmany(size):
        names = np.array([row[0] for row in batch], np.int64)
        inside = np.ones(len(names), bool) if among is None else np.isin(names, among(names))
        if inside.mean() < least:
            return None
        revisions = np.concatenate([revisions, names[inside]])
        scores = np.concatenate([scores, np.array([row[1] for row in batch], np.float32)[inside]])
        if len(scores) > depth and (scores[-1] < scores[depth - 1] or len(scores) > depth + TIES):
            break
        size *= 2
    kept = len(scores) if len(scores) <= depth else int(np.sum(scores >= scores[depth - 1]))
    kept = min(kept, depth + TIES)
    return revisions[:kept], scores[:kept]

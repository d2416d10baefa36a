"""Search by words in the document store's own file and transactions: BM25 over SQLite's FTS5.

A document's words are those of its title and its text. models/search/terms.py says what a word is. The tables
are contentless, because documents hold the texts already: 100,000 sentences of Wikipedia take 9 MB, and 24
with content. Who removes a document must therefore cut its text once more by the rules that it was indexed
by; secondary_indexes.py indexes all anew where they changed.

Each collection has a table of its own, named by the collection's number, so how rare a word is and how long a
text usually is are counted within the collection. Making one takes 5 ms and dropping one 8 ms when there are
1,000, each takes 64 KiB on disk, and readers look at the changed schema once (40 ms). One table for all, with
BM25 computed here from FTS5's counts, would read every occurrence of a query's words in every collection.
"""

import sqlite3
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from models.search.terms import TABLE, cut, expression
from service.store.sqlite.documents import FEW_REVISIONS, number_of
from service.store.sqlite.filter_cache import FilterMatches
from service.store.values import Revisions

Ranking: TypeAlias = tuple[Revisions, NDArray[np.float32]]

TIES = 1000  # with the last hit
SPARE = 16
NARROW = 1000  # documents that pass a filter
LEAST_SHARE = 0.125  # of the best that pass a filter, for it to be tried on these alone
_NONE: Ranking = np.empty(0, np.int64), np.empty(0, np.float32)
_TABLE = "lexical_"  # and the number of a collection


def table(number: int) -> str:
    """The name of the table of a collection's words."""
    return f"{_TABLE}{number}"


def make(connection: sqlite3.Connection, number: int) -> None:
    connection.execute(f"CREATE VIRTUAL TABLE {table(number)} USING {TABLE}")


def drop(connection: sqlite3.Connection, number: int) -> None:
    connection.execute(f"DROP TABLE IF EXISTS {table(number)}")


def add(connection: sqlite3.Connection, number: int, revision: int, text: str) -> None:
    connection.execute(f"INSERT INTO {table(number)} (rowid, text) VALUES (?, ?)", (revision, cut(text)))


def remove(connection: sqlite3.Connection, number: int, revision: int, text: str) -> None:
    """`text` is what was added: FTS5 takes its tokens out one by one."""
    name = table(number)
    connection.execute(
        f"INSERT INTO {name} ({name}, rowid, text) VALUES ('delete', ?, ?)", (revision, cut(text))
    )


def clear(connection: sqlite3.Connection, number: int) -> None:
    name = table(number)
    connection.execute(f"INSERT INTO {name} ({name}) VALUES ('delete-all')")


def numbers(connection: sqlite3.Connection) -> set[int]:
    """The numbers of the collections that have a table."""
    names = connection.execute("SELECT name FROM sqlite_master WHERE name GLOB ?", (f"{_TABLE}*",)).fetchall()
    endings = (name.removeprefix(_TABLE) for (name,) in names)
    return {int(ending) for ending in endings if ending.isdecimal()}  # FTS5's own have words behind it


def lacking(connection: sqlite3.Connection) -> str | None:
    """The first collection without its table, in words; None where each has one."""
    there = numbers(connection)
    for number, name in connection.execute("SELECT number, name FROM collections ORDER BY number"):
        if number not in there:
            return f"it lacks the table {table(number)!r} of the collection {name!r}"
    return None


def optimize(connection: sqlite3.Connection, number: int) -> None:
    """Merge the table, so that words of deleted documents go."""
    name = table(number)
    connection.execute(f"INSERT INTO {name} ({name}) VALUES ('optimize')")


def nearest(
    connection: sqlite3.Connection, query: str, depth: int, allowed: FilterMatches | None, collection: str
) -> Ranking:
    """The revisions of the `depth` documents that rank highest, and their scores, best first.

    A score is FTS5's bm25 with its sign turned: above 0, and larger is better. As with vectors, the answer
    holds every document that ties with the last one, up to `TIES` more.

    Args:
        allowed: what passes a filter; None for all.

    """
    match = expression(query)
    number = number_of(connection, collection)
    if not match or number is None:
        return _NONE
    name = table(number)

    def ranked(condition: str = "", *listed: str) -> sqlite3.Cursor:
        sql = f"SELECT rowid, -rank FROM {name} WHERE {name} MATCH ? {condition} ORDER BY rank"
        return connection.execute(sql, [match, *listed])

    if allowed is None:
        return _first(ranked(), depth, None) or _NONE
    if not allowed.is_narrow(NARROW):
        tried = _first(ranked(), depth, allowed.among, LEAST_SHARE)
        if tried is not None:
            return tried
    revisions = allowed.all
    if len(revisions) > FEW_REVISIONS:
        return _first(ranked(), depth, lambda names: np.intersect1d(names, revisions, True)) or _NONE
    listed = orjson.dumps(revisions, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    # The plus keeps SQLite from asking FTS5 once for each revision.
    some = ranked("AND +rowid IN (SELECT value FROM json_each(?))", listed)
    return _first(some, depth, None) or _NONE


def _first(
    rows: sqlite3.Cursor, depth: int, among: Callable[[Revisions], Revisions] | None, least: float = 0
) -> Ranking | None:
    """The first `depth` of ranked rows and those that tie with the last one.

    among: of some revisions those that count. None is the answer where less than a share of `least` does.
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

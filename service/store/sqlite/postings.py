"""Reads which documents have a term, and how often, from FTS5. Start reading at `Reader`.

    a term ─▶ its postings of an earlier state ─▶ updated by the operation log ─▶ its postings
      └─────▶ rare, not cached, or too old ─▶ read again; kept if many documents have the term

FTS5's own `rank` takes 1.5 µs for each document with a term. Reading a posting takes 0.2 µs, and a cached one
nothing. A revision never changes, so an update only removes deleted revisions and appends new ones.
"""

import sqlite3
from collections.abc import Iterable
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from service.store.scheduling import pause
from service.store.sql.bm25 import Integers, Postings, Size, is_in
from service.store.sql.connection import fetch_column, fetch_value
from service.store.sqlite.documents import sequence
from service.store.sqlite.state_cache import STEP, StateCache

KEPT = 500  # Postings of a term that are cached. Reading fewer takes 0.1 ms.
# Those of a million documents with 20 words take 120 MB. A term may take a quarter.
MAX_BYTES = 256 * 2**20
LENGTHS_BYTES = 256 * 2**20  # Lengths of 20 million documents.
NEAR = 1000  # Lengths that are read one by one.
STEP_DOCUMENTS = 100_000  # Lengths that are read at a time, in 20 ms.
_STATE_BYTES = 500  # Bytes of a state in addition to its arrays, at most.
_ENDLESS = 1e15  # A weight by which a frequency becomes so large that bm25 is at its limit.
_LAST = chr(0x10FFFF)


PREFIX = "lexical_"  # Of FTS5's tables, before the number of the collection.


def table(number: int) -> str:
    return f"{PREFIX}{number}"


def open_vocabulary(connection: sqlite3.Connection, number: int, kind: Literal["row", "instance"]) -> str:
    """Returns the name of a table of FTS5 with all terms, or all places of terms. `end_read` drops it."""
    name = f"temp.{kind}_{number}"
    is_read_only = fetch_value(connection, "PRAGMA query_only")
    connection.execute("PRAGMA query_only = 0")
    try:
        source = f"fts5vocab ('main', '{table(number)}', '{kind}')"
        connection.execute(f"CREATE VIRTUAL TABLE IF NOT EXISTS {name} USING {source}")
    finally:
        connection.execute(f"PRAGMA query_only = {is_read_only}")
    return name


def end_read(connection: sqlite3.Connection) -> None:
    """Ends a transaction that only reads, and drops the tables of `open_vocabulary`.

    After a rollback that undoes them, SQLite would parse the schema of all collections again, which takes
    20 ms with 300 collections.
    """
    try:
        if made := fetch_column(connection, "SELECT name FROM temp.sqlite_master"):
            connection.execute("PRAGMA query_only = 0")
            for name in made:
                connection.execute(f"DROP TABLE temp.{name}")
            connection.execute("PRAGMA query_only = 1")
        connection.commit()
    except sqlite3.Error:  # Such as an unfinished statement on one of them, or a passed deadline.
        connection.rollback()
        connection.execute("PRAGMA query_only = 1")


class _Known(NamedTuple):
    """The postings of a term after the operation `sequence`."""

    sequence: int
    postings: Postings

    @property
    def nbytes(self) -> int:
        return self.postings.nbytes + _STATE_BYTES


class _Lengths(NamedTuple):
    """The numbers of tokens of documents, which may be deleted meanwhile."""

    sequence: int
    revisions: Integers  # Ascending.
    lengths: Integers

    @property
    def nbytes(self) -> int:
        return self.revisions.nbytes + self.lengths.nbytes + _STATE_BYTES


class PostingCache:
    """Postings and lengths, by the number of the collection. All reading threads share it."""

    def __init__(self) -> None:
        self.terms = StateCache[_Known](MAX_BYTES)
        self.lengths = StateCache[_Lengths](LENGTHS_BYTES)


class Reader:
    """Reads the postings of a collection in the caller's transaction.

    Args:
        connection: A connection in a transaction.
        cache: The cache of the store.
        number: Number of the collection.
    """

    def __init__(self, connection: sqlite3.Connection, cache: PostingCache, number: int) -> None:
        self._connection, self._cache, self._number = connection, cache, number
        self._table = table(number)
        self._now = sequence(connection)
        self._deleted: dict[int, Integers | None] = {}
        self.size = self._read_size()

    def get(self, terms: Iterable[str], beginnings: Iterable[str] = ()) -> dict[str, Postings]:
        """Returns the postings of terms, and of all terms with a beginning together. Do not change them."""
        found = {term: self._get(term, f'"{term}"', term) for term in terms}
        return found | {term: self._get(term, f'"{term}" *', term + _LAST) for term in beginnings}

    def _get(self, term: str, match: str, last: str) -> Postings:
        pause()
        name = (self._number, match)
        known = self._cache.terms.find(name, self._now)
        found = None if known is None else self._update(known, match)
        is_kept = known is None or self._now - known.sequence >= STEP
        if found is None:
            found, is_kept = self._read(term, last), True
        state = _Known(self._now, found)
        if is_kept and len(found.revisions) >= KEPT and state.nbytes <= MAX_BYTES // 4:
            self._cache.terms.keep(name, state)
        return found

    def _read(self, term: str, last: str) -> Postings:
        """Reads the postings of the terms from `term` to `last`."""
        sql = f"SELECT group_concat(doc) FROM {self._instances} WHERE term >= ? AND term <= ?"
        places = _parse(fetch_value(self._connection, sql, term, last))
        places.sort(kind="stable")  # They are in order, unless they are of several terms.
        starts = np.flatnonzero(np.diff(places, prepend=-1))
        return self._build(places[starts], np.diff(starts, append=len(places)))

    @cached_property
    def _instances(self) -> str:
        return open_vocabulary(self._connection, self._number, "instance")

    def _update(self, known: _Known, match: str) -> Postings | None:
        """Returns earlier postings in the present state, or None if the operation log is too short."""
        if known.sequence == self._now:
            return known.postings
        if (deleted := self._list_deleted(known.sequence)) is None:
            return None
        before = known.postings.without(deleted)
        last = int(before.revisions[-1]) if len(before.revisions) else 0
        rows = self._connection.execute(
            f"SELECT rowid, -bm25({self._table}), -bm25({self._table}, {_ENDLESS}) FROM {self._table} "
            f"WHERE {self._table} MATCH ? AND rowid > ? ORDER BY rowid",
            (match, last),
        ).fetchall()
        if not rows:
            return before
        columns = np.array(rows).T
        revisions = columns[0].astype(np.int64)
        lengths = self._get_lengths(revisions)
        # FTS5 tells the score s = l · f / (f + n), not the frequency f. l is the limit, n is known.
        norms = 0.3 + 0.9 * lengths * self.size.documents / self.size.tokens
        frequencies = np.rint(columns[1] * norms / (columns[2] - columns[1])).astype(np.int64)
        added = self._build(revisions, frequencies)
        return Postings(*map(np.concatenate, zip(before, added, strict=True)))

    def _build(self, revisions: NDArray[np.int64], frequencies: NDArray[np.int64]) -> Postings:
        columns = revisions, frequencies, self._get_lengths(revisions)
        return Postings(*(_shrink(column) for column in columns))

    def _list_deleted(self, before: int) -> Integers | None:
        """Returns the revisions that were deleted after an operation, or None if it is not in the log."""
        if before not in self._deleted:
            first = fetch_value(self._connection, "SELECT min(sequence) FROM operations")
            sql = "SELECT revision FROM operations WHERE sequence > ? AND sequence <= ? AND kind = 'delete'"
            rows = fetch_column(self._connection, sql, before, self._now)
            is_whole = first is not None and first <= before + 1
            self._deleted[before] = np.sort(np.array(rows, np.int64)) if is_whole else None
        return self._deleted[before]

    def _read_size(self) -> Size:
        """Reads the numbers of documents and tokens, which FTS5 stores for bm25."""
        block = fetch_value(self._connection, f"SELECT block FROM {self._table}_data WHERE id = 1")
        numbers = _decode(block or b"")
        return Size(int(numbers[0]), int(numbers[1])) if len(numbers) else Size(0, 0)

    def _get_lengths(self, revisions: Integers) -> Integers:
        known = self._cache.lengths.find(self._number, self._now)
        if known is None or len(known.revisions) > 2 * self.size.documents:
            known = _Lengths(0, np.empty(0, np.int64), np.empty(0, np.uint32))
        missing = ~is_in(revisions, known.revisions)
        if np.count_nonzero(missing) > NEAR:
            known = self._read_lengths(known)
            self._cache.lengths.keep(self._number, known)
            missing = ~is_in(revisions, known.revisions)
        lengths = np.zeros(len(revisions), np.int64)
        lengths[~missing] = known.lengths[np.searchsorted(known.revisions, revisions[~missing])]
        if missing.any():
            listed = orjson.dumps(revisions[missing], option=orjson.OPT_SERIALIZE_NUMPY).decode()
            sql = "id IN (SELECT value FROM json_each(?)) ORDER BY id"
            lengths[missing] = self._list_lengths(sql, listed)[1]
        return lengths

    def _read_lengths(self, known: _Lengths) -> _Lengths:
        """Reads the lengths of all documents after the last known one."""
        parts = [(known.revisions, known.lengths)]
        while len(last := parts[-1][0]) or len(parts) == 1:
            pause()
            after = int(last[-1]) if len(last) else 0
            parts.append(self._list_lengths("id > ? ORDER BY id LIMIT ?", after, STEP_DOCUMENTS))
        revisions, lengths = (np.concatenate(column) for column in zip(*parts, strict=True))
        return _Lengths(self._now, revisions, lengths)

    def _list_lengths(self, where: str, *parameters: object) -> tuple[Integers, Integers]:
        [revisions, lengths] = self._connection.execute(
            "SELECT group_concat(id), CAST(group_concat(sz, '') AS BLOB) FROM "
            f"(SELECT id, sz FROM {self._table}_docsize WHERE {where})",
            parameters,
        ).fetchone()
        return _parse(revisions), _decode(lengths or b"").astype(np.uint32)


def _parse(numbers: str | None) -> NDArray[np.int64]:
    """Parses numbers with commas between. Python takes five times as long for a row each."""
    return np.fromstring(numbers, np.int64, sep=",") if numbers else np.empty(0, np.int64)


def _decode(block: bytes) -> NDArray[np.int64]:
    """Decodes SQLite's numbers: seven bits a byte, and the eighth bit in all bytes but the last."""
    digits = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(digits < 128)
    numbers = np.zeros(len(ends), np.int64)
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    for more in range(int(np.max(ends - starts, initial=-1)) + 1):
        at = starts + more
        inside = at <= ends
        numbers[inside] = numbers[inside] << 7 | digits[at[inside]] & 127
    return numbers


def _shrink(numbers: Integers) -> Integers:
    """Returns the same numbers in the smallest signed type that holds them."""
    return numbers.astype(np.min_scalar_type(-1 - int(numbers.max(initial=0))))

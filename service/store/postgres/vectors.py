"""Stores the vectors of each generation in a table in PostgreSQL, and searches them.

Start reading at `nearest`, which compares all matching vectors or uses the vector index. The index has 16-bit
numbers, but scores are always computed from the stored 32-bit vectors.
"""

import logging
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.store.filters.grammar import Predicate, scoped
from service.store.postgres.connection import MIN_SEARCHED, Connection, Raw
from service.store.sql.connection import fetch_value
from service.store.values import (
    MAX_PASSAGES,
    MEASURED_PASSAGES,
    PASSAGE_BITS,
    Embedding,
    Passage,
    Revisions,
    RowNames,
    Vector,
    build_row_name,
)

log = logging.getLogger(__name__)

PLAIN_DIMENSIONS = 1990  # A vector of this size fits a page of 8 KiB with the other columns.
HALF_DIMENSIONS = 4000  # pgvector can index this many dimensions.
_BUILD_LOCK = 7_405_832
GRAPH_BYTES = 800  # Memory of a vector in a build of the index, besides its 16-bit numbers.


def table(generation: int) -> str:
    return f"vectors_{generation:d}"


def make(connection: Connection, generation: int, dimension: int) -> None:
    """Creates the table of a generation without its vector index."""
    name = table(generation)
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS {name} (revision bigint, passage integer, "
        f'collection text COLLATE "C" NOT NULL, vector vector({dimension:d}) NOT NULL, '
        "truncated boolean NOT NULL, start_at bigint NOT NULL, end_at bigint, "
        "PRIMARY KEY (revision, passage))"
    )
    if dimension <= PLAIN_DIMENSIONS:
        connection.execute(f"ALTER TABLE {name} ALTER COLUMN vector SET STORAGE PLAIN")
    connection.execute(f"CREATE INDEX IF NOT EXISTS {name}_collection ON {name} (collection)")


def _index(generation: int, dimension: int, how: str = "") -> str:
    name = table(generation)
    return (
        f"CREATE INDEX {how} IF NOT EXISTS {name}_nearest ON {name} "
        f"USING hnsw ((vector::halfvec({dimension:d})) halfvec_ip_ops)"
    )


def make_index(connection: Connection, generation: int, dimension: int) -> None:
    """Creates the vector index of a generation that has no vectors yet."""
    if dimension <= HALF_DIMENSIONS:
        connection.execute(_index(generation, dimension))


def drop_index(connection: Connection, generation: int) -> None:
    connection.execute(f"DROP INDEX IF EXISTS {table(generation)}_nearest")


def is_indexed(connection: Connection, generation: int) -> bool:
    """Returns whether the vector index of a generation is valid, or cannot exist for this dimension."""
    sql = f"SELECT dimension > {HALF_DIMENSIONS} OR EXISTS (SELECT 1 FROM pg_index "
    sql += "WHERE indexrelid = to_regclass(?) AND indisvalid) FROM generations WHERE number = ?"
    return bool(fetch_value(connection, sql, f"{table(generation)}_nearest", generation))


def build_index(raw: Raw, generation: int, dimension: int) -> bool:
    """Builds the vector index of stored vectors while other transactions write.

    With a large enough `maintenance_work_mem`, this takes a fifth of the time of inserting into an index. For
    100,000 vectors of 384 dimensions, it takes 17 s instead of 93 s. Otherwise the log has a warning.

    Args:
        raw: A connection that is not in a transaction.
        generation: Number of the generation.
        dimension: Dimension of the vectors.

    Returns:
        False if another process builds the index.
    """
    connection = Connection(raw)
    if not fetch_value(connection, "SELECT pg_try_advisory_lock(?, ?)", _BUILD_LOCK, generation):
        return False
    raw.execute("SET statement_timeout = 0")
    if not is_indexed(connection, generation):
        _check_memory(connection, generation, dimension)
        # An index that was left unfinished is never used, and stays until it is dropped.
        raw.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {table(generation)}_nearest".encode())
        raw.execute(_index(generation, dimension, "CONCURRENTLY").encode())
    return True


def _check_memory(connection: Connection, generation: int, dimension: int) -> None:
    """Logs a warning if the graph of the index exceeds the database's memory for a build."""
    rows, memory = connection.execute(
        "SELECT (SELECT coalesce(sum(rows), 0)::bigint FROM sizes WHERE generation = ?), "
        "pg_size_bytes(current_setting('maintenance_work_mem'))",
        (generation,),
    ).fetchone() or (0, 0)
    if (needed := rows * (2 * dimension + GRAPH_BYTES)) > memory:
        log.warning(
            "Building the vector index takes several times as long as it could, because it needs %d MB and "
            "the database's maintenance_work_mem is %d MB. Raise that setting before the next build.",
            needed >> 20,
            memory >> 20,
        )


def insert(connection: Connection, generation: int, collection: str, rows: Mapping[int, Embedding]) -> None:
    """Stores vectors by revision, for documents that have no vectors in this generation."""
    if not rows:
        return
    columns = "revision, passage, collection, vector, truncated, start_at, end_at"
    connection.copy(f"{table(generation)} ({columns})", _copied(collection, rows))
    count = sum(len(embedding.passages) for embedding in rows.values())
    _grow(connection, generation, len(rows), count)


def _copied(collection: str, rows: Mapping[int, Embedding]) -> Iterator[bytes]:
    """Yields rows in the binary form of COPY: the number of columns, and each column after its length.

    All numbers are big-endian.
    """
    name = collection.encode()
    between = struct.Struct(f">hiqiii{len(name)}sihh")
    behind, last = struct.Struct(">i?iq"), struct.Struct(">iq")
    for revision, embedding in rows.items():
        for number, passage in enumerate(embedding.passages):
            vector = np.asarray(passage.vector, ">f4").tobytes()
            size = len(vector)
            yield between.pack(7, 8, revision, 4, number, len(name), name, size + 4, size // 4, 0)
            yield vector
            yield behind.pack(1, embedding.truncated, 8, passage.start)
            yield b"\xff\xff\xff\xff" if passage.end is None else last.pack(8, passage.end)


def add(connection: Connection, generation: int, collection: str, rows: Mapping[int, Embedding]) -> None:
    """Stores vectors by revision, and replaces existing vectors of these documents."""
    remove(connection, generation, [*rows])
    insert(connection, generation, collection, rows)


def remove(connection: Connection, generation: int, revisions: Sequence[int]) -> None:
    """Deletes the vectors of revisions, and the rows of these revisions in `lacking` and `skipped`."""
    if not revisions:
        return
    documents, rows = connection.execute(
        f"WITH gone AS (DELETE FROM {table(generation)} WHERE revision = ANY(?) RETURNING passage), "
        "found AS (DELETE FROM lacking WHERE generation = ? AND revision = ANY(?)), "
        "tried AS (DELETE FROM skipped WHERE generation = ? AND revision = ANY(?)) "
        "SELECT count(*) FILTER (WHERE passage = 0), count(*) FROM gone",
        ([*revisions], generation, [*revisions], generation, [*revisions]),
    ).fetchone() or (0, 0)
    _grow(connection, generation, -documents, -rows)


def _grow(connection: Connection, generation: int, documents: int, rows: int) -> None:
    if rows:
        connection.execute("INSERT INTO sizes VALUES (?, ?, ?)", (generation, documents, rows))


def held(connection: Connection) -> dict[int, tuple[int, int]]:
    """Returns the number of documents with vectors, and the number of rows, for each generation."""
    rows = connection.execute(
        "SELECT number, coalesce(sum(documents), 0)::bigint, coalesce(sum(rows), 0)::bigint "
        "FROM generations LEFT JOIN sizes ON generation = number GROUP BY number"
    )
    return {number: (documents, passages) for number, documents, passages in rows}


def stored(connection: Connection, generation: int, revisions: Sequence[int]) -> dict[int, Embedding]:
    """Returns the stored vectors by revision."""
    rows = connection.execute(
        f"SELECT revision, vector_send(vector), truncated, start_at, end_at FROM {table(generation)} "
        "WHERE revision = ANY(?) ORDER BY revision, passage",
        ([*revisions],),
    )
    parts: dict[int, list[Passage]] = {}
    truncated: dict[int, bool] = {}
    for revision, sent, cut, start, end in rows:
        parts.setdefault(revision, []).append(Passage(_received(sent), start, end))
        truncated[revision] = cut
    return {
        revision: Embedding(head.vector, truncated[revision], end=head.end, others=tuple(others))
        for revision, (head, *others) in parts.items()
    }


def _received(sent: bytes) -> Vector:
    """Decodes a vector in pgvector's binary form: two 16-bit numbers, and then big-endian float32 numbers."""
    return np.frombuffer(sent, dtype=">f4", offset=4).astype(np.float32)


def get_vector(
    connection: Connection, generation: int, id: str, collection: str
) -> tuple[int, Vector | None] | None:
    """Returns a document's revision and vector, as `protocol.Snapshot.get_vector` says."""
    row = connection.execute(
        f"SELECT d.revision, vector_send(vector) FROM documents d LEFT JOIN {table(generation)} v "
        "ON v.revision = d.revision AND passage = 0 WHERE d.collection = ? AND d.id = ?",
        (collection, id),
    ).fetchone()
    return None if row is None else (row[0], None if row[1] is None else _received(row[1]))


def get_vectors(connection: Connection, generation: int, revisions: Sequence[int]) -> dict[int, Vector]:
    """Returns the vectors of documents, as `protocol.Snapshot.get_vectors` says."""
    rows = connection.execute(
        f"SELECT revision, vector_send(vector) FROM {table(generation)} "
        "WHERE revision = ANY(?) AND passage < ? ORDER BY revision, passage",
        ([*revisions], MEASURED_PASSAGES),
    )
    found: dict[int, list[Vector]] = {}
    for revision, sent in rows:
        found.setdefault(revision, []).append(_received(sent))
    return {revision: np.array(vectors) for revision, vectors in found.items()}


def passages(connection: Connection, generation: int, names: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Returns the start and end of passages, as `protocol.Snapshot.passages` says."""
    rows = connection.execute(
        f"SELECT name, start_at, end_at FROM unnest(?::bigint[]) AS asked (name) "
        f"JOIN {table(generation)} ON revision = name >> {PASSAGE_BITS} "
        f"AND passage = name & {MAX_PASSAGES - 1} WHERE end_at IS NOT NULL",
        ([*names],),
    )
    return {name: (start, end) for name, start, end in rows}


EXACT_DOCUMENTS = 10_000  # Documents whose vectors are all compared. For more, the index is used.
# If more documents match a filter, they are not counted again for this time, because counting costs more
# than the search.
WIDE_SECONDS = 30.0
WIDE_FILTERS = 1000  # Filters that a connection remembers.


@dataclass(frozen=True)
class FilterMatches:
    """The documents of a collection that match a filter."""

    where: Predicate
    collection: str
    revisions: Revisions | None  # None if more than EXACT_DOCUMENTS match.

    def condition(self, column: str) -> tuple[str, list[Any]]:
        """Returns SQL that tests whether a revision matches, and the parameters.

        Args:
            column: SQL of the revision.
        """
        if self.revisions is not None:
            return f"{column} IN (SELECT unnest(?::bigint[]))", [self.revisions]
        sql = f"EXISTS (SELECT 1 FROM documents d WHERE d.revision = {column} AND ({self.where.sql}))"
        return sql, [*self.where.parameters]

    def among(self, connection: Connection, revisions: Revisions) -> Revisions:
        """Returns those of `revisions` that match the filter."""
        sql = f"documents WHERE revision IN (SELECT unnest(?::bigint[])) AND ({self.where.sql})"
        return revisions_in(connection, sql, (revisions, *self.where.parameters))


def matching(
    connection: Connection, where: Predicate, collection: str, *, lazily: bool = False
) -> FilterMatches:
    """Finds the documents in a collection that match a filter.

    The result has no list of revisions if more than EXACT_DOCUMENTS match. Such a filter is remembered for
    WIDE_SECONDS, and its matches are not counted again during that time.
    """
    if lazily:
        return FilterMatches(where, collection, None)
    wide, name = connection.raw.wide, hash((collection, where.sql, repr(where.parameters)))
    if time.monotonic() < wide.get(name, 0.0):
        return FilterMatches(where, collection, None)
    sql = f"documents WHERE collection = ? AND ({where.sql}) LIMIT ?"
    found = revisions_in(connection, sql, (collection, *where.parameters, EXACT_DOCUMENTS + 1))
    if len(found) <= EXACT_DOCUMENTS:
        return FilterMatches(where, collection, found)
    if len(wide) >= WIDE_FILTERS:
        wide.clear()
    wide[name] = time.monotonic() + WIDE_SECONDS
    return FilterMatches(where, collection, None)


def restricted(
    connection: Connection,
    allowed: FilterMatches | None,
    required: Revisions | None,
    excluded: Revisions,
    collection: str,
) -> FilterMatches:
    """Returns documents as an argument for searches, as `protocol.Snapshot.restricted` says."""
    where = Predicate("TRUE", [], kind="and") if allowed is None else allowed.where
    if required is None:
        sql = f"documents WHERE collection = ? AND ({where.sql})"
        found = revisions_in(connection, sql, (collection, *where.parameters))
    else:
        found = required if allowed is None else allowed.among(connection, required)
    return FilterMatches(where, collection, np.setdiff1d(found, excluded))


def list_matching(connection: Connection, where: Predicate | None, collection: str) -> Revisions:
    """Returns all documents that match a filter, as `protocol.Snapshot.list_matching` says."""
    sql, parameters = scoped(where, collection)
    return np.sort(revisions_in(connection, f"documents WHERE {sql}", parameters))


def among(
    connection: Connection, where: Predicate | None, revisions: Revisions, collection: str
) -> Revisions:
    """Returns those of some documents that match a filter, as `protocol.Snapshot.among` says."""
    sql, parameters = scoped(where, collection)
    sql = f"documents WHERE revision IN (SELECT unnest(?::bigint[])) AND {sql}"
    return np.sort(revisions_in(connection, sql, [revisions, *parameters]))


def revisions_in(connection: Connection, source: str, parameters: Sequence[Any]) -> Revisions:
    """Returns the column `revision` of the rows of `source`, which is the SQL after FROM.

    The database sends all revisions as one value, because one row per revision takes ten times as long.
    """
    sql = f"SELECT string_agg(int8send(revision), NULL) FROM (SELECT revision FROM {source}) AS found"
    return np.frombuffer(fetch_value(connection, sql, *parameters) or b"", ">i8").astype(np.int64)


SPARE = 16  # Additional candidates.
MAX_CANDIDATES = 1 << 17
SEARCHED = MIN_SEARCHED, 1000  # Bounds of hnsw.ef_search.
# Rows that are compared in the time in which the index checks a row with a filter.
RATIO = 5

Nearest = tuple[NDArray[np.float32], RowNames]
_Row = tuple[int, int, float]  # Revision, passage, score.


def nearest(
    connection: Connection,
    generation: int,
    vectors: NDArray[np.float32],
    depth: int,
    allowed: FilterMatches | None,
    collection: str,
    *,
    heads_only: bool,
) -> list[Nearest]:
    """Finds the `depth` nearest documents of each vector.

    If few documents match, all of them are compared, and documents that tie with the last one are returned as
    well. With `heads_only`, only the first passage of each document is compared.

    Returns:
        For each vector, the scores, best first, and the names of the documents' nearest rows.
    """
    where, bound = ("TRUE", []) if allowed is None else allowed.condition("v.revision")
    where += " AND passage = 0" if heads_only else ""
    rows = f"{table(generation)} v WHERE collection = ? AND {where}"
    documents, stored, all_rows = connection.execute(
        "SELECT (SELECT coalesce(sum(documents), 0) FROM tally WHERE collection = ?)::bigint, "
        "coalesce(sum(documents), 0)::bigint, coalesce(sum(rows), 0)::bigint FROM sizes WHERE generation = ?",
        (collection, generation),
    ).fetchone() or (0, 0, 0)
    spread = 2 if all_rows > stored else 1  # Without passages, each row is another document.
    candidates = spread * depth + SPARE
    if SEARCHED[1] < candidates <= SEARCHED[1] + SPARE:
        candidates = SEARCHED[1]  # The index would take almost twice as long to find one more.
    search = _Search(connection, depth, rows, [collection, *bound], candidates)
    few = allowed is not None and allowed.revisions is not None
    if allowed is None:
        # The index must skip rows of other collections one by one.
        few = (
            documents <= EXACT_DOCUMENTS or documents < sqrt(RATIO * search.candidates * all_rows) < all_rows
        )
    if few or vectors.shape[1] > HALF_DIMENSIONS:
        return [search.exact(vector) for vector in vectors]
    return [search.by_index(vector) for vector in vectors]


@dataclass(frozen=True)
class _Search:
    """Searches the rows of a table that match an SQL condition, whose parameters are `_bound`."""

    _connection: Connection
    _depth: int
    _of: str  # The table with the condition.
    _bound: Sequence[Any]
    candidates: int  # Rows to find at first.

    def exact(self, vector: NDArray[np.float32]) -> Nearest:
        count = self.candidates
        while True:
            rows = self._connection.execute(
                "SELECT revision, passage, (-(vector <#> ?::vector))::float4 AS score "
                f"FROM {self._of} ORDER BY score DESC FETCH FIRST ? ROWS WITH TIES",
                (vector, *self._bound, count),
            ).fetchall()
            best = _best(rows)
            if len(best) >= self._depth or len(rows) < count:
                last = best[self._depth - 1][0] if len(best) >= self._depth else -np.inf
                return _arrays([each for each in best if each[0] >= last])
            count *= 4

    def by_index(self, vector: NDArray[np.float32]) -> Nearest:
        """Searches by the vector index. Compares all rows if the index returns too few documents."""
        least, most = SEARCHED
        count, dimension = self.candidates, len(vector)
        while True:
            if count > least:
                self._connection.execute(f"SET LOCAL hnsw.ef_search = {min(count, most):d}")
            rows = self._connection.execute(
                f"WITH near AS MATERIALIZED (SELECT revision, passage, vector FROM {self._of} "
                f"ORDER BY vector::halfvec({dimension}) <#> ?::vector::halfvec({dimension}) LIMIT ?) "
                "SELECT revision, passage, (-(vector <#> ?::vector))::float4 AS score FROM near",
                (*self._bound, vector, count, vector),
            ).fetchall()
            best = _best(rows)
            if len(best) >= self._depth:
                return _arrays(best[: self._depth])
            if len(rows) < count or count >= MAX_CANDIDATES:
                return self.exact(vector)
            count *= 2


def _best(rows: Sequence[_Row]) -> list[tuple[float, int]]:
    """Returns the score and name of each document's best row, sorted by score (best first), then by name."""
    best: dict[int, tuple[float, int]] = {}
    for revision, passage, score in rows:
        row = (-score, build_row_name(revision, passage))
        best[revision] = min(best.get(revision, row), row)
    return [(-score, name) for score, name in sorted(best.values())]


def _arrays(found: Sequence[tuple[float, int]]) -> Nearest:
    return np.array([score for score, _ in found], np.float32), np.array([row for _, row in found], np.int64)

"""The vectors of generations: a table of each, whose index finds the nearest (nearest.py)."""

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from service.store.postgres.connection import Connection, Raw
from service.store.values import MAX_PASSAGES, PASSAGE_BITS, Embedding, Passage, Vector

PLAIN_DIMENSIONS = 1990  # that fit a page of 8 KiB beside the row's other columns
HALF_DIMENSIONS = 4000  # that pgvector indexes
_BUILD_LOCK = 7_405_832


class Held(NamedTuple):
    """Of a generation: documents with vectors, and all rows of theirs."""

    documents: int
    rows: int


def table(generation: int) -> str:
    return f"vectors_{generation:d}"


def make(connection: Connection, generation: int, dimension: int) -> None:
    """Make the table of a generation, without its index."""
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
    """Make the index of a generation that has no vectors yet."""
    if dimension <= HALF_DIMENSIONS:
        connection.execute(_index(generation, dimension))


def drop_index(connection: Connection, generation: int) -> None:
    connection.execute(f"DROP INDEX IF EXISTS {table(generation)}_nearest")


def is_indexed(connection: Connection, generation: int) -> bool:
    """True when the index of a generation is whole, or its dimension allows none."""
    row = connection.execute(
        f"SELECT dimension > {HALF_DIMENSIONS} OR EXISTS (SELECT 1 FROM pg_index "
        "WHERE indexrelid = to_regclass(?) AND indisvalid) FROM generations WHERE number = ?",
        (f"{table(generation)}_nearest", generation),
    ).fetchone()
    return row is not None and bool(row[0])


def build_index(raw: Raw, generation: int, dimension: int) -> bool:
    """Build the index over the vectors that are there, while others write; `raw` is in no transaction.

    That takes a fifth of the time that inserting into an index does (100,000 of 384 dimensions: 17 s, not 93)
    where `maintenance_work_mem` has room for all of it. Returns False when another process builds it.
    """
    row = raw.execute("SELECT pg_try_advisory_lock(%s, %s)", (_BUILD_LOCK, generation)).fetchone()
    if row is None or not row[0]:
        return False
    raw.execute("SET statement_timeout = 0")
    if not is_indexed(Connection(raw), generation):
        # One that a process left half built: it is never used, and stays until it is dropped.
        raw.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {table(generation)}_nearest".encode())
        raw.execute(_index(generation, dimension, "CONCURRENTLY").encode())
    return True


def insert(connection: Connection, generation: int, collection: str, rows: Mapping[int, Embedding]) -> None:
    """Store the vectors of documents that have none, by revision."""
    if not rows:
        return
    columns = "revision, passage, collection, vector, truncated, start_at, end_at"
    connection.copy(f"{table(generation)} ({columns})", _copied(collection, rows))
    count = sum(len(embedding.passages) for embedding in rows.values())
    _grow(connection, generation, len(rows), count)


def _copied(collection: str, rows: Mapping[int, Embedding]) -> Iterator[bytes]:
    """Rows in the binary form of COPY: how many columns, and the length of each before it, big-endian."""
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
    """Store the vectors of documents, by revision, in place of those that are there."""
    remove(connection, generation, [*rows])
    insert(connection, generation, collection, rows)


def remove(connection: Connection, generation: int, revisions: Sequence[int]) -> None:
    """Take out the vectors of revisions, and their places among those that are lacking or were skipped."""
    if not revisions:
        return
    row = connection.execute(
        f"WITH gone AS (DELETE FROM {table(generation)} WHERE revision = ANY(?) RETURNING passage), "
        "found AS (DELETE FROM lacking WHERE generation = ? AND revision = ANY(?)), "
        "tried AS (DELETE FROM skipped WHERE generation = ? AND revision = ANY(?)) "
        "SELECT count(*) FILTER (WHERE passage = 0), count(*) FROM gone",
        ([*revisions], generation, [*revisions], generation, [*revisions]),
    ).fetchone()
    documents, rows = row or (0, 0)
    _grow(connection, generation, -documents, -rows)


def _grow(connection: Connection, generation: int, documents: int, rows: int) -> None:
    if rows:
        connection.execute("INSERT INTO sizes VALUES (?, ?, ?)", (generation, documents, rows))


def held(connection: Connection) -> dict[int, Held]:
    """Documents with vectors, and all rows, of each generation."""
    rows = connection.execute(
        "SELECT number, coalesce(sum(documents), 0)::bigint, coalesce(sum(rows), 0)::bigint "
        "FROM generations LEFT JOIN sizes ON generation = number GROUP BY number"
    )
    return {number: Held(*counts) for number, *counts in rows}


def stored(connection: Connection, generation: int, revisions: Sequence[int]) -> dict[int, Embedding]:
    """The stored vectors of those of `revisions` that have some."""
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
    """Read pgvector's binary form: two numbers of 16 bits, then big-endian float32."""
    return np.frombuffer(sent, dtype=">f4", offset=4).astype(np.float32)


def vector_of(
    connection: Connection, generation: int, id: str, collection: str
) -> tuple[int, Vector | None] | None:
    """A document's revision, and its vector of a generation (of its head), None when there is none.

    None when there is no such document.
    """
    row = connection.execute(
        f"SELECT d.revision, vector_send(vector) FROM documents d LEFT JOIN {table(generation)} v "
        "ON v.revision = d.revision AND passage = 0 WHERE d.collection = ? AND d.id = ?",
        (collection, id),
    ).fetchone()
    return None if row is None else (row[0], None if row[1] is None else _received(row[1]))


def passages(connection: Connection, generation: int, names: Sequence[int]) -> dict[int, tuple[int, int]]:
    """The characters of their texts that the rows of these names stand for, where the text was split."""
    rows = connection.execute(
        f"SELECT name, start_at, end_at FROM unnest(?::bigint[]) AS asked (name) "
        f"JOIN {table(generation)} ON revision = name >> {PASSAGE_BITS} "
        f"AND passage = name & {MAX_PASSAGES - 1} WHERE end_at IS NOT NULL",
        ([*names],),
    )
    return {name: (start, end) for name, start, end in rows}

"""The vectors of generations: a table of each, whose index finds the nearest."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from service.store.ids import MAX_PASSAGES, PASSAGE_BITS, RowNames, row_of
from service.store.postgres.connection import Connection
from service.store.postgres.passing import FEW, Passing
from service.store.values import Embedding, Passage, Vector

PLAIN_DIMENSIONS = 1990  # that fit a page of 8 KiB beside the row's other columns
HALF_DIMENSIONS = 4000  # that pgvector indexes
SPARE = 16  # candidates more than are asked for
MOST_CANDIDATES = 1 << 17
SEARCHED = 100, 1000  # the least and the most of hnsw.ef_search
SCANNED = 200_000  # rows that an index looks at for one query at most

Nearest = tuple[NDArray[np.float32], RowNames]


def table(generation: int) -> str:
    return f"vectors_{generation:d}"


def make(connection: Connection, generation: int, dimension: int) -> None:
    """Make the table and the index of a generation that has none."""
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
    connection.execute(f"CREATE INDEX IF NOT EXISTS {name}_others ON {name} (revision) WHERE passage > 0")
    if dimension <= HALF_DIMENSIONS:
        connection.execute(
            f"CREATE INDEX IF NOT EXISTS {name}_nearest ON {name} "
            f"USING hnsw ((vector::halfvec({dimension:d})) halfvec_ip_ops)"
        )


def text_of(vector: Vector) -> str:
    """A vector as pgvector reads it; each number is the shortest that means the same float32."""
    return orjson.dumps(np.ascontiguousarray(vector, np.float32), option=orjson.OPT_SERIALIZE_NUMPY).decode()


def add(connection: Connection, generation: int, collection: str, rows: Mapping[int, Embedding]) -> None:
    """Store the vectors of documents, by revision, in place of those that are there."""
    remove(connection, generation, rows)
    connection.executemany(
        f"INSERT INTO {table(generation)} "
        "(revision, passage, collection, vector, truncated, start_at, end_at) "
        "VALUES (?, ?, ?, ?::vector, ?, ?, ?)",
        [
            (
                revision,
                number,
                collection,
                text_of(passage.vector),
                embedding.truncated,
                passage.start,
                passage.end,
            )
            for revision, embedding in rows.items()
            for number, passage in enumerate(embedding.passages)
        ],
    )
    for waiting in ("lacking", "skipped"):
        connection.execute(
            f"DELETE FROM {waiting} WHERE generation = ? AND revision = ANY(?)", (generation, [*rows])
        )


def remove(connection: Connection, generation: int, revisions: Iterable[int]) -> None:
    connection.execute(f"DELETE FROM {table(generation)} WHERE revision = ANY(?)", ([*revisions],))


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


def others(connection: Connection, generation: int) -> int:
    """Rows of a generation behind the first ones of their documents."""
    row = connection.execute(f"SELECT count(*) FROM {table(generation)} WHERE passage > 0").fetchone()
    return 0 if row is None else int(row[0])


def nearest(
    connection: Connection,
    generation: int,
    vectors: NDArray[np.float32],
    depth: int,
    allowed: Passing | None,
    collection: str,
    *,
    heads_only: bool,
) -> list[Nearest]:
    """For each vector the `depth` nearest documents: their scores, best first, and their nearest rows.

    Where few documents pass, all of them are compared, and those that tie with the last come along.
    """
    if allowed is not None and allowed.revisions is not None:
        few = True
    else:
        [held] = connection.execute(
            "SELECT coalesce(sum(documents), 0) FROM tally WHERE collection = ?", (collection,)
        ).fetchone() or (0,)
        few = allowed is None and held <= FEW
    where, bound = ("TRUE", []) if allowed is None else allowed.condition("v.revision")
    where += " AND passage = 0" if heads_only else ""
    parameters = [collection, *bound]
    dimension = vectors.shape[1]
    search = _exact if few or dimension > HALF_DIMENSIONS else _by_index
    return [
        search(connection, generation, text_of(vector), dimension, depth, where, parameters)
        for vector in vectors
    ]


def _exact(
    connection: Connection,
    generation: int,
    vector: str,
    dimension: int,
    depth: int,
    where: str,
    parameters: Sequence[Any],
) -> Nearest:
    rows = connection.execute(
        "SELECT revision, passage, score FROM (SELECT DISTINCT ON (revision) revision, passage, score FROM "
        f"(SELECT revision, passage, (-(vector <#> ?::vector({dimension})))::float4 AS score "
        f"FROM {table(generation)} v WHERE collection = ? AND {where}) AS compared "
        "ORDER BY revision, score DESC, passage) AS best ORDER BY score DESC FETCH FIRST ? ROWS WITH TIES",
        (vector, *parameters, depth),
    )
    # Equal scores by revision, as in an index in memory.
    return _arrays(
        sorted(((score, row_of(*row)) for *row, score in rows), key=lambda each: (-each[0], each[1]))
    )


def _by_index(
    connection: Connection,
    generation: int,
    vector: str,
    dimension: int,
    depth: int,
    where: str,
    parameters: Sequence[Any],
) -> Nearest:
    least, most = SEARCHED
    candidates = 2 * depth + SPARE
    connection.execute("SET LOCAL hnsw.iterative_scan = relaxed_order")
    connection.execute(f"SET LOCAL hnsw.max_scan_tuples = {SCANNED}")
    while True:
        connection.execute(f"SET LOCAL hnsw.ef_search = {min(max(candidates, least), most):d}")
        rows = connection.execute(
            f"WITH near AS MATERIALIZED (SELECT revision, passage, vector FROM {table(generation)} v "
            f"WHERE collection = ? AND {where} "
            f"ORDER BY vector::halfvec({dimension}) <#> ?::halfvec({dimension}) LIMIT ?) "
            f"SELECT revision, passage, (-(vector <#> ?::vector({dimension})))::float4 AS score FROM near "
            "ORDER BY score DESC, revision, passage",
            (*parameters, vector, candidates, vector),
        ).fetchall()
        best: dict[int, tuple[float, int]] = {}
        for revision, passage, score in rows:
            best.setdefault(revision, (score, row_of(revision, passage)))
        if len(best) >= depth or len(rows) < candidates or candidates >= MOST_CANDIDATES:
            return _arrays([*best.values()][:depth])
        candidates *= 2


def _arrays(found: Sequence[tuple[float, int]]) -> Nearest:
    return np.array([score for score, _ in found], np.float32), np.array(
        [name for _, name in found], np.int64
    )

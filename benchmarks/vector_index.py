"""Measure the build of PostgreSQL's vector index: `python -m benchmarks.vector_index --data FOLDER`.

    vectors of a SQLite store ─▶ COPY into a new database ─▶ the index, as a swap builds it ─▶ recall@10

FOLDER is the data directory of a service with SQLite that has stopped. Its first generation has the vectors.
The queries are the last stored vectors, which are left out of the database. If `--rows` exceeds the others,
random projections of them follow.
"""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.command import (
    BenchError,
    Verdict,
    build_parser,
    format_table,
    progress,
    report,
    scratch_folder,
)
from benchmarks.processes import postgres
from service.store.postgres import vectors
from service.store.postgres.connection import Connection, Pool, Raw
from service.store.postgres.schema import migrate
from service.store.values import DEFAULT_COLLECTION, Embedding, get_revisions

Vectors = NDArray[np.float32]

QUERIES, K = 1000, 10
COPIED = 10_000  # Vectors of one COPY.
ROUNDING = 1e-6  # Of a cosine.
MAX_SECONDS, MIN_RECALL = 300.0, 0.96
GENERATION = 1
SEARCHED = vectors.SEARCHED[0], 100, 160  # hnsw.ef_search; the service uses the first.


def main() -> None:
    parser = build_parser("vector_index", __doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--memory", default="2GB", help="maintenance_work_mem")
    parser.add_argument("--workers", type=int, default=2, help="max_parallel_maintenance_workers")
    options = parser.parse_args()
    with scratch_folder() as scratch:
        stored = _read(options.data / "simile.db", options.rows + QUERIES)
        if len(stored) <= QUERIES:
            raise BenchError(f"{options.data} has only {len(stored):,} vectors")
        rows, queries = _extend(stored[:-QUERIES], options.rows), stored[-QUERIES:]
        settings = {
            "maintenance_work_mem": options.memory,
            "max_parallel_maintenance_workers": str(options.workers),
        }
        with postgres(scratch, **settings) as url, Pool(url, 2, 0) as pool, pool.connection() as raw:
            copied = _copy(raw, rows)
            progress("building the index")
            began = time.perf_counter()
            vectors.build_index(raw, GENERATION, rows.shape[1])
            built = time.perf_counter() - began
            least = _find_least(rows, queries)
            found = [(searched, *_search(raw, rows, queries, least, searched)) for searched in SEARCHED]
    columns = ["rows", "memory", "workers", "COPY s", "index s"]
    row = [len(rows), options.memory, options.workers, copied, built]
    verdicts = [
        Verdict("seconds of the build", built, MAX_SECONDS),
        Verdict("recall@10", found[0][1], MIN_RECALL, at_least=True),
    ]
    text = [format_table(columns, [row]), format_table(["ef_search", "recall@10", "p50 ms"], found)]
    report("vector_index", {"built": row, "searched": found}, text, verdicts)


def _read(file: Path, count: int) -> Vectors:
    """Return the first vectors of a store, shape (n, d)."""
    with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as store:
        sql = "SELECT vector FROM vectors WHERE generation = ? AND passage = 0 ORDER BY revision LIMIT ?"
        found = [np.frombuffer(vector, "<f4") for (vector,) in store.execute(sql, (GENERATION, count))]
    return np.array(found, np.float32)


def _extend(stored: Vectors, count: int) -> Vectors:
    """Return the stored vectors and random projections of them, of length 1, shape (count, d)."""
    random = np.random.default_rng(0)
    rows = np.empty((count, stored.shape[1]), np.float32)
    rows[: len(stored)] = stored
    for start in range(len(stored), count, len(stored)):
        place = rows[start : start + len(stored)]
        projection = random.standard_normal((stored.shape[1],) * 2, np.float32)
        np.matmul(stored[: len(place)], projection, out=place)
        place /= np.linalg.norm(place, axis=1, keepdims=True)
    return rows


def _copy(raw: Raw, rows: Vectors) -> float:
    """Store vectors in a new database, with revisions from 1, and return the seconds."""
    migrate(raw)
    connection, count = Connection(raw), len(rows)
    connection.execute(
        "INSERT INTO generations (version, fingerprint, form, dimension, state) "
        "VALUES ('v', 'f', 'fp32', ?, 'active')",
        (rows.shape[1],),
    )
    vectors.make(connection, GENERATION, rows.shape[1])
    connection.execute("INSERT INTO tally VALUES (?, ?, 0)", (DEFAULT_COLLECTION, count))
    began = time.perf_counter()
    for start in range(0, count, COPIED):
        some = rows[start : start + COPIED]
        given = {start + at: Embedding(row, truncated=False) for at, row in enumerate(some, start=1)}
        with raw.transaction():
            vectors.insert(connection, GENERATION, DEFAULT_COLLECTION, given)
    raw.execute(f"ANALYZE {vectors.table(GENERATION)}".encode())
    return time.perf_counter() - began


def _find_least(rows: Vectors, queries: Vectors) -> Vectors:
    """Return the K-th best score of each query, shape (n,)."""
    best = np.full((len(queries), K), -1, np.float32)
    for start in range(0, len(rows), COPIED):
        scores = np.concatenate([best, queries @ rows[start : start + COPIED].T], axis=1)
        best = np.partition(scores, -K, axis=1)[:, -K:]
    least: Vectors = best.min(axis=1)
    return least


def _search(raw: Raw, rows: Vectors, queries: Vectors, least: Vectors, searched: int) -> tuple[float, float]:
    """Return recall@10, and the median milliseconds of a search."""
    raw.execute(f"SET hnsw.ef_search = {searched:d}".encode())
    found, times = 0, []
    for query, limit in zip(queries, least, strict=True):
        began = time.perf_counter()
        with raw.transaction():
            [(_, names)] = vectors.nearest(
                Connection(raw), GENERATION, query[None], K, None, DEFAULT_COLLECTION, heads_only=False
            )
        times.append(time.perf_counter() - began)
        found += int(np.count_nonzero(rows[get_revisions(names) - 1] @ query >= limit - ROUNDING))
    return found / K / len(queries), 1000 * float(np.median(times))


if __name__ == "__main__":
    main()

"""The same vectors in the embedded store, in the store in PostgreSQL, and in a table of pgvector's own.

All three are filled by SQL, with metadata and without texts. The stores are asked by what a request runs
(corpus/search.py), the table by one statement.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from zlib import crc32

import numpy as np
import orjson
import psycopg
from numpy.typing import NDArray

from benchmarks.filtered import DECLARED, FILTERS, Data, K, Way, measured, metadata
from benchmarks.places import say
from models.encoder import Encoder
from models.manifest import Manifest
from service.corpus.search import Hits, Query, Search, find
from service.index.index_set import Indexes
from service.index.stored import StoredIndexes
from service.live import Generation
from service.store.postgres import field_indexes, vectors
from service.store.postgres.connection import Connection, Raw
from service.store.postgres.store import PostgresStore
from service.store.sqlite import vectors as embedded_vectors
from service.store.sqlite.schema import DATABASE
from service.store.sqlite.store import SqliteStore
from service.store.values import DEFAULT_COLLECTION, Embedding

# Names of the table's settings, and what is set for each.
TABLE_SETTINGS: dict[str, Sequence[str]] = {
    "pgvector as it comes": (),
    "pgvector, ef_search 100, iterative": ("hnsw.ef_search = 100", "hnsw.iterative_scan = relaxed_order"),
}


@dataclass(frozen=True, slots=True)
class Made:
    """The costs of vectors and index in one place, and its answers."""

    place: str
    load_seconds: float
    index_seconds: float
    size: str
    ways: list[Way]


def embedded(folder: Path, data: Data) -> Made:
    """SQLite, and an index in the memory of the process."""
    say("the embedded store: filling it")
    started = time.perf_counter()
    store = SqliteStore(folder)
    number = store.activate(_manifest(data), "fp32 cpu")
    with store.connection as connection:
        connection.execute("BEGIN")
        for step in data.steps():
            connection.executemany(
                "INSERT INTO documents (revision, collection, id, title, text, metadata) "
                "VALUES (?, ?, ?, '', '', ?)",
                _documents(step),
            )
            blobs = [data.vectors[at].tobytes() for at in step]
            connection.executemany(
                "INSERT INTO vectors VALUES (?, ?, 0, ?, ?, 0, 0, NULL)",
                [(number, at + 1, blob, crc32(blob)) for at, blob in zip(step, blobs, strict=True)],
            )
    store.close()
    store = SqliteStore(folder, ",".join(DECLARED))  # finds that its fields are not looked up yet
    filled = time.perf_counter()
    say("the embedded store: reading and sorting the vectors")
    indexes = Indexes(data.dimension)
    indexes.load(
        [DEFAULT_COLLECTION],
        lambda name: embedded_vectors.read(store.connection, number, data.dimension, [], name),
        0,
    )
    index = indexes.of(DEFAULT_COLLECTION)
    index._merger.wait()  # noqa: SLF001  nothing else tells when it has settled
    settled = time.perf_counter()
    size = f"file {_mb((folder / DATABASE).stat().st_size)}, memory {_mb(index.nbytes)}"
    ways = asyncio.run(_asked(store, number, indexes, data))
    indexes.close()
    store.close()
    return Made("SQLite and FAISS", filled - started, settled - filled, size, ways)


def stored(url: str, data: Data) -> Made:
    """The store in PostgreSQL."""
    say("PostgreSQL: filling it")
    started = time.perf_counter()
    store = PostgresStore(url, DECLARED, connections=8, answer_seconds=0)
    number = store.activate(_manifest(data), "fp32 cpu")
    with Raw.connect(url) as raw:
        connection = Connection(raw)
        vectors.drop_index(connection, number)  # as in a build: it comes after the vectors
        for step in data.steps():
            connection.executemany(
                "INSERT INTO documents (revision, collection, id, title, text, metadata) "
                "OVERRIDING SYSTEM VALUE VALUES (?, ?, ?, '', '', ?)",
                _documents(step),
            )
            rows = {at + 1: Embedding(data.vectors[at], truncated=False) for at in step}
            vectors.insert(connection, number, DEFAULT_COLLECTION, rows)
        connection.execute("INSERT INTO tally VALUES (?, ?, 0)", (DEFAULT_COLLECTION, len(data.vectors)))
    with Raw.connect(url, autocommit=True) as raw:
        field_indexes.keep(raw, DECLARED)
    say("PostgreSQL: building the index")
    filled = time.perf_counter()
    asyncio.run(store.build_index(number))
    built = time.perf_counter()
    _tidy(url)
    size = _size_of(url, f"vectors_{number}", f"vectors_{number}_nearest")
    ways = asyncio.run(_asked(store, number, StoredIndexes(number, data.dimension, store.size), data))
    store.close()
    return Made("PostgreSQL", filled - started, built - filled, size, ways)


def plain(url: str, data: Data) -> list[Made]:
    """A table of vectors and metadata, as a user of pgvector would make it."""
    say("plain pgvector: filling it")
    made = []
    with psycopg.connect(url, autocommit=True) as raw:
        started = time.perf_counter()
        raw.execute(
            f"CREATE TABLE items (id bigint PRIMARY KEY, metadata jsonb, v vector({data.dimension}))".encode()
        )
        for step in data.steps():
            with raw.cursor() as cursor, cursor.copy("COPY items FROM STDIN") as copy:
                for at in step:
                    copy.write_row((at, _json(metadata(at)), _text(data.vectors[at])))
        raw.execute("CREATE INDEX ON items USING gin (metadata jsonb_path_ops)")
        say("plain pgvector: building the index")
        filled = time.perf_counter()
        raw.execute("CREATE INDEX items_v ON items USING hnsw (v vector_ip_ops)")
        built = time.perf_counter()
        _tidy(url)
        size = _size_of(url, "items", "items_v")
        texts = [_text(query) for query in data.queries]

        def ask(at: int, passing: float) -> list[int]:
            where = FILTERS[passing]
            order = f"ORDER BY v <#> %s LIMIT {K}"
            if where is None:
                rows = raw.execute(f"SELECT id, metadata FROM items {order}".encode(), (texts[at],))
            else:
                sql = f"SELECT id, metadata FROM items WHERE metadata @> %s {order}"
                rows = raw.execute(sql.encode(), (_json(where), texts[at]))
            return [row[0] for row in rows]

        for name, settings in TABLE_SETTINGS.items():
            for setting in settings:
                raw.execute(f"SET {setting}".encode())
            made.append(Made(name, filled - started, built - filled, size, measured(ask, data)))
    return made


async def _asked(
    store: SqliteStore | PostgresStore, number: int, indexes: Indexes | StoredIndexes, data: Data
) -> list[Way]:
    """The ways of a store, through what a request runs."""
    loop = asyncio.get_running_loop()
    # No model: queries come as vectors.
    generation = Generation(number, cast("Encoder", None), lambda _number, _encoder: indexes)

    def ask(at: int, passing: float) -> list[int]:
        where = FILTERS[passing]
        search = Search(k=K, where=None if where is None else store.filter(where))

        def work(snapshot: Any) -> list[int]:
            return find(snapshot, generation, [Query(vector=data.queries[at])], search, _numbers, kept=False)

        return asyncio.run_coroutine_threadsafe(store.search(work), loop).result()

    return await asyncio.to_thread(measured, ask, data)


def _numbers(hits: Hits) -> list[int]:
    return [int(hit.document.id[-8:]) for hit in hits[0]]


def _documents(step: range) -> list[tuple[int, str, str, str]]:
    return [(at + 1, DEFAULT_COLLECTION, f"document-{at:08d}", _json(metadata(at))) for at in step]


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _text(vector: NDArray[np.float32]) -> str:
    return orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY).decode()


def _manifest(data: Data) -> Manifest:
    said = SimpleNamespace(version="measured", fingerprint="measured", dimension=data.dimension)
    return cast("Manifest", said)


def _tidy(url: str) -> None:
    """Do what autovacuum soon would."""
    with psycopg.connect(url, autocommit=True) as raw:
        raw.execute("VACUUM ANALYZE")


def _size_of(url: str, name: str, index: str) -> str:
    with psycopg.connect(url) as raw:
        [heap, nearest, indexes] = raw.execute(
            "SELECT pg_table_size(%s), pg_relation_size(%s), pg_indexes_size(%s)", (name, index, name)
        ).fetchone() or (0, 0, 0)
    return f"rows {_mb(heap)}, HNSW {_mb(nearest)}, other indexes {_mb(indexes - nearest)}"


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"

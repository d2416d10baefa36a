"""Measure one service with many tenants: `python -m benchmarks.tenants`.

    a service with all tenants  ┐  searches of one tenant, in turn ─▶ p50 and p99 as ratios
    a service with this tenant  ┘

Each tenant has a key with its own collection. A second table has the same tenants in one shared collection,
by a filter on a field with an index. The encoder is that of benchmarks/replicas.py with no sleep, so texts
cost almost nothing, and the ratios show store and index alone. A real encoder takes the same time in both
services, so it only brings the ratios closer to 1. `--store postgres` gives each service a database.
"""

import argparse
import hashlib
import http.client
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.command import (
    BenchError,
    Verdict,
    build_parser,
    format_table,
    progress,
    report,
    scratch_folder,
)
from benchmarks.machine import memory_mb
from benchmarks.processes import Server, postgres
from benchmarks.replicas import SLEEP_MS
from benchmarks.rounds import p50_p99
from models.publishing.default import publish_named
from models.store import ModelStore

MAX_P50, MAX_P99 = 1.1, 1.5  # Promised ratios for a tenant with its own collection.
WORDS, VOCABULARY = 16, 5000  # Words of a document, and different words.
BATCH = 200  # Documents of a request.
FIRST = 20  # Collections whose creation is timed at each end.
OPERATOR = "operator"
SHARED = "shared"


class Tenant(NamedTuple):
    """A key, and the collection that it uses. `shared` keys have a filter."""

    name: str
    collection: str
    shared: bool

    @property
    def line(self) -> str:
        scope: dict[str, Any] = {"collections": [self.collection]}
        if self.shared:
            scope["filter"] = {"tenant": self.name}
        role = f"{self.name}:write:{hashlib.sha256(self.name.encode()).hexdigest()}"
        return f"{role}:::trusted:{json.dumps(scope)}"


class Client:
    """A kept connection to a service."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)

    def close(self) -> None:
        self.connection.close()

    def send(self, key: str, method: str, path: str, body: object = None) -> tuple[bytes, float]:
        """Send a request; return the body of the response and the milliseconds.

        Raises:
            BenchError: The status is not 200.

        """
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        content = None if body is None else json.dumps(body)
        began = time.perf_counter()
        self.connection.request(method, path, content, headers)
        response = self.connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise BenchError(f"{method} {path} was answered {response.status}: {answer[:500]!r}")
        return answer, (time.perf_counter() - began) * 1000


def main() -> None:
    options = _parse_options()
    own = [Tenant(f"own-{at}", f"own-{at}", shared=False) for at in range(options.tenants)]
    shared = [Tenant(f"shared-{at}", SHARED, shared=True) for at in range(options.tenants)]
    with scratch_folder() as folder, ExitStack() as stack:
        models = ModelStore(folder / "models")
        models.request(publish_named(models, "default").version)
        figures: dict[str, Any] = {"store": options.store, "tenants": options.tenants}
        figures["documents"] = options.documents
        ports = {}
        for name, tenants in (("many", own), ("alone", own[:1]), ("shared", shared)):
            progress(f"filling {name}")
            server = Server(
                folder / name, _settings(folder, name, tenants, options, stack), "benchmarks.replicas"
            )
            with server, closing(Client(server.port)) as client:
                created = _fill(client, tenants, options.documents)
            stack.enter_context(server)
            ports[name] = server.port
            with closing(Client(server.port)) as client:
                metrics, scrape_ms = client.send(OPERATOR, "GET", "/metrics")
            figures[name] = {
                "start s": server.ready_seconds,
                "memory MB": memory_mb(server.pid)["own"],
                "metrics kB": len(metrics) / 1000,
                "metrics ms": scrape_ms,
                "first collections ms": median(created[:FIRST]),
                "last collections ms": median(created[-FIRST:]),
            }
        # Now, because a service closes a connection that is idle for long.
        clients = {name: stack.enter_context(closing(Client(port))) for name, port in ports.items()}
        rows = [*_compare(clients, own[0], shared[0], options)]
    figures["rows"] = rows
    report("tenants", figures, _text(figures), _verdicts(rows))


def _parse_options() -> argparse.Namespace:
    parser = build_parser("tenants", __doc__, quick=True)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--tenants", type=int, metavar="N")
    parser.add_argument("--documents", type=int, metavar="N", help="of each tenant")
    options = parser.parse_args()
    options.tenants = options.tenants or (100 if options.quick else 1000)
    options.documents = options.documents or (50 if options.quick else 200)
    options.rounds, options.searches = (5, 100) if options.quick else (15, 400)
    return options


def _settings(
    folder: Path, name: str, tenants: Sequence[Tenant], options: argparse.Namespace, stack: ExitStack
) -> dict[str, str]:
    keys = folder / f"{name}.keys"
    digest = hashlib.sha256(OPERATOR.encode()).hexdigest()
    keys.write_text("\n".join([f"{OPERATOR}:admin:{digest}", *(tenant.line for tenant in tenants)]))
    settings = {
        "SIMILE_MODELS_DIR": str(folder / "models"),
        "SIMILE_API_KEYS_FILE": str(keys),
        "SIMILE_MAX_COLLECTIONS": str(len(tenants) + 1),
        "SIMILE_INDEXED_FIELDS": "tenant",
        "SIMILE_WORKERS": "1",
        "SIMILE_SINGLE_TEXT_THREADS": "1",
        SLEEP_MS: "0",
    }
    if options.store == "postgres":
        (folder / f"{name}-database").mkdir()
        settings["SIMILE_DATABASE"] = stack.enter_context(postgres(folder / f"{name}-database"))
    return settings


def _fill(client: Client, tenants: Sequence[Tenant], documents: int) -> list[float]:
    """Store the documents of each tenant. Return the milliseconds by which a first write is longer."""
    chance, created = random.Random(0), []
    for tenant in tenants:
        rows = [
            {"id": f"{tenant.name}/{at}", "text": _sentence(chance, WORDS)} for at in range(documents + 2)
        ]
        path = f"/collections/{tenant.collection}/documents"
        first, second = (client.send(tenant.name, "POST", path, {"documents": [row]})[1] for row in rows[:2])
        created.append(first - second)
        for at in range(2, len(rows), BATCH):
            client.send(tenant.name, "POST", path, {"documents": rows[at : at + BATCH]})
    return created


def _sentence(chance: random.Random, count: int) -> str:
    return " ".join(f"word{min(VOCABULARY, int(chance.paretovariate(0.7)))}" for _ in range(count))


def _compare(
    clients: Mapping[str, Client], own: Tenant, shared: Tenant, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield a row for each mode and service: the median over the rounds of its ratios to `alone`."""
    chance = random.Random(1)
    for mode in ("dense", "lexical", "hybrid"):
        progress(f"searching in mode {mode}")
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in clients}
        for turn in range(options.rounds + 1):
            queries = [_sentence(chance, 3) for _ in range(options.searches)]
            times: dict[str, list[float]] = {name: [] for name in clients}
            for query in queries:  # In turn, so that a disturbance meets all services.
                for name, client in clients.items():
                    tenant = shared if name == "shared" else own
                    body = {"queries": [query], "mode": mode, "k": 10}
                    path = f"/collections/{tenant.collection}/search"
                    times[name].append(client.send(tenant.name, "POST", path, body)[1])
            if turn:  # The first round warms up.
                for name, each in times.items():
                    found[name].append(p50_p99(each))
        for name in ("many", "shared"):
            ratios = [
                (one[0] / base[0], one[1] / base[1])
                for one, base in zip(found[name], found["alone"], strict=True)
            ]
            yield {
                "service": name,
                "mode": mode,
                "p50 ms": median(each[0] for each in found[name]),
                "p99 ms": median(each[1] for each in found[name]),
                "p50 / alone": median(each[0] for each in ratios),
                "p99 / alone": median(each[1] for each in ratios),
            }


def _text(figures: Mapping[str, Any]) -> list[str]:
    services = [[name, *figures[name].values()] for name in ("many", "alone", "shared")]
    rows = figures["rows"]
    heading = (
        f"{figures['tenants']:,} tenants with {figures['documents']:,} documents each in {figures['store']}. "
        "many: a collection each. shared: one collection, by a filter. alone: one tenant."
    )
    return [
        heading,
        format_table(["service", *figures["many"]], services),
        format_table([*rows[0]], [[*row.values()] for row in rows]),
    ]


def _verdicts(rows: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    return [
        Verdict(f"{row['mode']} search with a collection each, {part} / alone", row[f"{part} / alone"], bound)
        for row in rows
        if row["service"] == "many"
        for part, bound in (("p50", MAX_P50), ("p99", MAX_P99))
    ]


if __name__ == "__main__":
    main()

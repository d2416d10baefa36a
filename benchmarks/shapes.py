"""Memory while requests of every shape come: RSS after some of them and after very many."""

import random
from typing import Any

from benchmarks.closedloop import ClosedLoop, Load
from benchmarks.machine import memory_mb
from benchmarks.served import Served
from benchmarks.wire import post
from benchmarks.workloads import Workload

FEW, MANY = 2_000, 100_000
CLIENTS = 16
DISTINCT = 8_000  # requests, sent again and again in this order: batches differ each time
MOST_TEXTS = 3
HOURS = 2  # more than it can take


def grown(served: Served, mixture: Workload, many: int = MANY) -> dict[str, Any]:
    """RSS in MiB, and after how many requests. Raises BenchError."""
    chance = random.Random("shapes of the bench")
    requests = [
        post(
            served.dialect.path,
            served.dialect.body(chance.choices(mixture.texts, k=chance.randint(1, MOST_TEXTS))),
        )
        for _ in range(DISTINCT)
    ]
    _send(served, requests, FEW)
    before = memory_mb(served.pid)["now"]
    _send(served, requests, many - FEW)
    after = memory_mb(served.pid)["now"]
    return {"few": FEW, "many": many, "before_mb": before, "after_mb": after}


def _send(served: Served, requests: list[str], count: int) -> None:
    pids, hours = {"server": served.pid}, 3600.0 * HOURS
    ClosedLoop(Load(served.port, requests, CLIENTS, 1, hours, pids, count)).finish()

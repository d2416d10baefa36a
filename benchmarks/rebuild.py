"""Searches while every document is embedded anew: `python -m benchmarks.rebuild --corpus FILE`.

    capacity ─▶ before ─▶ a second version is wanted: during ─▶ it is live: after      one open loop over all
                   └─▶ training (--retrain STEPS) ─▶ during ─▶ after ─▶ rollback

The store is filled with random vectors, which an exact index takes as long over as over true ones. The second
version has the same weights under another name (variants.py), so both cost the same; with `--retrain` it is
trained beside the service, on its documents, and is gone back from at the end. Searches arrive at random, at
a share of what saturated clients got, and a latency counts from the intended arrival.
"""

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from benchmarks.closedloop import saturated
from benchmarks.contestant import CONTENDED
from benchmarks.machine import Watch, Window
from benchmarks.openloop import Flow, OpenLoop, Outcomes
from benchmarks.places import arguments, say, scratch
from benchmarks.results import p50_p99
from benchmarks.server import Server, call, metric, swap, wait_until_live
from benchmarks.tables import Verdict, conclude, table
from benchmarks.variants import drawn, prepared
from benchmarks.wire import get
from benchmarks.workloads import PROJECT
from models.store import Store
from training.errors import TrainingError

ADDED_MS = 100.0  # what the project promises: p99 during the re-embedding less p99 before
SHARE = 0.3  # of the capacity
CLIENTS = 16  # that saturate it
QUERIES = 2000
QUERY_CHARACTERS = 80
CONNECTIONS, MOST_CONNECTIONS = 16, 512
LONGEST_SECONDS = 3 * 3600.0
SETTLE_SECONDS = 2.0


# Seconds of what the bench itself ends: the capacity, the time before and the time after.
FULL, QUICK = (20.0, 120.0, 20.0), (4.0, 8.0, 3.0)
QUICK_DOCUMENTS = 1500


class Phases:
    """Phases of the load, and the share of the processors that other programs used meanwhile."""

    def __init__(self, pids: dict[str, int]) -> None:
        self.spans: dict[str, tuple[float, float]] = {}  # moments of time.monotonic()
        self.windows: dict[str, Window] = {}
        self._pids = pids

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        say(name)
        watch, began = Watch(self._pids), time.monotonic()
        yield
        self.spans[name] = (began, time.monotonic())
        self.windows[name] = watch.window()


def main() -> None:
    options = _options()
    with scratch(TrainingError, subprocess.CalledProcessError) as folder:
        texts = drawn(options.corpus, options.documents)
        data_dir = folder / "data"
        second = prepared(data_dir, texts, options.documents)
        with Server(data_dir) as server:
            new = NewVersion(server.port, data_dir / "models", second, options.retrain)
            capacity, phases, outcomes = measure(server, texts, new, QUICK if options.quick else FULL)
            paused = metric(server.port, "simile_swap_pause_seconds_sum")
    report(options.documents, len(texts), capacity, phases, outcomes, paused)


def _options() -> argparse.Namespace:
    parser = arguments("rebuild", __doc__, corpus=True, quick=True)
    parser.add_argument("--documents", type=int, help=f"100000; {QUICK_DOCUMENTS} with --quick")
    parser.add_argument("--retrain", type=int, metavar="STEPS", help="train the second version, then go back")
    options = parser.parse_args()
    options.documents = options.documents or (QUICK_DOCUMENTS if options.quick else 100_000)
    return options


class NewVersion(NamedTuple):
    """The version that comes to live: published beforehand, or trained meanwhile in `steps`."""

    port: int
    models_dir: Path
    published: str
    steps: int | None

    def train(self) -> None:
        """Retrain on the service's documents; the new version is wanted at the end."""
        address = f"http://127.0.0.1:{self.port}"
        command = ["training", "retrain", "--from-service", address, "--gate", "off"]
        subprocess.run(
            [sys.executable, "-m", *command, "--steps", str(self.steps)],
            cwd=PROJECT,
            env=os.environ | {"SIMILE_MODELS_DIR": str(self.models_dir)},
            check=True,
        )

    def come_to_live(self) -> None:
        trained = None if self.steps is None else Store(self.models_dir).wanted()
        swap(self.port, self.models_dir, trained or self.published, LONGEST_SECONDS)

    def roll_back(self) -> None:
        back = call(self.port, "POST", "/models/rollback")["wanted"]
        wait_until_live(self.models_dir, back, LONGEST_SECONDS)
        time.sleep(SETTLE_SECONDS)


def measure(
    server: Server, texts: list[str], new: NewVersion, lengths: tuple[float, float, float]
) -> tuple[float, Phases, Outcomes]:
    """The capacity in searches per second, and what became of every search of the open loop."""
    queries = random.Random(1).sample(texts, min(QUERIES, len(texts)))
    requests = [get(f"/search?k=10&q={quote(text[:QUERY_CHARACTERS])}") for text in queries]
    capacity_seconds, before, after = lengths
    say("search capacity")
    capacity = saturated(server.port, server.pid, requests, CLIENTS, capacity_seconds)
    time.sleep(SETTLE_SECONDS)
    flow = OpenLoop(
        Flow(server.port, requests, SHARE * capacity, LONGEST_SECONDS, CONNECTIONS, MOST_CONNECTIONS)
    )
    phases = Phases({"server": server.pid, "load": flow.pid, "bench": os.getpid()})
    time.sleep(SETTLE_SECONDS)
    with phases.phase("before"):
        time.sleep(before)
    if new.steps is not None:
        with phases.phase("training"):
            new.train()
    with phases.phase("during"):
        new.come_to_live()
    with phases.phase("after"):
        time.sleep(after)
    if new.steps is not None:
        with phases.phase("rollback"):
            new.roll_back()
    return capacity, phases, flow.finish()


def report(
    stored: int, distinct: int, capacity: float, phases: Phases, outcomes: Outcomes, paused: float
) -> None:
    found = {name: _figures(phases, outcomes, name) for name in phases.spans}
    rate = stored / found["during"]["seconds"]
    columns = ("phase", "s", "searches", "p50 ms", "p99 ms", "longest ms", "failed", "others' share")
    rows = [
        [name, *list(figures.values())[:-1], f"{figures['foreign']:.0%}"] for name, figures in found.items()
    ]
    late = float(np.quantile(outcomes.late_ms, 0.99))
    said = (
        f"{stored:,} documents ({distinct:,} distinct texts), embedded anew at {rate:.0f} a second, the "
        f"opening and the swap included. Capacity {capacity:.1f} searches/s ({CLIENTS} clients without "
        f"pause); offered {SHARE:.0%} of it, at random. The generator's own lateness: p99 {late:.1f} ms. "
        f"Swaps paused the writes for {1000 * paused:.1f} ms in all."
    )
    contended = max(figures["foreign"] for figures in found.values()) > CONTENDED
    verdicts = [
        Verdict(
            "p99 of a search during the re-embedding, ms above before",
            found["during"]["p99_ms"] - found["before"]["p99_ms"],
            ADDED_MS,
            False,
            contended,
        ),
        Verdict(
            "searches that failed", sum(figures["failed"] for figures in found.values()), 0, False, contended
        ),
    ]
    result = {
        "documents": stored,
        "distinct_texts": distinct,
        "capacity_searches_per_second": capacity,
        "offered_searches_per_second": SHARE * capacity,
        "documents_per_second": rate,
        "generator_late_p99_ms": late,
        "writes_paused_seconds": paused,
        "phases": found,
    }
    conclude("rebuild", result, [said, table(columns, rows)], verdicts)


def _figures(phases: Phases, outcomes: Outcomes, name: str) -> dict[str, Any]:
    inside = outcomes.between(*phases.spans[name])
    answered = inside.milliseconds[inside.status == 200]
    if not len(answered):
        raise SystemExit(f"No search was answered in the phase {name!r}.")
    p50, p99 = p50_p99(answered)
    return {
        "seconds": phases.windows[name].seconds,
        "searches": len(inside.status),
        "p50_ms": p50,
        "p99_ms": p99,
        "longest_ms": float(answered.max()),
        "failed": int((inside.status != 200).sum()),
        "foreign": phases.windows[name].foreign,
    }


if __name__ == "__main__":
    main()

"""Measure searches while all documents are embedded again: `python -m benchmarks.rebuild --corpus FILE`.

    capacity ─▶ before ─▶ a second version is requested: during ─▶ it is active: after
                   └─▶ training (--retrain STEPS) ─▶ during ─▶ after ─▶ rollback

The second version has the same weights as the first, so both are equally fast. With `--retrain`, the
benchmark instead trains the second version on the documents while the service runs, and rolls back at the
end. Searches arrive at random times during all phases, at a share of the capacity. The latency of a search
counts from the intended arrival.
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
from typing import Any
from urllib.parse import quote

import numpy as np

from benchmarks.command import PROJECT, Verdict, build_parser, format_table, progress, report, scratch_folder
from benchmarks.documents import draw_texts, publish_variants, store_documents
from benchmarks.load import Answers, Generator, Load, get_request, measure_capacity
from benchmarks.machine import Watch, Window
from benchmarks.processes import Server, call, metric, swap, wait_until_active
from benchmarks.rounds import CONTENDED, p50_p99
from models.store import ModelStore

ADDED_MS = 100.0  # promise: p99 during the rebuild minus p99 before
SHARE = 0.3  # load as a share of the capacity
CLIENTS = 16  # clients that measure the capacity
QUERIES = 2000
QUERY_CHARACTERS = 80
CONNECTIONS, MAX_CONNECTIONS = 16, 512
MAX_SECONDS = 3 * 3600.0
SETTLE_SECONDS = 2.0

# Seconds of the capacity measurement, the phase before and the phase after.
FULL, QUICK = (20.0, 120.0, 20.0), (4.0, 8.0, 3.0)
QUICK_DOCUMENTS = 1500


Phases = dict[str, tuple[float, Window]]  # the begin and the window of each phase


def main() -> None:
    options = _parse_options()
    with scratch_folder(subprocess.CalledProcessError) as folder:
        texts = draw_texts(options.corpus, options.documents)
        data_dir = folder / "data"
        with Server(data_dir) as server:
            progress(f"storing {options.documents} documents and publishing a second version")
            store_documents(server.port, texts, options.documents)
            [second] = publish_variants(data_dir / "models", 1)
            capacity, phases, outcomes = measure(server, texts, data_dir / "models", second, options)
            paused = metric(server.port, "simile_swap_pause_seconds_sum")
    _report(options.documents, len(texts), capacity, phases, outcomes, paused)


def _parse_options() -> argparse.Namespace:
    parser = build_parser("rebuild", __doc__, corpus=True, quick=True)
    parser.add_argument("--documents", type=int, help=f"100000; {QUICK_DOCUMENTS} with --quick")
    parser.add_argument(
        "--retrain", type=int, metavar="STEPS", help="train the second version, then roll back"
    )
    options = parser.parse_args()
    options.documents = options.documents or (QUICK_DOCUMENTS if options.quick else 100_000)
    return options


def train(port: int, models_dir: Path, steps: int) -> None:
    """Train a new version on the documents of the service. The training then requests this version."""
    command = ["training", "retrain", "--from-service", f"http://127.0.0.1:{port}", "--gate", "off"]
    subprocess.run(
        [sys.executable, "-m", *command, "--steps", str(steps)],
        cwd=PROJECT,
        env=os.environ | {"SIMILE_MODELS_DIR": str(models_dir)},
        check=True,
    )


def measure(
    server: Server, texts: list[str], models_dir: Path, published: str, options: argparse.Namespace
) -> tuple[float, Phases, Answers]:
    """Return the capacity in searches per second, the phases, and the outcome of each search.

    Swaps to the version `published`, or with `--retrain` to a version that it trains first.
    """
    queries = random.Random(1).sample(texts, min(QUERIES, len(texts)))
    requests = [get_request(f"/search?k=10&q={quote(text[:QUERY_CHARACTERS])}") for text in queries]
    capacity_seconds, before, after = QUICK if options.quick else FULL
    progress("search capacity")
    capacity = measure_capacity(server.port, server.pid, requests, CLIENTS, capacity_seconds)
    time.sleep(SETTLE_SECONDS)
    rate = SHARE * capacity
    flow = Generator(Load(server.port, requests, CONNECTIONS, MAX_SECONDS, rate, MAX_CONNECTIONS))
    pids = {"server": server.pid, "load": flow.pid, "bench": os.getpid()}
    phases: Phases = {}

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        progress(name)
        watch = Watch(pids)
        yield
        phases[name] = watch.began, watch.window()

    time.sleep(SETTLE_SECONDS)
    with phase("before"):
        time.sleep(before)
    version = published
    if options.retrain is not None:
        with phase("training"):
            train(server.port, models_dir, options.retrain)
        version = ModelStore(models_dir).requested() or published
    with phase("during"):
        swap(server.port, models_dir, version, MAX_SECONDS)
    with phase("after"):
        time.sleep(after)
    if options.retrain is not None:
        with phase("rollback"):
            previous = call(server.port, "POST", "/models/rollback")["wanted"]
            wait_until_active(models_dir, previous, MAX_SECONDS)
            time.sleep(SETTLE_SECONDS)
    return capacity, phases, flow.finish()


def _report(
    stored: int, distinct: int, capacity: float, phases: Phases, outcomes: Answers, paused: float
) -> None:
    found = {name: _figures(name, *phase, outcomes) for name, phase in phases.items()}
    rate = stored / found["during"]["seconds"]
    columns = ("phase", "s", "searches", "p50 ms", "p99 ms", "longest ms", "failed", "foreign share")
    rows = [
        [name, *list(figures.values())[:-1], f"{figures['foreign']:.0%}"] for name, figures in found.items()
    ]
    late = float(np.quantile(outcomes.late_ms, 0.99))
    notes = (
        f"{stored:,} documents ({distinct:,} distinct texts), embedded again at {rate:.0f} a second, "
        f"including opening and swap. Capacity {capacity:.1f} searches/s ({CLIENTS} clients without "
        f"pause); offered {SHARE:.0%} of it, at random. Delay of the generator: p99 {late:.1f} ms. "
        f"Swaps paused the writes for {1000 * paused:.1f} ms in total."
    )
    contended = max(figures["foreign"] for figures in found.values()) > CONTENDED
    added = found["during"]["p99_ms"] - found["before"]["p99_ms"]
    failed = sum(figures["failed"] for figures in found.values())
    verdicts = [
        Verdict("p99 of a search during the rebuild, ms more than before", added, ADDED_MS, False, contended),
        Verdict("searches that failed", failed, 0, False, contended),
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
    report("rebuild", result, [format_table(columns, rows), notes], verdicts)


def _figures(name: str, began: float, window: Window, outcomes: Answers) -> dict[str, Any]:
    inside = outcomes.between(began, began + window.seconds)
    answered = inside.milliseconds[inside.status == 200]
    if not len(answered):
        raise SystemExit(f"No search was answered in the phase {name!r}.")
    p50, p99 = p50_p99(answered)
    return {
        "seconds": window.seconds,
        "searches": len(inside.status),
        "p50_ms": p50,
        "p99_ms": p99,
        "longest_ms": float(answered.max()),
        "failed": int((inside.status != 200).sum()),
        "foreign": window.foreign,
    }


if __name__ == "__main__":
    main()

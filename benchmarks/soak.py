"""Half an hour of every kind of request: `python -m benchmarks.soak`.

    a third: warm-up ─▶ idle sample ─▶ two thirds ─▶ idle sample        a swap every two minutes throughout

Clients embed, compare, search, write, update, delete, send wrong requests and disconnect (traffic.py).
Meanwhile three versions are activated in turn. Each is dropped before its next turn, so each swap embeds all
documents.

For an idle sample, all clients stop and the grace period after the last swap ends. The second sample must not
hold more than the first. In between, one or two generations are in memory, so medians and trends say nothing.
The maxima of the second and the last third are compared instead.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import cycle
from pathlib import Path

from benchmarks import workloads
from benchmarks.command import Verdict, build_parser, format_table, progress, report, scratch_folder
from benchmarks.documents import publish_variants
from benchmarks.machine import Sample, Sampler, take_sample, thirds
from benchmarks.processes import Server, call, metric, swap
from benchmarks.traffic import Traffic

GROWTH = 0.05  # of idle memory and of maximum memory
MORE_THREADS = 4  # pools of a bounded size may start a thread at any time
FILES_OF_A_THREAD = 2  # a reading thread opens the store's database and its log

VERSIONS = 3
SAMPLE_SECONDS = 2.0
LINGER_SECONDS = 6.0  # an unused generation is closed after five
MAX_SWAP_SECONDS = 600.0
IMPORT_DOCUMENTS = 200
TEXTS = 4000


def main() -> None:
    options = _parse_options()
    settings = {"SIMILE_GRACE_SECONDS": str(options.swap_seconds / 4)}
    with scratch_folder() as folder, Server(folder / "data", settings) as server:
        soaked = soak(server, folder / "data" / "models", options)
    _report(options, *soaked)


def _parse_options() -> argparse.Namespace:
    parser = build_parser("soak", __doc__, quick=True)
    parser.add_argument("--minutes", type=float, help="of traffic (30; 1 with --quick)")
    parser.add_argument("--swap-seconds", type=float, help="between two swaps (120; 6 with --quick)")
    parser.add_argument("--documents", type=int, help="stored beforehand (2000; 200 with --quick)")
    parser.add_argument("--clients", type=int, default=8)
    options = parser.parse_args()
    options.minutes = options.minutes or (1.0 if options.quick else 30.0)
    options.swap_seconds = options.swap_seconds or (6.0 if options.quick else 120.0)
    options.documents = options.documents or (200 if options.quick else 2000)
    return options


def soak(
    server: Server, models_dir: Path, options: argparse.Namespace
) -> tuple[list[Sample], list[Sample], list[float], Traffic]:
    """Return all samples, the two idle samples, the seconds of each swap, and the traffic."""
    first = server.info()["model_version"]
    progress(f"publishing {VERSIONS - 1} more versions and storing {options.documents} documents")
    others = publish_variants(models_dir, VERSIONS - 1)
    texts = workloads.mixture(server.tokenizer(), workloads.corpus(), TEXTS).texts
    for begin in range(0, options.documents, IMPORT_DOCUMENTS):
        rows = range(begin, min(options.documents, begin + IMPORT_DOCUMENTS))
        stored = [
            {"id": f"stored-{row}", "text": texts[row % len(texts)], "metadata": {"kind": row % 4}}
            for row in rows
        ]
        call(server.port, "POST", "/documents", {"documents": stored})
    versions, swap_seconds = cycle([*others, first]), list[float]()
    traffic = Traffic(server.port, texts, options.clients)
    sampler = Sampler(server.pid, SAMPLE_SECONDS)
    idle = []
    third = options.minutes * 60 / 3
    for seconds in (third, 2 * third):
        progress(f"{seconds:.0f} s of traffic")
        traffic.resume()
        sampler.on.set()
        swap_seconds += swap_repeatedly(server, models_dir, versions, options.swap_seconds, seconds)
        sampler.on.clear()
        traffic.pause()
        progress("an idle sample")
        time.sleep(options.swap_seconds / 4 + LINGER_SECONDS)
        idle.append(take_sample(server.pid, int(metric(server.port, "simile_tasks"))))
    traffic.stop()
    return sampler.stop(), idle, swap_seconds, traffic


def swap_repeatedly(
    server: Server, models_dir: Path, versions: Iterator[str], every_seconds: float, seconds: float
) -> Iterator[float]:
    """Swap every `every_seconds` for `seconds`, and yield the seconds of each swap. Raises BenchError."""
    until = time.monotonic() + seconds
    while time.monotonic() + every_seconds < until:
        time.sleep(every_seconds)
        yield swap(server.port, models_dir, next(versions), MAX_SWAP_SECONDS)
    time.sleep(max(0.0, until - time.monotonic()))


def _report(
    options: argparse.Namespace,
    samples: list[Sample],
    idle: list[Sample],
    swaps: list[float],
    traffic: Traffic,
) -> None:
    before, after = idle
    second, last = (max(sample.rss_mb for sample in part) for part in thirds(samples)[1:])
    threads = after.threads - before.threads
    files = after.files - before.files - FILES_OF_A_THREAD * max(0, threads)
    verdicts = [
        Verdict("idle memory: last sample over first", after.rss_mb / before.rss_mb, 1 + GROWTH),
        Verdict("maximum memory: last third over second", last / second, 1 + GROWTH),
        Verdict("more open files than in the first idle sample, without those of new threads", files, 0),
        Verdict("more threads than in the first idle sample", threads, MORE_THREADS),
        Verdict("unexpected answers", traffic.unexpected, 0),
        Verdict("more tasks than in the first idle sample", after.tasks - before.tasks, 0),
    ]
    result = {
        "minutes": options.minutes,
        "clients": options.clients,
        "documents": options.documents,
        "swap_seconds": swaps,
        "idle": [asdict(one) for one in idle],
        "answers": {name: dict(counted) for name, counted in sorted(traffic.answers.items())},
        "slowest_ms": dict(traffic.slowest_ms),
        "unexpected": traffic.complaints,
        "samples": [asdict(sample) for sample in samples],
    }
    duration = f", {statistics.median(swaps):.1f} s each (median)" if swaps else ""
    notes = (
        f"{options.minutes:g} minutes, {options.clients} clients, {options.documents:,} documents "
        f"stored beforehand, {len(swaps)} swaps{duration}. Each swap embeds all documents again."
    )
    text = [_memory_table(samples, idle), _answers_table(traffic), *traffic.complaints, notes]
    report("soak", result, text, verdicts)


def _memory_table(samples: list[Sample], idle: list[Sample]) -> str:
    rows: list[list[object]] = []
    for name, part in zip(("first", "second", "last"), thirds(samples), strict=True):
        memory = [sample.rss_mb for sample in part]
        files, threads = max(sample.files for sample in part), max(sample.threads for sample in part)
        row = [f"{name} third", statistics.median(memory), min(memory), max(memory), files, threads, ""]
        rows.append(row)
    for name, one in zip(("first", "last"), idle, strict=True):
        rows.append([f"{name} idle sample", one.rss_mb, "", "", one.files, one.threads, one.tasks])
    return format_table(("", "RSS MiB", "least", "most", "max files", "max threads", "tasks"), rows)


def _answers_table(traffic: Traffic) -> str:
    rows = [
        [
            kind,
            counted.total(),
            ", ".join(f"{status}: {count:,}" for status, count in sorted(counted.items())),
            traffic.slowest_ms[kind],
        ]
        for kind, counted in sorted(traffic.answers.items())
    ]
    return format_table(("request", "count", "answered", "slowest ms"), rows)


if __name__ == "__main__":
    main()

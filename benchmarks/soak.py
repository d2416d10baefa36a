"""Half an hour of everything: `python -m benchmarks.soak`.

    a third: warming up ─▶ quiet look ─▶ two thirds ─▶ quiet look        a swap every two minutes all along

Clients embed, compare, search, write, update, delete, ask wrongly and hang up in the middle (asks.py,
traffic.py), while three versions take turns: one is dropped before it comes again, so each swap embeds every
document. In a quiet look nobody asks, the grace after the last swap is over, and what the process still holds
is counted: at the second look no more than at the first. In between one generation is in memory or two, so
neither a median nor a line through all samples says anything: what it holds at most is compared.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import cycle
from pathlib import Path

from benchmarks import workloads
from benchmarks.growth import Sample, Sampler, look, thirds
from benchmarks.places import arguments, say, scratch
from benchmarks.server import Server, call, metric, swap
from benchmarks.tables import Verdict, conclude, table
from benchmarks.traffic import Traffic
from benchmarks.variants import publish_variants

GROWTH = 0.05  # of memory at rest, and of the most that is held
MORE_THREADS = 4  # pools of a bounded size start a thread when the others are busy, at any time
FILES_OF_A_THREAD = 2  # a reading thread opens the store for itself: the database and its log

VERSIONS = 3
SAMPLE_SECONDS = 2.0
LINGER_SECONDS = 6.0  # a generation that nobody goes back to is closed after five
LONGEST_SWAP_SECONDS = 600.0
IMPORT_DOCUMENTS = 200
TEXTS = 4000


def main() -> None:
    options = _options()
    settings = {"SIMILE_GRACE_SECONDS": str(options.swap_seconds / 4)}
    with scratch() as folder, Server(folder / "data", settings) as server:
        soaked = soak(server, folder / "data" / "models", options)
    report(options, *soaked)


def _options() -> argparse.Namespace:
    parser = arguments("soak", __doc__, quick=True)
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
    """All samples, the two at rest, the seconds of each swap, and the traffic."""
    first = server.info()["model_version"]
    say(f"publishing {VERSIONS - 1} more versions and storing {options.documents} documents")
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
    looks = []
    third = options.minutes * 60 / 3
    for seconds in (third, 2 * third):
        say(f"{seconds:.0f} s of traffic")
        traffic.go_on()
        sampler.on.set()
        swap_seconds += take_turns(server, models_dir, versions, options.swap_seconds, seconds)
        sampler.on.clear()
        traffic.pause()
        say("a quiet look")
        time.sleep(options.swap_seconds / 4 + LINGER_SECONDS)
        looks.append(look(server.pid, int(metric(server.port, "simile_tasks"))))
    traffic.stop()
    return sampler.stop(), looks, swap_seconds, traffic


def take_turns(
    server: Server, models_dir: Path, versions: Iterator[str], every_seconds: float, seconds: float
) -> Iterator[float]:
    """A swap every so often: the seconds that each took. Raises BenchError."""
    until = time.monotonic() + seconds
    while time.monotonic() + every_seconds < until:
        time.sleep(every_seconds)
        yield swap(server.port, models_dir, next(versions), LONGEST_SWAP_SECONDS)
    time.sleep(max(0.0, until - time.monotonic()))


def report(
    options: argparse.Namespace,
    samples: list[Sample],
    looks: list[Sample],
    swaps: list[float],
    traffic: Traffic,
) -> None:
    before, after = looks
    second, last = (max(sample.rss_mb for sample in part) for part in thirds(samples)[1:])
    threads = after.threads - before.threads
    files = after.files - before.files - FILES_OF_A_THREAD * max(0, threads)
    verdicts = [
        Verdict("memory at rest: last quiet look over first", after.rss_mb / before.rss_mb, 1 + GROWTH),
        Verdict("memory at most: last third over second", last / second, 1 + GROWTH),
        Verdict("files more than at the first look, those of new threads aside", files, 0),
        Verdict("threads more than at the first look", threads, MORE_THREADS),
        Verdict("unexpected answers", traffic.unexpected, 0),
        Verdict("tasks more than at the first look", after.tasks - before.tasks, 0),
    ]
    result = {
        "minutes": options.minutes,
        "clients": options.clients,
        "documents": options.documents,
        "swap_seconds": swaps,
        "looks": [asdict(one) for one in looks],
        "answers": {name: dict(counted) for name, counted in sorted(traffic.answers.items())},
        "slowest_ms": dict(traffic.slowest_ms),
        "unexpected": traffic.told,
        "samples": [asdict(sample) for sample in samples],
    }
    took = f", {statistics.median(swaps):.1f} s each (median)" if swaps else ""
    told = (
        f"{options.minutes:g} minutes, {options.clients} clients, {options.documents:,} documents "
        f"stored beforehand; {len(swaps)} swaps{took}, each with every document embedded anew."
    )
    text = [_held_table(samples, looks), _answers_table(traffic), *traffic.told, told]
    conclude("soak", result, text, verdicts)


def _held_table(samples: list[Sample], looks: list[Sample]) -> str:
    rows: list[list[object]] = []
    for name, part in zip(("first", "second", "last"), thirds(samples), strict=True):
        memory = [sample.rss_mb for sample in part]
        files, threads = max(sample.files for sample in part), max(sample.threads for sample in part)
        rows.append(
            [f"{name} third", statistics.median(memory), min(memory), max(memory), files, threads, ""]
        )
    for name, held in zip(("first", "last"), looks, strict=True):
        rows.append([f"{name} quiet look", held.rss_mb, "", "", held.files, held.threads, held.tasks])
    return table(("", "RSS MiB", "least", "most", "files, at most", "threads, at most", "tasks"), rows)


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
    return table(("request", "count", "answered", "slowest ms"), rows)


if __name__ == "__main__":
    main()

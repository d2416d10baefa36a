"""`make bench`: compare the speed of the service, the raw engine and other projects' engines.

    publish ─▶ start contestants ─▶ compare vectors ─▶ rounds ─▶ stop ─▶ start again ─▶ report

All files are in a temporary folder of the checkout, on the same disk. Run the benchmark on a quiet machine.
The CPU time of other processes is measured as well. Measurements with much foreign load are repeated.

Each promise is a bound on a ratio within one run, and `judge` checks it. Promises that need a missing peer
are not judged.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import command, machine, peer_engines, served, workloads
from benchmarks.command import Verdict, format_table, progress
from benchmarks.machine import Watch
from benchmarks.peer_engines import INFINITY_NAME as PEER
from benchmarks.peer_engines import REFERENCE
from benchmarks.processes import Server
from benchmarks.rounds import (
    CONTENDED,
    Cell,
    Embedder,
    Job,
    Results,
    Scenario,
    Spread,
    Turns,
    compare_vectors,
    sample,
)
from benchmarks.served import DEFAULT, our_name, raw_name
from benchmarks.workloads import Workload

STARTS = 3

# Clients x texts of a request.
MANY, BULK, SMALL_BULK, ONE, LONG = ("64 x 1", "4 x 32", "8 x 1", "1 x 1", "mix, 32 x 1")
SENTENCES_AT_ONCE, MIX_AT_ONCE = "at once", "mix, at once"


class Floor(NamedTuple):
    """A promise: a lower bound on our texts per second divided by another contestant's texts per second."""

    precision: str
    load: str
    other: str
    least: float
    other_load: str = ""  # load of the other contestant; empty for the same load


FLOORS = (
    Floor("fp32", MANY, PEER, 1.85),
    Floor("fp32", BULK, PEER, 1.7),
    Floor("fp32", LONG, PEER, 4.5),
    Floor("fp32", MANY, REFERENCE, 1.7, SENTENCES_AT_ONCE),
    Floor("bf16", MANY, PEER, 2.9),
    Floor("bf16", BULK, PEER, 2.6),
    Floor("bf16", LONG, PEER, 6.0),
    Floor("int8", MANY, PEER, 3.0),
    Floor("fp32", MANY, raw_name("fp32"), 0.78, SENTENCES_AT_ONCE),
    Floor("fp32", BULK, raw_name("fp32"), 0.85, SENTENCES_AT_ONCE),
    Floor("fp32", LONG, raw_name("fp32"), 0.80, MIX_AT_ONCE),
    Floor("bf16", MANY, raw_name("bf16"), 0.65, SENTENCES_AT_ONCE),
    Floor("bf16", BULK, raw_name("bf16"), 0.70, SENTENCES_AT_ONCE),
    Floor("int8", MANY, raw_name("int8"), 0.65, SENTENCES_AT_ONCE),
    Floor("int8", BULK, raw_name("int8"), 0.70, SENTENCES_AT_ONCE),
)
TAIL = 2.0  # p99 over p50 with 64 clients and short texts
SECOND_START_SECONDS = 2.0


def main() -> None:
    options = _parse_options()
    if not Path("/proc/stat").exists():
        sys.exit("make bench reads /proc, so it needs Linux.")
    with command.scratch_folder() as folder:
        results, figures = run(options, folder)
        verdicts = judge(results, figures)
        text = [main_table(results, figures), _notes(figures)]
        command.report("latest", figures | {"cells": results.to_json()}, text, verdicts)
    if options.check and not all(verdict.passed for verdict in verdicts):
        sys.exit(1)


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench BENCH_ARGS=…", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repeats", type=int, help="clean repeats (5; 1 with --quick)")
    parser.add_argument("--quick", action="store_true", help="fewer texts and repeats: a first impression")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a promise is not kept")
    parser.add_argument(
        "--forms", default="fp32", help="precisions: fp32,bf16,int8 (fp32 is always measured)"
    )
    parser.add_argument("--peers", type=Path, help="the folder with the peers' environments (.venv-peers)")
    options = parser.parse_args()
    options.repeats = options.repeats or (1 if options.quick else 5)
    options.peers = options.peers or command.PROJECT / ".venv-peers"
    return options


def run(options: argparse.Namespace, folder: Path) -> tuple[Results, dict[str, Any]]:
    """Run the whole benchmark with its files in `folder`; return the measurements and the other figures."""
    share = 4 if options.quick else 1
    with ExitStack() as stack:
        ours, missing = served.open_precisions(stack, options.forms.split(","), folder)
        first, engine = ours[0], ours[0].raw
        assert engine is not None  # every machine has a raw engine in fp32
        raws = [one.raw for one in ours if one.raw]
        source = workloads.corpus()
        sentences = workloads.sentences(engine.tokenizer, source, 4096 // share)
        mixture = workloads.mixture(engine.tokenizer, source, 2048 // share)
        peers = peer_engines.open_peers(stack, options.peers, first.version, folder)
        embedders: list[Embedder] = [*raws, *(one.served for one in ours)]
        embedders += [*peers.servers, *peers.libraries]
        texts = sample([sentences, mixture])
        reference, cosines = compare_vectors(embedders, REFERENCE, engine.name, texts)
        progress("choosing the raw engine's batch size")
        for raw in raws:
            raw.choose_budget(sentences)
            raw.choose_budget(mixture)
        turns = Turns(_jobs(ours, peers, sentences, mixture, share))
        turns.run(options.repeats)
        about = {one.name: one.about() for one in embedders if one.name not in turns.broken}
    return Results(turns.cells), {
        "quick": options.quick,
        "model": first.info["model_version"],
        "texts": source.source,
        "workloads": [given.summary() for given in (sentences, mixture)],
        "about": about,
        "missing": missing | peers.missing | turns.broken,
        "reference": reference,
        "cosines": {
            name: {"mean": float(each.mean()), "least": float(each.min())} for name, each in cosines.items()
        },
        "starts": _measure_starts(first.data_dir),
    }


def _jobs(
    ours: list[served.OpenPrecision],
    peers: peer_engines.Peers,
    sentences: Workload,
    mixture: Workload,
    share: int,
) -> list[Job]:
    """Return the jobs of one round: first those with sentences, then those with the mix of lengths.

    `share` divides the seconds of each measurement.
    """
    loads = [
        Scenario(MANY, sentences, 64, 1, 4 / share),
        Scenario(BULK, sentences, 4, 32, 4 / share),
        Scenario(SMALL_BULK, sentences, 8, 1, 3 / share),
        Scenario(ONE, sentences, 1, 1, 3 / share),
    ]
    long = Scenario(LONG, mixture, 32, 1, 6 / share)
    at_once = Scenario(SENTENCES_AT_ONCE, sentences, seconds=4 / share)
    long_at_once = Scenario(MIX_AT_ONCE, mixture, seconds=5 / share)
    jobs: list[Job] = []
    servers = [*((one.served, True) for one in ours), *((one, False) for one in peers.servers)]
    for whole, each in ((at_once, loads), (long_at_once, [long])):
        jobs += [Job(one.raw, whole, True) for one in ours if one.raw]
        jobs += [Job(server, load, essential) for server, essential in servers for load in each]
        jobs += [Job(library, whole, False) for library in peers.libraries]
    return jobs


def _measure_starts(data_dir: Path) -> dict[str, Any]:
    """Measure the seconds from start to ready of a service whose model version is already published."""
    progress("starting the service again")
    watch = Watch({"bench": os.getpid()})
    used, seconds = 0.0, []
    for _ in range(STARTS):
        with Server(data_dir) as server:
            seconds.append(server.ready_seconds)
            used += machine.process_seconds(server.pid)
    foreign = watch.window().foreign_without(used)
    return {
        "seconds": seconds,
        "median": statistics.median(seconds),
        "foreign": foreign,
        "contended": foreign > CONTENDED,
    }


def _notes(figures: dict[str, Any]) -> str:
    """Return the paragraph under the table: facts, and which contestants are missing and why."""
    quick = "A first impression with --quick, not a figure. " if figures["quick"] else ""
    facts = (
        f"{quick}{figures['model']}, without vector cache. Texts: {figures['texts']}, "
        f"{', '.join(figures['workloads'])}. Medians of clean rounds. (c): other processes used more than "
        f"{CONTENDED:.0%} of the machine in every round. Cosines to {figures['reference']}."
    )
    missing = (f"Not measured: {name}: {reason}" for name, reason in figures["missing"].items())
    return "\n".join([facts, *missing])


def judge(results: Results, figures: Mapping[str, Any]) -> list[Verdict]:
    """Check each promise whose contestants this run has measured.

    Args:
        results: The measurements.
        figures: The other figures of `run`. Only "starts" is used.

    """
    starts = figures["starts"]
    subject = "second start to ready, seconds (median)"
    start = Verdict(subject, starts["median"], SECOND_START_SECONDS, contended=starts["contended"])
    verdicts = list(judge_floors(results, FLOORS))
    ours = our_name(DEFAULT)
    tail = results.spread((ours, MANY), lambda one: _divide(one.p99_ms, one.p50_ms))
    if tail:
        verdicts.append(_verdict(f"{ours}, {MANY}, p99 over p50", tail, TAIL))
    return [*verdicts, start]


def judge_floors(results: Results, floors: Sequence[Floor]) -> Iterator[Verdict]:
    """Check each floor whose contestants were both measured."""
    for floor in floors:
        ours = our_name(floor.precision)
        other: Cell = (floor.other, floor.other_load or floor.load)
        found = results.ratio((ours, floor.load), other)
        if found:
            yield _verdict(f"{ours}, {floor.load}, over {floor.other}", found, floor.least, at_least=True)


def _divide(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _verdict(subject: str, found: Spread, bound: float, *, at_least: bool = False) -> Verdict:
    return Verdict(subject, found.median, bound, at_least, not found.clean)


def main_table(results: Results, figures: Mapping[str, Any]) -> str:
    """Return the table of all contestants: median texts per second, and p50 / p99 latency in ms."""
    loads = (SENTENCES_AT_ONCE, MANY, BULK, SMALL_BULK, ONE, MIX_AT_ONCE, LONG)
    rows = []
    for name in results.names:
        cells = [show_rate(results, (name, load)) for load in loads]
        work = results.spread((name, MANY), lambda one: one.cpu_ms) or results.spread(
            (name, SENTENCES_AT_ONCE), lambda one: one.cpu_ms
        )
        memory = figures["about"].get(name, {}).get("memory_mb", {}).get("now")
        cosine = figures["cosines"].get(name, {}).get("least")
        exact = "" if cosine is None else f"{cosine:.5f}"
        size = "" if memory is None else f"{memory:.0f}"
        rows.append([name, *cells, f"{work.median:.2f}" if work else "", exact, size])
    head = ["texts/s (p50 / p99 ms)", *loads, "CPU ms a text", "least cosine", "RSS MiB"]
    return format_table(head, rows)


def show_rate(results: Results, cell: Cell) -> str:
    """Return the median rate of a job, and its median p50 and p99 in ms. Empty if it was not measured."""
    rate = results.spread(cell)
    if rate is None:
        return ""
    p50 = results.spread(cell, lambda one: one.p50_ms)
    p99 = results.spread(cell, lambda one: one.p99_ms)
    latency = f" ({_ms(p50)} / {_ms(p99)})" if p50 and p99 else ""
    return f"{rate.median:,.0f}{'' if rate.clean else ' (c)'}{latency}"


def _ms(found: Spread) -> str:
    return f"{found.median:.{1 if found.median < 100 else 0}f}"


if __name__ == "__main__":
    main()

"""`make bench`: the service, the raw engine and other projects' engines in turns.

    publish ─▶ start contestants ─▶ compare vectors ─▶ rounds ─▶ stop ─▶ start again ─▶ documents ─▶ report

All files are in a temporary folder of the checkout, on the same disk. Figures need a quiet machine. The use
by other processes is measured as well, and contended measurements are repeated.
"""

import argparse
import os
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import accuracy, command, documents, machine, peer_engines, report, served, workloads
from benchmarks.command import progress
from benchmarks.machine import Watch
from benchmarks.processes import Server
from benchmarks.raw import PRODUCTS, MatrixProducts, RawEngine, SingleCalls
from benchmarks.rounds import CONTENDED, Embedder, Job, Results, Scenario, Turns
from benchmarks.workloads import Workload

STARTS = 3
MEMORY_QUICK = 5_000


def main() -> None:
    options = _parse_options()
    if not Path("/proc/stat").exists():
        sys.exit("make bench reads /proc, so it needs Linux.")
    with command.scratch_folder() as folder:
        results, figures = run(options, folder)
        verdicts = report.judge(results, figures)
        text = [report.main_table(results, figures), _notes(figures)]
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
    parser.add_argument("--memory", action="store_true", help="also memory after 100,000 requests: long")
    parser.add_argument("--peers", type=Path, help="the folder with the peers' environments (.venv-peers)")
    parser.add_argument("--minutes", type=float, default=15.0, help="limit for rounds after the repeats")
    options = parser.parse_args()
    options.repeats = options.repeats or (1 if options.quick else 5)
    options.peers = options.peers or command.PROJECT / ".venv-peers"
    return options


def run(options: argparse.Namespace, folder: Path) -> tuple[Results, dict[str, Any]]:
    """Measure everything in `folder`; return the measurements and the other figures."""
    share = 4 if options.quick else 1
    with ExitStack() as stack:
        ours, missing = served.open_precisions(stack, options.forms.split(","), folder)
        first, engine = ours[0], ours[0].raw
        assert engine is not None  # fp32 has one
        raws = [one.raw for one in ours if one.raw]
        source = workloads.corpus()
        sentences = workloads.sentences(engine.tokenizer, source, 4096 // share)
        mixture = workloads.mixture(engine.tokenizer, source, 2048 // share)
        cached = served.open_cached(stack, folder, len(sentences.texts))
        peers = peer_engines.open_peers(stack, options.peers, first.version, folder)
        embedders: list[Embedder] = [*raws, *(one.served for one in ours), cached]
        embedders += [*peers.servers, *peers.libraries]
        texts = accuracy.sample([sentences, mixture])
        reference, cosines = accuracy.compare_vectors(embedders, peer_engines.REFERENCE, engine.name, texts)
        progress("choosing the raw engine's batch size")
        for raw in raws:
            raw.choose_budget(sentences)
            raw.choose_budget(mixture)
        turns = Turns(_jobs(ours, engine, [cached], peers, sentences, mixture, share))
        turns.run(options.repeats, options.minutes)
        about = {one.name: one.about() for one in embedders if one.name not in turns.broken}
        memory = {}
        if options.memory:
            for one in ours:
                progress(f"sending {one.served.name} requests of all shapes")
                many = MEMORY_QUICK if options.quick else served.MANY
                memory[one.served.name] = served.measure_growth(one.served, mixture, many)
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
        "memory": memory,
        "starts": _measure_starts(first.data_dir),
        "documents": _measure_documents(first.data_dir, sentences.texts[: 200 // share]),
    }


def _jobs(
    ours: list[served.OpenPrecision],
    engine: RawEngine,
    cached: list[served.ServedModel],
    peers: peer_engines.Peers,
    sentences: Workload,
    mixture: Workload,
    share: int,
) -> list[Job]:
    """Return a round in its order: first all jobs with sentences, then the mix. `share` divides the times."""
    loads = [
        Scenario(report.MANY, sentences, 64, 1, 4 / share),
        Scenario(report.BULK, sentences, 4, 32, 4 / share),
        Scenario(report.FEW, sentences, 8, 1, 3 / share),
        Scenario(report.ONE, sentences, 1, 1, 3 / share),
    ]
    long = Scenario(report.LONG, mixture, 32, 1, 6 / share)
    at_once = Scenario(report.SENTENCES_AT_ONCE, sentences, seconds=4 / share)
    long_at_once = Scenario(report.MIX_AT_ONCE, mixture, seconds=5 / share)
    single = Scenario(report.SINGLE, sentences, seconds=1.5 / share)
    products = Scenario(report.PRODUCTS, sentences, seconds=1.5 / share)
    threads = ours[0].info["threads"]
    jobs = [
        Job(MatrixProducts(f"GEMM {kind}", make, threads), products, True) for kind, make in PRODUCTS.items()
    ]
    jobs += [
        Job(SingleCalls(report.RAW_SINGLE, engine), single, True),
        Job(SingleCalls(report.RAW_SINGLE_THREADS, ours[0].single_text_engine()), single, True),
    ]
    servers = [*((one.served, True) for one in ours), *((one, True) for one in cached)]
    servers += [(one, False) for one in peers.servers]
    for whole, each in ((at_once, loads), (long_at_once, [long])):
        jobs += [Job(one.raw, whole, True) for one in ours if one.raw]
        jobs += [Job(server, load, essential) for server, essential in servers for load in each]
        jobs += [Job(library, whole, False) for library in peers.libraries]
    return jobs


def _measure_starts(data_dir: Path) -> dict[str, Any]:
    """Return the seconds from start to ready if the version is already published."""
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


def _measure_documents(data_dir: Path, texts: list[str]) -> dict[str, Any]:
    progress(f"storing {documents.DOCUMENTS:,} documents")
    fill_seconds = documents.fill(data_dir, texts, documents.DOCUMENTS)
    progress("starting the service with these documents")
    with Server(data_dir) as server:
        progress("adding documents one by one")
        idle = documents.measure_additions(server, texts)
        progress("adding documents while a client searches")
        searched = documents.measure_additions_while_searching(server, texts)
        return {
            "stored": documents.DOCUMENTS,
            "fill_seconds": fill_seconds,
            "ready_seconds": server.ready_seconds,
            "idle": idle,
            "while_searching": searched,
            "server_memory_mb": machine.memory_mb(server.pid),
        }


def _notes(figures: dict[str, Any]) -> str:
    """Return facts about the run, and the contestants that were not measured."""
    quick = "A first impression with --quick, not a figure. " if figures["quick"] else ""
    stored = figures["documents"]
    lines = [
        (
            f"{quick}{figures['model']}, without vector cache except {served.CACHED}. Texts: "
            f"{figures['texts']}, {', '.join(figures['workloads'])}. Medians of clean rounds. (c): other "
            f"processes used more than {CONTENDED:.0%} of the machine in every round. Cosines to "
            f"{figures['reference']}."
        ),
        f"With {stored['stored']:,} documents the service was ready after {stored['ready_seconds']:.1f} s.",
    ]
    for name, load in (("idle", "without other load"), ("while_searching", "while a client searches")):
        quantiles = {key[:-3]: value for key, value in stored[name].items() if key.endswith("_ms")}
        cells = (f"{key} {value['p50']:.1f} / {value['p99']:.1f}" for key, value in quantiles.items())
        lines.append(f"Adding a document {load}, p50 / p99 in ms: {', '.join(cells)}.")
    lines += [f"Not measured: {name}: {reason}" for name, reason in figures["missing"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

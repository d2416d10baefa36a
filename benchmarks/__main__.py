"""`make bench`: the service against the raw engine and against other people's, in turns.

    publish ─▶ start everybody ─▶ compare vectors ─▶ rounds ─▶ stop ─▶ start again ─▶ documents ─▶ report

Everything happens in a temporary folder of the checkout, on the same disk. The figures are worth something on
a quiet machine; what others used is measured too, and spoilt repeats are left out.
"""

import argparse
import json
import os
import statistics
import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import accuracy, documents, environments, floors, forms, gemm, machine, report, workloads
from benchmarks.contestant import CONTENDED, Embedder, Scenario
from benchmarks.machine import Watch
from benchmarks.places import RESULTS, say, scratch
from benchmarks.raw import RawEngine, SingleCalls
from benchmarks.results import Results, cells
from benchmarks.served import Served
from benchmarks.server import Server
from benchmarks.shapes import grown
from benchmarks.turns import Job, Turns
from benchmarks.workloads import Workload

STARTS = 3
MEMORY_QUICK = 5_000


def main() -> None:
    options = _options()
    if not Path("/proc/stat").exists():
        sys.exit("make bench needs /proc, so Linux.")
    with scratch() as folder:
        kept = run(options, folder)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(kept, indent=2) + "\n")
    results = Results(kept)
    judged = floors.verdicts(results)
    print(report.text(results))
    print("\n" + "\n".join(verdict.line() for verdict in judged))
    print(f"\nAll of it is in {RESULTS}.")
    if options.check and not all(verdict.kept for verdict in judged):
        sys.exit(1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench BENCH_ARGS=…", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repeats", type=int, help="clean repeats wanted (5; 1 with --quick)")
    parser.add_argument("--quick", action="store_true", help="fewer texts and repeats: a look, not a figure")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a floor is missed")
    parser.add_argument("--forms", default="fp32", help="of the service: fp32,bf16,int8 (fp32 always is)")
    parser.add_argument("--memory", action="store_true", help="memory after 100,000 requests too: long")
    parser.add_argument("--peers", type=Path, help="the folder of the peers' environments (.venv-peers)")
    parser.add_argument("--minutes", type=float, default=15.0, help="no rounds beyond the repeats after that")
    options = parser.parse_args()
    options.repeats = options.repeats or (1 if options.quick else 5)
    options.peers = options.peers or workloads.PROJECT / ".venv-peers"
    return options


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Everything, in `folder`: the figures."""
    share = 4 if options.quick else 1
    kept: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": options.quick,
        "machine": machine.describe(folder),
    }
    with ExitStack() as stack:
        ours, missing = forms.opened(stack, options.forms.split(","), folder)
        first, engine = ours[0], ours[0].raw
        assert engine is not None  # fp32 has one
        raws = [form.raw for form in ours if form.raw]
        source = workloads.corpus()
        sentences = workloads.sentences(engine.tokenizer, source, 4096 // share)
        mixture = workloads.mixture(engine.tokenizer, source, 2048 // share)
        cached = forms.cached(stack, folder, len(sentences.texts))
        peers = environments.opened(stack, options.peers, first.version, folder)
        embedders: list[Embedder] = [*raws]
        embedders += [*(form.served for form in ours), cached]
        embedders += [*peers.servers, *peers.libraries]
        near = accuracy.compared(embedders, engine.name, accuracy.sample([sentences, mixture]))
        say("choosing the raw engine's batch size")
        for raw in raws:
            raw.choose(sentences)
            raw.choose(mixture)
        turns = Turns(_jobs(ours, engine, cached, peers, sentences, mixture, share))
        turns.run(options.repeats, options.minutes)
        about = {one.name: one.about() for one in embedders if one.name not in turns.broken}
        memory = {}
        if options.memory:
            many = {"many": MEMORY_QUICK} if options.quick else {}
            for form in ours:
                say(f"sending {form.served.name} requests of every shape")
                memory[form.served.name] = grown(form.served, mixture, **many)
    return kept | {
        "model": first.info["model_version"],
        "texts": source.source,
        "workloads": [report.workload(given) for given in (sentences, mixture)],
        "about": about,
        "missing": missing | peers.missing | turns.broken,
        "cells": cells(turns.cells),
        "cosines": near,
        "memory": memory,
        "starts": _starts(first.data_dir),
        "documents": _documents(first.data_dir, sentences.texts[: 200 // share]),
    }


def _jobs(
    ours: list[forms.Form],
    engine: RawEngine,
    cached: Served,
    peers: environments.Peers,
    sentences: Workload,
    mixture: Workload,
    share: int,
) -> list[Job]:
    """A round, in its order: all that is done with sentences, then the mix."""
    loads = [
        Scenario(floors.MANY, sentences, 64, 1, 4 / share),
        Scenario(floors.BULK, sentences, 4, 32, 4 / share),
        Scenario(floors.FEW, sentences, 8, 1, 3 / share),
        Scenario(floors.ONE, sentences, 1, 1, 3 / share),
    ]
    long = Scenario(floors.LONG, mixture, 32, 1, 6 / share)
    at_once = Scenario(floors.SENTENCES_AT_ONCE, sentences, seconds=4 / share)
    long_at_once = Scenario(floors.MIX_AT_ONCE, mixture, seconds=5 / share)
    single = Scenario(floors.SINGLE, sentences, seconds=1.5 / share)
    products = Scenario("products", sentences, seconds=1.5 / share)
    alone = [
        SingleCalls(floors.ALONE, engine, tokenising=False),
        SingleCalls(floors.TOKENISED_ALONE, engine, tokenising=True),
        SingleCalls(floors.TOGETHER_ALONE, forms.together(ours[0]), tokenising=False),
    ]
    threads = ours[0].info["threads"]
    jobs = [
        Job(gemm.Gemm(f"GEMM {kind}", make, threads), products, True) for kind, make in gemm.KINDS.items()
    ]
    jobs += [Job(calls, single, True) for calls in alone]
    for form in ours:
        jobs += [Job(form.raw, at_once, True)] if form.raw else []
        jobs += [Job(form.served, load, True) for load in loads]
    jobs += [Job(cached, load, True) for load in loads]
    jobs += [Job(server, load, False) for server in peers.servers for load in loads]
    jobs += [Job(library, at_once, False) for library in peers.libraries]
    for form in ours:
        jobs += [Job(form.raw, long_at_once, True)] if form.raw else []
        jobs += [Job(form.served, long, True)]
    jobs += [Job(cached, long, True)]
    jobs += [Job(server, long, False) for server in peers.servers]
    return jobs + [Job(library, long_at_once, False) for library in peers.libraries]


def _starts(data_dir: Path) -> dict[str, Any]:
    """Process to ready, with the version published."""
    say("starting the service again")
    watch = Watch({"bench": os.getpid()})
    used, seconds = 0.0, []
    for _ in range(STARTS):
        with Server(data_dir) as server:
            seconds.append(server.ready_seconds)
            used += machine.process_seconds(server.pid)
    foreign = watch.window().foreign_without(used)
    return {
        "second": seconds,
        "second_median": statistics.median(seconds),
        "foreign": foreign,
        "contended": foreign > CONTENDED,
    }


def _documents(data_dir: Path, texts: list[str]) -> dict[str, Any]:
    say(f"storing {documents.DOCUMENTS} documents")
    fill_seconds = documents.fill(data_dir, texts, documents.DOCUMENTS)
    say("starting the service on them")
    with Server(data_dir) as server:
        say("adding documents one by one")
        alone = documents.alone(server, texts)
        say("adding documents while a client searches")
        searched = documents.while_searching(server, texts)
        return {
            "stored": documents.DOCUMENTS,
            "fill_seconds": fill_seconds,
            "ready_seconds": server.ready_seconds,
            "alone": alone,
            "while_searching": searched,
            "server_memory_mb": machine.memory_mb(server.pid),
        }


if __name__ == "__main__":
    main()

"""Measure the speed of the reranker: `python -m benchmarks.rerank`.

    cross-encoder by a seed ─▶ services, raw engines, sentence-transformers ─▶ rounds ─▶ pairs/s and searches

The cross-encoder has the size of the default model, random weights and one output. All contestants score the
same pairs of 128 tokens. A search with `rerank_k=20` is shown next to the matrix products alone: the time of
the linear layers for 20 pairs if all processors only multiply matrices.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import command, products, served, workloads
from benchmarks.__main__ import Floor, judge_floors, show_rate
from benchmarks.command import BenchError, Verdict, format_table
from benchmarks.documents import store_documents, write_cross_encoder
from benchmarks.peer_engines import open_libraries
from benchmarks.processes import STATE_POLL_SECONDS, call
from benchmarks.rounds import CONTENDED, Embedder, Job, Results, Scenario, Turns
from benchmarks.served import TEXTS_PER_CALL, Dialect, our_name, raw_name
from benchmarks.workloads import PAIR_TOKENS, TAB
from models.graph.file import SCORES
from models.tokens.pairs import PairTokenizer
from models.tokens.tokenizer import FILE_NAME

LIMIT = "matrix products, {}"
AT_ONCE, MANY, BULK, SEARCH = "at once", "64 x 1", "4 x 32", "search"
TORCH = "sentence-transformers, torch"
LIBRARIES = {TORCH: "cross-encoder", "sentence-transformers, ONNX": "cross-encoder-onnx"}  # peers/encode.py
FLOORS = [
    Floor(precision, load, other, least, AT_ONCE)
    for precision in products.KINDS
    for other, least in (*dict.fromkeys(LIBRARIES, 1.5).items(), (raw_name(precision), 0.85))
    for load in (MANY, BULK)
]
SCORE_DIFFERENCE = 1e-5  # promise: fp32 to sentence-transformers, after the activation
RERANK_K = 20
# No pair is left out or rejected, however slow the machine is: all work is measured.
SETTINGS = {"SIMILE_RERANK_SECONDS": "60", "SIMILE_MAX_QUEUE_SECONDS": "60"}
OPEN_SECONDS = 600.0  # until the service has published and opened the reranker
WARM_PAIRS, WARM_SEARCHES = 128, 4


def main() -> None:
    parser = command.build_parser("rerank", __doc__, quick=True)
    parser.add_argument("--repeats", type=int, help="clean repeats (5; 1 with --quick)")
    parser.add_argument("--forms", default="fp32,int8", help="precisions (fp32 is always measured)")
    parser.add_argument("--python", default=sys.executable, help="one with sentence-transformers and optimum")
    options = parser.parse_args()
    with command.scratch_folder() as folder, ExitStack() as stack:
        results, figures = run(options, folder, stack)
    figures |= {"quick": options.quick, "cells": results.to_json()}
    verdicts = [*judge_floors(results, FLOORS)]
    if TORCH in figures["differences"]:
        most = figures["differences"][our_name("fp32")]
        verdicts.append(Verdict("Simile fp32, largest difference of a score", most, SCORE_DIFFERENCE))
    quick = ["A first impression with --quick, not a figure."] * options.quick
    text = [*quick, *tables(results), notes(figures)]
    command.report("rerank", figures, text, verdicts)


def run(options: argparse.Namespace, folder: Path, stack: ExitStack) -> tuple[Results, dict[str, Any]]:
    """Run the benchmark with its files in `folder`; return the measurements and the other figures."""
    share = 4 if options.quick else 1
    source = write_cross_encoder(folder / "source")
    forms, settings = options.forms.split(","), SETTINGS | {"SIMILE_RERANKER": str(source)}
    ours, missing = served.open_precisions(stack, forms, folder, settings)
    versions = [wait_for_reranker(one) for one in ours]
    libraries = [*open_libraries(stack, LIBRARIES, options.python, source, missing)]
    tokenizer = PairTokenizer(versions[0] / FILE_NAME, ours[0].info["max_input_length"])
    corpus = workloads.corpus()
    pairs = workloads.pairs(tokenizer, corpus, 512 // share, TEXTS_PER_CALL)
    scenarios = (
        Scenario(AT_ONCE, pairs, seconds=8 / share),
        Scenario(MANY, pairs, 64, 1, 12 / share),
        Scenario(BULK, pairs, 4, TEXTS_PER_CALL, 32 / share),
        Scenario(SEARCH, pairs, 1, 1, 24 / share),
    )
    jobs = [Job(library, scenarios[0], False) for library in libraries]
    for one, version in zip(ours, versions, strict=True):
        jobs += prepare_jobs(one, version, tokenizer, scenarios)
    some = pairs.texts[: 2 * TEXTS_PER_CALL]
    embedders: list[Embedder] = [*libraries, *(replace(one.served, dialect=RERANK) for one in ours)]
    scores = {one.name: one.vectors(some)[:, 0] for one in embedders}
    expected = scores.get(TORCH, scores[our_name("fp32")])
    turns = Turns(jobs)
    turns.run(options.repeats or (1 if options.quick else 5))
    return Results(turns.cells), {
        "texts": f"{corpus.source}, {pairs.summary()}",
        "missing": missing | turns.broken,
        "differences": {name: float(np.abs(each - expected).max()) for name, each in scores.items()},
        "deviation": float(expected.std()),
    }


def prepare_jobs(
    one: served.OpenPrecision, version: Path, tokenizer: PairTokenizer, scenarios: Sequence[Scenario]
) -> Iterator[Job]:
    """Store the documents in a service, and yield the jobs of its precision."""
    at_once, many, bulk, search = scenarios
    command.progress(f"storing the documents in {one.precision}")
    documents = [line.split(TAB)[1] for line in search.workload.texts]
    store_documents(one.served.port, documents, len(documents))
    reranker = replace(one.served, dialect=RERANK, warm=WARM_PAIRS)
    yield from (Job(reranker, load, True) for load in (many, bulk))
    yield Job(replace(one.served, dialect=SEARCHES, warm=WARM_SEARCHES), search, True)
    threads = one.info["threads"]
    if engine := served.open_raw(one.info["form"], version, threads, tokenizer, SCORES):
        yield Job(engine, at_once, True)
    if one.precision in products.KINDS:
        limit, tokens = LIMIT.format(one.precision), RERANK_K * PAIR_TOKENS
        yield Job(products.Products(limit, one.precision, version, threads, tokens), search, True)


def wait_for_reranker(one: served.OpenPrecision) -> Path:
    """Return the folder of the active reranker. Raises BenchError if none becomes active."""
    command.progress(f"publishing the cross-encoder in {one.precision}")
    until = time.monotonic() + OPEN_SECONDS
    while (found := call(one.served.port, "GET", "/info")["reranker"]) is None:
        if time.monotonic() > until:
            raise BenchError(f"no reranker is active: {call(one.served.port, 'GET', '/models')['reranker']}")
        time.sleep(STATE_POLL_SECONDS)
    if found["form"] != one.info["form"]:
        raise BenchError(f"the reranker is open in {found['form']} instead of {one.info['form']}")
    return one.data_dir / "models" / str(found["version"])


def build_rerank(lines: list[str]) -> dict[str, Any]:
    return {"query": lines[0].split(TAB)[0], "texts": [line.split(TAB)[1] for line in lines]}


def read_scores(answer: list[dict[str, Any]]) -> list[list[float]]:
    """Return a vector of two components for each text, whose cosines depend on the score."""
    ranks = sorted(answer, key=lambda rank: rank["index"])
    return [[rank["score"], 1 - rank["score"]] for rank in ranks]


def build_search(lines: list[str]) -> dict[str, Any]:
    queries = [line.split(TAB)[0] for line in lines]
    return {"queries": queries, "k": RERANK_K, "rerank": True, "rerank_k": RERANK_K, "fields": []}


def read_hits(answer: dict[str, Any]) -> list[list[float]]:
    """Return the scores of the hits of each query. Raises BenchError if not all hits were reranked."""
    if answer.get("warnings") or any(len(hits) < RERANK_K for hits in answer["results"]):
        raise BenchError(f"a search did not rerank {RERANK_K} hits: {answer.get('warnings')}")
    return [[hit["rerank_score"] for hit in hits] for hits in answer["results"]]


RERANK = Dialect("/rerank", build_rerank, read_scores)
SEARCHES = Dialect("/search", build_search, read_hits)


def tables(results: Results) -> Iterator[str]:
    """Yield the tables of pairs per second, of their ratios, and of searches."""
    loads = (AT_ONCE, MANY, BULK)
    rows = [[name, *(show_rate(results, (name, load)) for load in loads)] for name in results.names]
    yield format_table(["pairs/s (p50 / p99 ms)", *loads], [row for row in rows if any(row[1:])])
    ratios = [
        [f"{our_name(one.precision)}, {one.load}, over {one.other}", found.text()]
        for one in FLOORS
        if (found := results.ratio((our_name(one.precision), one.load), (one.other, AT_ONCE)))
    ]
    yield format_table(["ratio of pairs/s", "median (least to greatest)"], ratios)
    rows = []
    for precision in products.KINDS:
        ours, limit = (our_name(precision), SEARCH), (LIMIT.format(precision), SEARCH)
        p50, p99 = results.spread(ours, lambda one: one.p50_ms), results.spread(ours, lambda one: one.p99_ms)
        alone, share = results.spread(limit, lambda one: 1000 / one.rate), results.ratio(ours, limit)
        if p50 and p99 and alone and share:
            rows.append([precision, p50.text(0), p99.text(0), alone.text(0), share.text()])
    yield format_table(["search", "p50 ms", "p99 ms", "matrix products alone, ms", "their share"], rows)


def notes(figures: dict[str, Any]) -> str:
    """Return the paragraph under the tables: facts, and which contestants are missing and why."""
    differences = ", ".join(f"{name} {most:.2g}" for name, most in figures["differences"].items())
    facts = (
        f"Texts: {figures['texts']}. Medians of clean rounds. (c): other processes used more than "
        f"{CONTENDED:.0%} of the machine in every round. Largest difference of a score from {TORCH}: "
        f"{differences}; standard deviation of the scores {figures['deviation']:.2g}."
    )
    missing = (f"Not measured: {name}: {reason}" for name, reason in figures["missing"].items())
    return "\n".join([facts, *missing])


if __name__ == "__main__":
    main()

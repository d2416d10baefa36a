"""Simile's trainer against sentence-transformers' own: `python -m benchmarks.training --corpus FILE …`.

    Simile's steps, the peer's steps ─▶ the peer's, Simile's ─▶ …     two neighbours in time are a round

Both train unsupervised SimCSE from the default model on the same sentences: the recipe `simcse-unsup` here,
MultipleNegativesRankingLoss on (s, s) there, with the recipe's batch, length, temperature, dropout and AdamW.
Only one of the two computes at a time; the other waits between two of its steps. Loading and the first steps
are not in the figures. Nor is Simile's tokenising, done once before: some 0.03 ms of a sentence, where a step
takes 15 ms of it or more. The peer tokenises in each step.

The peer has a virtual environment of its own, as its dependencies are none of the project's. To make one:

    python -m venv PEER
    PEER/bin/pip install -c constraints.txt torch      first, so that pip takes no other build of it
    PEER/bin/pip install -c constraints.txt sentence-transformers accelerate datasets

and then, on a machine that does nothing else:

    python -m benchmarks.training --corpus FILE --peer-python PEER/bin/python

A sentence is a row of the corpus, however often it is encoded. Needs the extra `train`, and /proc.
"""

import argparse
import math
import os
from contextlib import closing
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from benchmarks.contestant import Scenario
from benchmarks.places import arguments, say, scratch
from benchmarks.results import Results, cells
from benchmarks.tables import Verdict, conclude, table
from benchmarks.trainers import OURS, PEER, Ours, Peer
from benchmarks.turns import TRIES, Job, Turns
from benchmarks.workloads import Workload, texts_of
from models.errors import ModelError
from models.publishing.default import default_source
from training.errors import TrainingError
from training.methods.catalogue import load_recipe
from training.methods.objectives import InfoNCE
from training.methods.recipe import Recipe
from training.runs.log import versions
from training.text.corpus import Corpus

FLOOR = 1.15  # what the project promises on a CPU, in fp32 and in bf16
RECIPE = "simcse-unsup"
PRECISIONS = ("fp32", "bf16")
WARMUP = 3  # first steps, which do not count
COLUMNS = ("", "Simile, sentences/s", "peer, sentences/s", "Simile over the peer", "by CPU time")


def main() -> None:
    options = _options()
    recipe = load_recipe(RECIPE)
    most = WARMUP + options.steps * options.repeats * TRIES
    torch.set_num_threads(options.threads)
    with scratch(ModelError, TrainingError) as folder, default_source() as base:
        sentences = islice(texts_of(options.corpus), recipe.optim.batch * most)
        corpus = Corpus.of(sentences, str(options.corpus))
        found = [measure(recipe, corpus, base, folder / one, options, one) for one in options.precision]
    result = {
        "versions": versions(),
        "corpus": {"file": options.corpus.name, "sentences": len(corpus)},
        "recipe": recipe.described(),
        "threads": options.threads,
        "steps": options.steps,
        "peer": {one: peer for one, (peer, _) in zip(options.precision, found, strict=True)},
        "cells": [cell for _, measured in found for cell in measured],
    }
    rows, verdicts = _judged(Results(result), options.precision)
    conclude("training", result, [_told(result), table(COLUMNS, rows)], verdicts)


def _options() -> argparse.Namespace:
    parser = arguments("training", __doc__, corpus=True)
    parser.add_argument("--peer-python", type=Path, required=True, help="of an environment with the peer")
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--steps", type=int, default=5, help="of each side in a repeat")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    return parser.parse_args()


def measure(
    recipe: Recipe, corpus: Corpus, base: Path, folder: Path, options: argparse.Namespace, precision: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The peer's account of itself, and the cells of one precision."""
    (objective,) = recipe.objectives
    assert isinstance(objective, InfoNCE)
    job = {
        "base": str(base),
        "texts": corpus.texts,
        "precision": precision,
        "threads": options.threads,
        "warmup": WARMUP,
        "steps": options.steps,
        "repeats": options.repeats * TRIES,
        "seed": recipe.seed,
        "max_length": recipe.max_length,
        "scale": 1 / objective.tau,
        "optim": asdict(recipe.optim),
    }
    folder.mkdir()
    with closing(Peer(options.peer_python, job, folder)) as peer:
        say(f"{precision}: the first steps")
        about = peer.ready(recipe.dropout)
        ours = Ours(recipe, corpus, base, folder, job, peer.pids)
        steps = Scenario(precision, Workload(precision, [], []))
        turns = Turns([Job(ours, steps, True), Job(peer, steps, True)])
        turns.run(options.repeats, math.inf)
    return about | peer.sizes, cells(turns.cells)


def _judged(results: Results, precisions: list[str]) -> tuple[list[list[str]], list[Verdict]]:
    """A row of the table and a verdict for each precision."""
    rows, verdicts = [], []
    for precision in precisions:
        ours, peers = (OURS, precision), (PEER, precision)
        ratio, by_cpu = results.ratio(ours, peers), results.ratio(peers, ours, lambda one: one.cpu_ms)
        found = [results.spread(ours), results.spread(peers), ratio, by_cpu]
        rows.append([precision, *(one.words() for one in found if one)])
        assert ratio is not None
        what = f"{precision}, Simile over the peer, trained sentences per second"
        verdicts.append(Verdict(what, ratio.median, FLOOR, at_least=True, contended=not ratio.clean))
    return rows, verdicts


def _told(result: dict[str, Any]) -> str:
    optim = result["recipe"]["optim"]
    about = next(iter(result["peer"].values()))
    return (
        f"Simile: {_versions(result['versions'])}. Peer: {_versions(about['packages'])}; "
        f"{about['attention']} attention. {result['threads']} threads, batch {optim['batch']}, "
        f"{result['recipe']['max_length']} tokens, {result['corpus']['sentences']} sentences of "
        f"{result['corpus']['file']}. A sentence has {about['tokens'] / about['texts']:.1f} tokens, and "
        f"{about['padded'] / about['texts']:.1f} as the peer pads it. Median of the clean rounds (least to "
        "most); (c): others used much of the machine in every round."
    )


def _versions(packages: dict[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in packages.items())


if __name__ == "__main__":
    main()

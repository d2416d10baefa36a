"""Compare training speed with sentence-transformers: `python -m benchmarks.training --corpus FILE …`.

    round 1: Simile, the peer ─▶ round 2: the peer, Simile ─▶ …     the order alternates

Both trainers run unsupervised SimCSE from the default model on the same sentences. Simile uses the recipe
`simcse-unsup`. The peer, sentence-transformers, uses MultipleNegativesRankingLoss on pairs (s, s). Both use
the batch size, maximum length, temperature, dropout and AdamW settings of the recipe. Only one of the two
trainers computes at a time. Loading and the first steps do not count.

Simile tokenizes all sentences before training. This takes about 0.03 ms per sentence and is not in the
figures. A training step takes at least 15 ms per sentence. The peer tokenizes in each step.

The peer needs a separate virtual environment. Create it like this:

    python -m venv PEER
    PEER/bin/pip install -c constraints.txt torch      first, so that pip takes no other build of it
    PEER/bin/pip install -c constraints.txt sentence-transformers accelerate datasets

Then, on a quiet machine:

    python -m benchmarks.training --corpus FILE --peer-python PEER/bin/python

A sentence is a row of the corpus and counts once, although SimCSE encodes it twice. The benchmark needs the
extra `train`, and Linux.
"""

import argparse
import json
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from benchmarks.command import (
    PROJECT,
    BenchError,
    Verdict,
    build_parser,
    format_table,
    progress,
    report,
    scratch_folder,
)
from benchmarks.machine import Watch
from benchmarks.processes import Process
from benchmarks.rounds import TRIES, Job, Measured, Results, Scenario, Turns
from benchmarks.workloads import Workload, read_texts
from models.errors import ModelError
from models.publishing.default import ORIGIN, default_source
from training.methods.objectives import InfoNCE
from training.methods.recipe import Recipe, load_recipe
from training.runs.device import deterministic
from training.runs.options import Options
from training.runs.processes import World
from training.runs.record import versions
from training.runs.setup import build_trainer
from training.text.corpus import Corpus

FLOOR = 1.15  # promise on a CPU, in fp32 and in bf16
RECIPE = "simcse-unsup"
PRECISIONS = ("fp32", "bf16")
WARMUP = 3  # first steps, which do not count
SCRIPT = PROJECT / "benchmarks" / "peers" / "train.py"
OURS, PEER = "Simile", "sentence-transformers"
COLUMNS = ("", "Simile, sentences/s", "peer, sentences/s", "Simile over the peer")


def main() -> None:
    options = _parse_options()
    recipe = load_recipe(RECIPE)
    max_steps = WARMUP + options.steps * options.repeats * TRIES
    torch.set_num_threads(options.threads)
    with scratch_folder(ModelError) as folder, default_source() as base:
        sentences = islice(read_texts(options.corpus), recipe.optim.batch * max_steps)
        corpus = Corpus.of(sentences, str(options.corpus))
        found = {one: measure(recipe, corpus, base, folder / one, options, one) for one in options.precision}
    figures = {
        "versions": versions(),
        "corpus": {"file": options.corpus.name, "sentences": len(corpus)},
        "recipe": recipe.described(),
        "threads": options.threads,
        "steps": options.steps,
        "peer": {one: peer for one, (peer, _) in found.items()},
        "cells": [cell for _, results in found.values() for cell in results.to_json()],
    }
    rows, verdicts = _judge({one: results for one, (_, results) in found.items()})
    report("training", figures, [format_table(COLUMNS, rows), _notes(figures)], verdicts)


def _parse_options() -> argparse.Namespace:
    parser = build_parser("training", __doc__, corpus=True)
    parser.add_argument("--peer-python", type=Path, required=True, help="of an environment with the peer")
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--steps", type=int, default=5, help="of each side in a repeat")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--device", default="cpu", help="cpu or cuda, of both sides (cpu)")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    return parser.parse_args()


class Ours:
    """Simile's trainer as a contestant, in this process. It runs the same steps as the training loop."""

    name = OURS

    def __init__(
        self, recipe: Recipe, corpus: Corpus, base: Path, out: Path, job: dict[str, Any], pids: dict[str, int]
    ) -> None:
        """Build the trainer and run the first steps. `pids` are the process ids of both contestants."""
        steps = job["warmup"] + job["steps"] * job["repeats"]
        options = Options(
            steps=steps,
            precision=job["precision"],
            device=job["device"],
            threads=job["threads"],
            eval_steps=steps + 1,
            checkpoint_steps=steps + 1,
            record_steps=steps + 1,
            base_name=ORIGIN,
        )
        bf16, device = job["precision"] == "bf16", torch.device(job["device"])
        self._trainer = build_trainer(
            recipe, corpus, base, out, options, device, World(), steps=steps, bf16=bf16
        )
        self._done, self._steps, self._pids = 0, job["steps"], pids
        self._train(job["warmup"])

    def measure(self, scenario: Scenario, turn: int) -> Measured:
        """Measure the training steps of one round."""
        return _measure(self.name, self._pids, lambda: self._train(self._steps))

    def _train(self, steps: int) -> int:
        """Run `steps` training steps, and return the number of sentences."""
        begin, self._done = self._done, self._done + steps
        with deterministic():
            sentences = sum(self._trainer.step(number).texts for number in range(begin, self._done))
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return sentences


class Peer(Process):
    """The trainer of sentence-transformers as a contestant: peers/train.py, which runs until `close`."""

    def __init__(self, python: Path, job: dict[str, Any], folder: Path) -> None:
        self._sentences = job["steps"] * job["optim"]["batch"]
        file = folder / "peer.json"
        file.write_text(json.dumps(job), encoding="utf-8")
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(job["threads"])}
        # With -P, imports do not find the modules next to the script.
        command: list[str | Path] = [python, "-P", SCRIPT, f"--job={file}"]
        super().__init__(PEER, command, env=environment, piped=True)

    def wait_until_ready(self, dropout: float) -> dict[str, Any]:
        """Wait until the peer has run its first steps, and return facts about it, such as package versions.

        Raises:
            BenchError: The dropout of the peer's model is not `dropout`.

        """
        about = self.answer()
        if about["dropout"] != [dropout]:
            raise BenchError(f"The peer's dropout is {about['dropout']} and not {dropout}")
        return about

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of both contestants, by name."""
        return {OURS: os.getpid(), PEER: self.pid}

    def measure(self, scenario: Scenario, turn: int) -> Measured:
        """Measure the training steps of one round. Raises BenchError if the process ended."""
        return _measure(self.name, self.pids, self._train)

    def _train(self) -> int:
        """Run the training steps of one round, and return the number of sentences."""
        self.order()
        return int(self._sentences)


def _measure(name: str, pids: Mapping[str, int], train: Callable[[], int]) -> Measured:
    """Measure sentences per second of `train`. CPU time of the other contestant is not foreign load."""
    watch = Watch(pids)
    sentences = train()
    window = watch.window()
    cpu_ms = 1000 * window.cpu_seconds[name] / sentences
    return Measured(sentences / window.seconds, window.foreign, cpu_ms)


def measure(
    recipe: Recipe, corpus: Corpus, base: Path, folder: Path, options: argparse.Namespace, precision: str
) -> tuple[dict[str, Any], Results]:
    """Measure both trainers in one precision. Returns facts about the peer, and the measurements."""
    (objective,) = recipe.objectives
    assert isinstance(objective, InfoNCE)
    job = {
        "base": str(base),
        "texts": corpus.texts,
        "precision": precision,
        "threads": options.threads,
        "device": options.device,
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
        progress(f"{precision}: the first steps")
        about = peer.wait_until_ready(recipe.dropout)
        ours = Ours(recipe, corpus, base, folder, job, peer.pids)
        steps = Scenario(precision, Workload(precision, [], []))
        turns = Turns([Job(ours, steps, True), Job(peer, steps, True)])
        turns.run(options.repeats)
    return about, Results(turns.cells)


def _judge(found: Mapping[str, Results]) -> tuple[list[list[str]], list[Verdict]]:
    """Return the rows of the table and the verdicts, one row and one verdict for each precision."""
    rows, verdicts = [], []
    for precision, results in found.items():
        ours, peers = (OURS, precision), (PEER, precision)
        ratio = results.ratio(ours, peers)
        spreads = [results.spread(ours), results.spread(peers), ratio]
        rows.append([precision, *(one.text() for one in spreads if one)])
        assert ratio is not None
        subject = f"{precision}, Simile over the peer, trained sentences per second"
        verdicts.append(Verdict(subject, ratio.median, FLOOR, at_least=True, contended=not ratio.clean))
    return rows, verdicts


def _notes(figures: dict[str, Any]) -> str:
    optim = figures["recipe"]["optim"]
    about = next(iter(figures["peer"].values()))
    return (
        f"Simile: {_versions(figures['versions'])}. Peer: {_versions(about['packages'])}, "
        f"{about['attention']} attention. {figures['threads']} threads, batch {optim['batch']}, "
        f"{figures['recipe']['max_length']} tokens, {figures['corpus']['sentences']} sentences of "
        f"{figures['corpus']['file']}. Median of the clean rounds "
        "(least to most). (c) marks a figure if other processes used much of the machine in every round."
    )


def _versions(packages: dict[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in packages.items())


if __name__ == "__main__":
    main()

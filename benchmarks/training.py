"""Simile's trainer against sentence-transformers' own: `python -m benchmarks.training --corpus FILE …`.

    Simile's steps, the peer's steps ─▶ the peer's, Simile's ─▶ …     two neighbours in time are a repeat

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
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from benchmarks.contestant import CONTENDED
from benchmarks.machine import Watch, Window, wait_for_quiet
from benchmarks.places import BenchError, arguments, say, scratch
from benchmarks.results import Spread, spread
from benchmarks.tables import Verdict, conclude, table
from benchmarks.trainers import Ours, Peer
from models.errors import ModelError
from models.publishing.default import default_source
from training.errors import TrainingError
from training.methods.catalogue import load_recipe
from training.methods.objectives import InfoNCE
from training.methods.recipe import Recipe
from training.runs.log import versions
from training.text.corpus import Corpus
from training.text.lines import read_records

FLOOR = 1.15  # what the project promises on a CPU, in fp32 and in bf16
RECIPE = "simcse-unsup"
PRECISIONS = ("fp32", "bf16")
COLUMNS = (
    "simile/s",
    "peer/s",
    "ratio",
    "simile cpu ms",
    "peer cpu ms",
    "by cpu",
    "foreign, simile's",
    "peer's",
    "contended",
)
SENTENCE = (("sentence", "text"),)


def main() -> None:
    options = _options()
    recipe = load_recipe(RECIPE)
    count = recipe.optim.batch * (options.warmup + options.steps * options.repeats)
    torch.set_num_threads(options.threads)
    with scratch(ModelError, TrainingError) as folder, default_source() as base:
        corpus = Corpus.of(islice(_sentences(options.corpus), count), str(options.corpus))
        found = [measure(recipe, corpus, base, folder / one, options, one) for one in options.precision]
    result = {
        "versions": versions(),
        "corpus": {"file": options.corpus.name, "sentences": len(corpus)},
        "recipe": recipe.described(),
        "threads": options.threads,
        "steps": options.steps,
        "precisions": found,
    }
    verdicts = [verdict(each) for each in found]
    conclude("training", result, [_told(result), *(_table(each) for each in found)], verdicts)
    if options.check and not all(each.kept for each in verdicts):
        sys.exit(1)


def _options() -> argparse.Namespace:
    parser = arguments("training", __doc__, corpus=True)
    parser.add_argument("--peer-python", type=Path, required=True, help="of an environment with the peer")
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--steps", type=int, default=5, help="of each side in a repeat")
    parser.add_argument("--warmup", type=int, default=3, help="first steps, which do not count")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument(
        "--wait",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="before each repeat, up to so long, for quiet",
    )
    parser.add_argument("--check", action="store_true", help=f"exit with 1 where the ratio is below {FLOOR}")
    return parser.parse_args()


def _sentences(file: Path) -> Iterator[str]:
    """In the file's own order, so that few of them need not be read out of all."""
    for record in read_records(file, SENTENCE):
        yield next((record.fields[name] for name in SENTENCE[0] if name in record.fields), "")


def measure(
    recipe: Recipe, corpus: Corpus, base: Path, folder: Path, options: argparse.Namespace, precision: str
) -> dict[str, Any]:
    """Every repeat of one precision, and what the peer said of itself."""
    (objective,) = recipe.objectives
    assert isinstance(objective, InfoNCE)
    job = {
        "base": str(base),
        "texts": corpus.texts,
        "precision": precision,
        "threads": options.threads,
        "warmup": options.warmup,
        "steps": options.steps,
        "repeats": options.repeats,
        "seed": recipe.seed,
        "max_length": recipe.max_length,
        "scale": 1 / objective.tau,
        "optim": asdict(recipe.optim),
    }
    repeats: list[dict[str, Any]] = []
    folder.mkdir()
    with closing(Peer(options.peer_python, job, folder)) as peer:
        say(f"{precision}: the first steps")
        about = peer.ready(recipe.dropout)
        ours = Ours(recipe, corpus, base, folder, job)
        ours.go(options.warmup)
        pids = {"simile": os.getpid(), "peer": peer.pid}
        turns: list[tuple[str, Callable[[], int]]] = [
            ("simile", lambda: ours.go(options.steps)),
            ("peer", peer.go),
        ]
        for number in range(options.repeats):
            wait_for_quiet(CONTENDED, options.wait)
            windows, sentences = {}, set()
            for who, turn in turns if number % 2 == 0 else reversed(turns):
                watch = Watch(pids)
                sentences.add(turn())
                windows[who] = watch.window()
            if len(sentences) > 1:
                raise BenchError(f"a round was of {' and '.join(map(str, sentences))} sentences")
            repeats.append(repeat(windows["simile"], windows["peer"], sentences.pop()))
            mark = " (contended)" if repeats[-1]["contended"] else ""
            say(f"{precision}, repeat {number + 1}: {repeats[-1]['ratio']:.2f} of the peer{mark}")
    return {
        "precision": precision,
        "peer": about | peer.sizes,
        "repeats": repeats,
        "ratio": _spread(repeats, "ratio"),
        "by_cpu": _spread(repeats, "by_cpu"),
    }


def repeat(ours: Window, peers: Window, sentences: int) -> dict[str, Any]:
    """So many sentences of each side, one side after the other, as a row of the table."""
    ours_cpu, peers_cpu = ours.cpu_seconds["simile"], peers.cpu_seconds["peer"]
    return {
        "simile_per_second": sentences / ours.seconds,
        "peer_per_second": sentences / peers.seconds,
        "ratio": peers.seconds / ours.seconds,
        "simile_cpu_ms": 1000 * ours_cpu / sentences,
        "peer_cpu_ms": 1000 * peers_cpu / sentences,
        "by_cpu": peers_cpu / ours_cpu,  # which neighbours disturb less
        "simile_foreign": ours.foreign,
        "peer_foreign": peers.foreign,
        "contended": max(ours.foreign, peers.foreign) > CONTENDED,
    }


def verdict(found: dict[str, Any]) -> Verdict:
    what = f"{found['precision']}, Simile over the peer, trained sentences per second"
    ratio = Spread(**found["ratio"])
    return Verdict(what, ratio.median, FLOOR, at_least=True, contended=not ratio.clean)


def _told(result: dict[str, Any]) -> str:
    peers, optim = result["precisions"][0]["peer"], result["recipe"]["optim"]
    return (
        f"Simile: {_versions(result['versions'])}. Peer: {_versions(peers['packages'])}; "
        f"{peers['attention']} attention. {result['threads']} threads, batch {optim['batch']}, "
        f"{result['recipe']['max_length']} tokens, {result['corpus']['sentences']} sentences of "
        f"{result['corpus']['file']}."
    )


def _versions(packages: dict[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in packages.items())


def _table(found: dict[str, Any]) -> str:
    sizes, ratio = found["peer"], Spread(**found["ratio"])
    tokens = f"{sizes['tokens'] / sizes['texts']:.1f} tokens, {sizes['padded'] / sizes['texts']:.1f} padded"
    rows = [list(each.values()) for each in found["repeats"]]
    return (
        f"{found['precision']}, a sentence has {tokens} by the peer; ratio: median {ratio.words(3)}; by CPU "
        f"time {Spread(**found['by_cpu']).words(3)}; {ratio.clean} clean of {len(rows)} repeats\n\n"
        f"{table(COLUMNS, rows)}"
    )


def _spread(repeats: list[dict[str, Any]], name: str) -> dict[str, float]:
    found = spread([(each[name], each["contended"]) for each in repeats])
    assert found is not None
    return asdict(found)


if __name__ == "__main__":
    main()

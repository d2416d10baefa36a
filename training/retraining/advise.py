"""`simile advise`: print what a retraining would try, why, and how long it takes.

With a service, the command also predicts what more judged queries would gain for the rankings.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from models import cpus
from models.progress import silent, to_stderr
from models.store import ModelStore
from training.arguments import LOADING
from training.errors import NothingToLearn
from training.methods.recipe_files import SEARCH
from training.ranking.fitting import MIN_QUERIES
from training.retraining.config import add_source, build_config, check, read_config
from training.retraining.exits import finish
from training.retraining.gather import gather
from training.retraining.lineage import why_slower
from training.retraining.rank import forecast, read_judged
from training.retraining.rows import MAX_LISTS
from training.text.corpus import LISTED

if TYPE_CHECKING:
    from training.retraining.auto import Choice, Material

_TIMED = 64  # documents that are embedded to measure the pace
# Cost of a training step, in forward passes. The backward pass costs twice as much as the forward pass
# (Kaplan et al. 2020, section 2.1).
_STEP = 3
# Texts that are read for each query: the query, its document and negatives, all twice. Or the query and its
# list.
_TEXTS = {"triples": 2 * 5, "distil-rerank": 9, "distil-hybrid": 9}
_LENGTHS = 3  # passage lengths; `search` reads each document with each length
_READ = 5  # times that `adapt` reads each text: masked, and two views twice


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "advise",
        help="print what a retraining could learn from, with gain and cost; train nothing",
        description="Look at documents and judgments as `retrain` does, and say what it would do and why.",
    )
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument("--from-service", metavar="URL", help="documents and judgments of a running service")
    source.add_argument("--config", type=Path, metavar="FILE", help="retrain.toml, as for `retrain`")
    add_source(command)
    command.set_defaults(run=partial(finish, run), corpus=None)


def run(options: argparse.Namespace) -> int:
    """Prints the advice. Returns 0. Raises NothingToLearn if no recipe can help."""
    config = read_config(options.config) if options.config else build_config(options)
    check(config)
    to_stderr(LOADING)
    from training.retraining.auto import TUNE, build_material, choices, get_minutes, nothing  # noqa: PLC0415  torch
    from training.retraining.settings import choosing  # noqa: PLC0415  torch

    store, gate = ModelStore(config.folders.models), config.gate
    if config.corpus.service is not None:
        # Reads the judgments separately, because `gather` treats near copies as one document. Only `gather`
        # prints what was read.
        for line in forecast(read_judged(config, store, silent), config, store, to_stderr):
            print(line)  # noqa: T201
    gathered = gather(config, store, to_stderr)
    material = build_material(gathered)
    found, slower = choices(material), ""
    if found and gate.mode == "on" and gate.slower < 1:  # None of the choices trains a student.
        try:
            recipes = " or ".join(choice.recipe for choice in found)
            slower = why_slower(store, gathered.active, config.train.base, recipes)
        except NothingToLearn as error:  # The teacher is gone.
            slower = str(error)
    if slower:
        to_stderr(f"! {slower}")
        found = []
    if gate.mode == "on" and len(choosing(gathered.found).held) >= MIN_QUERIES:
        found.append(TUNE)
    if not found:
        raise NothingToLearn(slower or nothing(material))
    print(material)  # noqa: T201  the answer of the command
    texts = [document.whole for document in gathered.split.train[:_TIMED]]
    pace = _pace(store, gathered.active, texts)
    served = config.corpus.service is not None
    for line in advice(material, found, pace, get_minutes(config.train) or math.inf, served=served):
        print(line)  # noqa: T201
    return 0


def advice(
    material: Material, found: Sequence[Choice], pace: float, most: float, *, served: bool = False
) -> list[str]:
    """Returns a line of text for each recipe that the retraining would try.

    Args:
        material: Counts of documents and queries to train on.
        found: The choices of `auto`.
        pace: Texts per second that the active model embeds on this machine.
        most: Maximum minutes of one training.
        served: True if a service has the documents.
    """
    return [
        f"{number}. {choice.recipe}, because {choice.why}. It gained {choice.gained}. "
        f"About {max(1.0, _minutes(choice.recipe, material, pace, most, served=served)):.0f} min here."
        for number, choice in enumerate(found, 1)
    ]


def _minutes(recipe: str, material: Material, pace: float, most: float, *, served: bool) -> float:
    """Estimates the minutes for encoding texts and for training.

    For `distil-hybrid`, mining also encodes, for each query, the rest of the document that the query was cut
    from. A service has the vectors of its documents, so mining encodes no whole documents. A reranker reads
    each document of a list, which costs about as much as encoding it.
    """
    documents, queries = material.documents, min(material.queries, MAX_LISTS)
    of_users = min(material.of_users, MAX_LISTS)
    mined = 0 if served else documents
    titles = min(material.titles, material.judged)  # Each judged pair has at most one title pair.
    encoded, trained = {
        SEARCH: (documents * _LENGTHS, 0),
        "adapt": (0, documents * _READ),
        "triples": (mined, (material.judged + titles) * _TEXTS["triples"]),
        "distil-rerank": (mined + of_users * LISTED, of_users * _TEXTS["distil-rerank"]),
        "distil-hybrid": (mined + queries, queries * _TEXTS["distil-hybrid"]),
    }[recipe]
    return encoded / pace / 60 + min(most, trained * _STEP / pace / 60)


def _pace(store: ModelStore, version: str, texts: list[str]) -> float:
    with closing(store.open(version, threads=cpus.available())) as encoder:
        began = time.perf_counter()
        encoder.encode(texts)
        return len(texts) / (time.perf_counter() - began)

"""`simile retrain`: run one retraining, by hand or by a scheduler.

Exit status: 0 published and requested, 3 rejected by the gate, 4 nothing to learn, 5 another retraining is
running, 130 stopped, 1 any other error.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.messages import positive
from models.progress import to_stderr
from models.store import ModelStore
from training.arguments import LOADING, add_run, changes
from training.errors import TrainingError
from training.methods.recipe_files import AUTO
from training.retraining.config import (
    Config,
    GateTable,
    ScheduleTable,
    TrainTable,
    add_source,
    build_config,
    check,
    read_config,
)
from training.retraining.exits import finish, tell
from training.retraining.watch import watched
from training.retraining.workplace import alone, workplace

if TYPE_CHECKING:
    from training.methods.recipe import Recipe
    from training.retraining.one import Job

_TRAIN = ("recipe", "base", "steps", "minutes", "seed", "precision")  # options with the names of keys


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "retrain",
        help="train on your text, prove the result, and publish it when it is not worse",
        description="Train, export, prove, score against the active version, and publish when it is not "
        "worse. Exit status: 0 published and requested, 3 refused, 4 nothing to learn, 5 another is at work.",
    )
    command.add_argument(
        "--recipe",
        default=AUTO,
        help="a shipped recipe or a TOML file; auto looks at text and judgments, and chooses (%(default)s)",
    )
    corpus = command.add_mutually_exclusive_group(required=True)
    corpus.add_argument("--corpus", type=Path, metavar="FILE", help="as `train --corpus`")
    corpus.add_argument(
        "--from-service",
        metavar="URL",
        help="documents and judgments of a running service; some are held out and judge, as with --config",
    )
    corpus.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="retrain.toml, which says all of the other options and more: text and judgments that are held "
        "out, a gate that asks for a gain (docs/RETRAINING.md)",
    )
    add_source(command)
    command.add_argument(
        "--base",
        default="anchor",
        metavar="MODEL",
        help="where to begin: `anchor` (the imported model that the active one comes from), `active`, "
        "`default`, a version, a folder or a hub id (%(default)s)",
    )
    command.add_argument(
        "--minutes",
        type=positive,
        metavar="N",
        help="of training of one recipe, at most, with --from-service (default: 30 with auto, else no limit)",
    )
    command.add_argument(
        "--gate",
        choices=("on", "off"),
        default="on",
        help="off publishes without comparing, and the version says so for ever",
    )
    add_run(command)
    command.set_defaults(run=partial(finish, run), default=command.get_default)


def read_options(options: argparse.Namespace) -> Config:
    """Returns the configuration of --config, or one made from the other options.

    Raises:
        TrainingError: Options contradict each other, or the configuration file is invalid.

    """
    if options.config:
        for name, value in vars(options).items():
            if name != "config" and value != options.default(name):
                raise TrainingError(f"--{name.replace('_', '-')} goes with no --config: the file says it.")
        return read_config(options.config)
    rows = options.corpus
    if rows and options.minutes is not None:
        raise TrainingError("--minutes goes with --from-service; with --corpus, --steps says how long.")
    if rows and options.recipe == AUTO:
        raise TrainingError(
            "Say which recipe reads the rows of this file: --recipe pairs, triples, simcse-unsup …"
        )
    if options.recipe == AUTO and options.set:
        raise TrainingError("--set changes one recipe, and auto chooses among several: add --recipe NAME.")
    return build_config(
        options,
        train=TrainTable(**{name: getattr(options, name) for name in _TRAIN}, set=changes(options.set)),
        gate=GateTable(mode=options.gate, data=options.data, require="not worse" if rows else "better"),
        schedule=ScheduleTable(threads=options.threads),
    )


def run(options: argparse.Namespace) -> int:
    """Runs a retraining and returns the exit status. Checks all arguments before the training."""
    config = read_options(options)
    check(config)
    to_stderr(LOADING)
    from training.retraining.auto import retrain_auto  # noqa: PLC0415  torch
    from training.retraining.one import retrain  # noqa: PLC0415  torch
    from training.retraining.plan import prepare, prepare_rows  # noqa: PLC0415  torch

    train, store = config.train, ModelStore(config.folders.models)
    recipe = None if train.recipe == AUTO else _recipe(train)
    place = config.folders.kept if options.config else None
    with alone(store), workplace(place) as work, watched(store.root, to_stderr) as watch:
        given: dict[str, Any] = {"progress": True, "told": watch.told}
        if recipe is None:
            return tell(retrain_auto(config, store, work, given, watch.say))
        make = prepare_rows if options.corpus else prepare
        job: Job = make(config, recipe, store, work, watch.say)
        return tell(retrain(replace(job, options=replace(job.options, **given)), watch.say))


def _recipe(table: TrainTable) -> Recipe:
    from training.methods.recipe import load_recipe  # noqa: PLC0415  torch

    recipe = load_recipe(table.recipe, table.set)
    if recipe.result != "encoder":
        what = "a backbone to train from" if recipe.result == "backbone" else "a reranker"
        raise TrainingError(f"{recipe.name} makes {what}, and no encoder to serve: `simile train` runs it.")
    return recipe

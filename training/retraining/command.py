"""`python -m training retrain`: run one retraining, by hand or by a scheduler.

Exit status: 0 published and requested, 3 rejected by the gate, 4 nothing to learn, 5 another retraining is
running, 130 stopped, 1 any other error.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.messages import positive
from models.progress import to_stderr
from models.store import ModelStore
from training.arguments import LOADING, add_run, changes
from training.errors import Busy, Interrupted, NothingToLearn, TrainingError
from training.evaluation.data import data_folder, optional_data_folder
from training.methods.recipe_files import AUTO
from training.retraining.config import (
    MIN_ROWS,
    Config,
    CorpusTable,
    FoldersTable,
    GateTable,
    ScheduleTable,
    TrainTable,
    check,
    check_names,
    folders,
    read_config,
    require_enough,
)
from training.retraining.gate.words import as_text
from training.retraining.watch import watched
from training.retraining.workplace import workplace
from training.runs.export import add_models_dir
from training.runs.options import Options
from training.text.corpus import read_corpus
from training.text.service import add_options, chosen

if TYPE_CHECKING:
    from training.methods.recipe import Recipe
    from training.retraining.one import Job
    from training.retraining.publication import Outcome

REFUSED, NOTHING, BUSY, STOPPED = 3, 4, 5, 130


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "retrain",
        help="train on your text, prove the result, and publish it when it is not worse",
        description="Train, export, prove, score against the active version, and publish when it is not "
        "worse. Exit status: 0 published and wanted, 3 refused, 4 nothing to learn, 5 another is at work.",
    )
    command.add_argument(
        "--recipe",
        default=AUTO,
        help="a shipped recipe or a TOML file; auto looks at text and judgements, and chooses (%(default)s)",
    )
    corpus = command.add_mutually_exclusive_group(required=True)
    corpus.add_argument("--corpus", type=Path, metavar="FILE", help="as `train --corpus`")
    corpus.add_argument(
        "--from-service",
        metavar="URL",
        help="documents and judgements of a running service; some are held out and judge, as with --config",
    )
    corpus.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="retrain.toml, which says all of the other options and more: text and judgements that are held "
        "out, a gate that asks for a gain (docs/RETRAINING.md)",
    )
    add_options(command)
    command.add_argument(
        "--base",
        default="anchor",
        metavar="MODEL",
        help="where to begin: `anchor` (the imported model that the active one comes from), `active`, "
        "`default`, a version, a folder or a hub id (%(default)s)",
    )
    command.add_argument(
        "--least",
        type=positive,
        default=MIN_ROWS,
        metavar="N",
        help="texts; with fewer there is nothing to learn (%(default)s)",
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
    command.add_argument(
        "--work",
        type=Path,
        metavar="FOLDER",
        help="keep the run and its artifact here, and go on with them after a stop (default: a temporary "
        "folder)",
    )
    add_run(command)
    add_models_dir(command)
    command.set_defaults(run=run, default=command.get_default)


def run(options: argparse.Namespace) -> int:
    """Runs a retraining and returns the exit status. Checks all arguments before the training."""
    try:
        if options.config:
            return _by_config(options)
        return _by_service(options) if options.from_service else _by_file(options)
    except NothingToLearn as error:
        print(f"Nothing to learn: {error}")  # noqa: T201  the answer of the command
        return NOTHING
    except Busy as error:
        to_stderr(str(error))
        return BUSY
    except Interrupted as stopped:
        again = (
            "The same command goes on." if options.work or options.config else "With --work a run is kept."
        )
        to_stderr(f"{stopped} {again}")
        return STOPPED


def _by_config(options: argparse.Namespace) -> int:
    """Retrains with a configuration file. Rejects options that the file would override."""
    for name, value in vars(options).items():
        if name != "config" and value != options.default(name):
            raise TrainingError(f"--{name.replace('_', '-')} goes with no --config: the file says it.")
    config = read_config(options.config)
    return _judged(config, folders(config).work)


def _by_service(options: argparse.Namespace) -> int:
    """Retrains on the documents of a service, with a configuration made from the options."""
    if options.recipe == AUTO and options.set:
        raise TrainingError("--set changes one recipe, and auto chooses among several: add --recipe NAME.")
    config = Config(
        corpus=of_service(options),
        train=TrainTable(
            recipe=options.recipe,
            base=options.base,
            steps=options.steps,
            minutes=options.minutes,
            seed=options.seed,
            precision=options.precision,
            set=changes(options.set),
        ),
        gate=GateTable(mode=options.gate, data=options.data),
        schedule=ScheduleTable(threads=options.threads),
        folders=FoldersTable(models=options.models_dir),
    )
    return _judged(config, options.work)


def of_service(options: argparse.Namespace) -> CorpusTable:
    """Returns the table `corpus` of a configuration, from --from-service and related options."""
    return CorpusTable(service=options.from_service, collections=chosen(options), least=max(2, options.least))


def _judged(config: Config, place: Path | None) -> int:
    """Retrains on documents, and holds some out. `place` is the work folder, or None."""
    check(config)
    to_stderr(LOADING)
    from training.retraining.auto import retrain_auto  # noqa: PLC0415  torch
    from training.retraining.one import retrain  # noqa: PLC0415  torch
    from training.retraining.plan import alone, prepare  # noqa: PLC0415  torch

    train, chooses = config.train, config.train.recipe == AUTO
    recipe = None if chooses else _recipe(train.recipe, train.set, train.seed)
    store = ModelStore(folders(config).models)
    with alone(store), workplace(place) as work, watched(store.root, to_stderr) as watch:
        options: dict[str, Any] = {
            "precision": train.precision,
            "threads": config.schedule.threads,
            "progress": True,
            "told": watch.told,
        }
        if recipe is None:
            return _tell(retrain_auto(config, store, work, options, watch.say))
        job: Job = prepare(config, recipe, store, work, watch.say)
        return _tell(retrain(replace(job, options=replace(job.options, **options)), watch.say))


def _by_file(options: argparse.Namespace) -> int:
    """Retrains on a file of rows. Evaluation sets judge the candidate."""
    chosen(options)  # --collection goes with a service
    if options.minutes is not None:
        raise TrainingError("--minutes goes with --from-service; with --corpus, --steps says how long.")
    if options.recipe == AUTO:
        raise TrainingError(
            "Say which recipe reads the rows of this file: --recipe pairs, triples, simcse-unsup …"
        )
    changed = changes(options.set)
    check_names(options.recipe, changed, options.base, options.models_dir)
    if not options.corpus.is_file():
        raise TrainingError(f"There is no file {options.corpus}.")
    to_stderr(LOADING)
    from training.retraining.one import Job, retrain  # noqa: PLC0415  torch
    from training.retraining.plan import alone  # noqa: PLC0415  torch

    recipe = _recipe(options.recipe, changed, options.seed)
    # With the gate off evaluation sets only choose the best step, and may be absent.
    find = data_folder if options.gate == "on" else optional_data_folder
    data = find(options.data)
    to_stderr("reading the corpus")
    corpus = read_corpus(options.corpus, recipe.source.kind)
    to_stderr(str(corpus))
    require_enough(len(corpus), options.least, "texts")
    store = ModelStore(options.models_dir)
    with alone(store), workplace(options.work) as work, watched(store.root, to_stderr) as watch:
        job = Job(
            recipe=recipe,
            corpus=corpus,
            base=options.base,
            steps=options.steps,
            store=store,
            work=work,
            data=data,
            mode=options.gate,
            options=Options(
                precision=options.precision, threads=options.threads, progress=True, told=watch.told
            ),
        )
        return _tell(retrain(job, watch.say))


def _recipe(name: str, changed: Mapping[str, Any], seed: int | None) -> Recipe:
    from training.methods.recipe import load_recipe  # noqa: PLC0415  torch

    recipe = load_recipe(name, changed)
    if recipe.result != "encoder":
        raise TrainingError(f"{recipe.name} makes a backbone to train from, and no model to serve.")
    return recipe if seed is None else replace(recipe, seed=seed)


def _tell(outcome: Outcome) -> int:
    if outcome.verdict is not None:
        print(as_text(outcome.verdict))  # noqa: T201  the answer of the command
    if outcome.published:
        print(f"{outcome.version} is published and wanted")  # noqa: T201
        return 0
    kept = f"{outcome.version} is kept, not wanted" if outcome.version else "nothing was published"
    print(f"Refused, and {kept}: {outcome.reason}")  # noqa: T201
    return REFUSED

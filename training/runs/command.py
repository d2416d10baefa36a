"""`simile train`. The function `train` does the same from Python.

torch is imported when a training begins. `--help` and messages about invalid arguments do not need torch.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from models.messages import amount, positive
from models.store import models_dir
from training import arguments
from training.errors import TrainingError
from training.evaluation.data import optional_data_folder
from training.methods.recipe_files import check_name, declared
from training.methods.stages import Stages, find_stages
from training.model.base import Base, find_version, open_base
from training.runfile import FILE_NAME as RUN
from training.runfile import Result
from training.runs.options import Options
from training.text.corpus import MAX_NEGATIVES, TRIPLES, Corpus, Kind, from_service, read_corpus
from training.text.service import add_options
from training.text.service import chosen as chosen_collections

if TYPE_CHECKING:
    from training.methods.recipe import Recipe

# Options of the command that have the same name as a field of `Options`.
_NAMED = ("steps", "seed", "batch", "precision", "device", "threads", "chunk")


def train(recipe: Recipe, corpus: Corpus, base: Path, out: Path, options: Options | None = None) -> Result:
    """Trains `recipe` on `corpus`, starting with the model in the folder `base`. Writes the folder `out`.

    In the main thread, Ctrl-C and SIGTERM end the run after the current step. `Result.interrupted` is then
    True, and `Options.resume` continues the run.

    Raises:
        TrainingError: The recipe, corpus or folder cannot be used.
        ModelError: The base cannot be used.
    """
    from training.methods.recipe import fitted  # noqa: PLC0415  torch
    from training.runs.device import give_back  # noqa: PLC0415  torch
    from training.runs.loop import run  # noqa: PLC0415  torch

    options = options or Options()
    recipe = fitted(recipe, corpus.columns)
    optim = recipe.optim if options.batch is None else replace(recipe.optim, batch=options.batch)
    recipe = replace(recipe, optim=optim, seed=recipe.seed if options.seed is None else options.seed)
    named = replace(
        options, base_name=options.base_name or base.name, parent=options.parent or find_version(base)
    )
    try:
        return run(recipe, corpus, base, out, named)
    finally:
        give_back()


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "train",
        help="train an encoder on your text",
        description="Train an encoder on your text. Ctrl-C stops it after the step; --resume goes on.",
    )
    command.add_argument(
        "recipe", metavar="RECIPE", help="a shipped one, as simcse-unsup, or the path of a TOML file"
    )
    corpus = command.add_mutually_exclusive_group(required=True)
    corpus.add_argument(
        "--corpus",
        type=Path,
        action="append",
        metavar="FILE",
        help='one text on each line, .jsonl with {"id", "text"}, or .tsv with a column sentence; for pairs '
        "and triples .jsonl or .tsv with anchor, positive, negative (several: a list, or negative_1 …); "
        "also as .gz",
    )
    corpus.add_argument(
        "--from-service", metavar="URL", help="the documents of a running service, e.g. http://127.0.0.1:8000"
    )
    add_options(command)
    command.add_argument(
        "--base",
        default="default",
        metavar="MODEL",
        help="where to begin: `default`, a published version, a run, a folder or a hub id (%(default)s)",
    )
    command.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the run is kept")
    command.add_argument("--resume", action="store_true", help="go on with the run in --out")
    command.add_argument(
        "--minutes",
        type=positive,
        metavar="N",
        help="of training, for a recipe of stages (default: the recipe's)",
    )
    command.add_argument(
        "--batch", type=arguments.batch, metavar="N", help="texts of a step, instead of the recipe's"
    )
    command.add_argument(
        "--device",
        type=arguments.device,
        default="auto",
        help="cpu, cuda or cuda:N (default: the first GPU, if any, else cpu)",
    )
    command.add_argument(
        "--chunk",
        type=positive,
        metavar="N",
        help="encode N rows at a time (GradCache): an exact large batch in small memory, but slower",
    )
    command.add_argument(
        "--negatives",
        type=positive,
        metavar="N",
        help=f"of a row of triples, its first N (default: all that it has, up to {MAX_NEGATIVES})",
    )
    arguments.add_run(command)
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    names = [name.strip() for name in options.recipe.split(",")]
    for name in names:
        check_name(name)
    for file in options.corpus or ():
        if not file.is_file():
            raise TrainingError(f"There is no file {file}.")
    with open_base(options.base, models_dir(os.environ)) as base:
        stages = find_stages(options.recipe)
        return _run_stages(stages, options, base) if stages else _run_recipes(names, options, base)


def warn_of_scale(recipe: Recipe, corpus: Corpus) -> str:
    """Returns a warning if the scores of a corpus have another scale than the recipe, else ""."""
    highest = max((getattr(objective, "highest", 0.0) for objective in recipe.objectives), default=0.0)
    scores = [score for label in corpus.labels or () if isinstance(label, tuple) for score in label]
    if not highest or not scores or highest / 2 <= max(scores) <= highest:
        return ""
    return (
        f"The highest score is {max(scores):g}, and the recipe's `highest` is {highest:g}, that of equal "
        "texts. Set it in `objectives` (--set) if yours is another."
    )


def _run_recipes(names: Sequence[str], options: argparse.Namespace, base: Base) -> int:
    if options.minutes is not None:
        raise TrainingError("--minutes is for a recipe of stages; this one takes --steps.")
    if options.set and len(names) > 1:
        raise TrainingError("--set changes one recipe; for several, write them as TOML files.")
    changes = arguments.changes(options.set)
    for name in names:
        declared(name, changes)
    given = _options(options)
    _say(arguments.LOADING)
    from training.methods.recipe import load_recipe  # noqa: PLC0415  torch

    recipes = [load_recipe(name, changes) for name in names]
    corpora = _corpora(options, [recipe.source.kind for recipe in recipes])
    for warning in filter(None, map(warn_of_scale, recipes, corpora)):
        _say(f"! {warning}")
    for number, (recipe, corpus) in enumerate(zip(recipes, corpora, strict=True), 1):
        out = options.out / f"{number}-{recipe.name}" if len(recipes) > 1 else options.out
        # With several recipes, a stopped command may have left later ones unstarted.
        resume = options.resume and (out == options.out or (out / RUN).is_file())
        known = replace(given, base_name=base.name, parent=base.version, resume=resume)
        result = train(recipe, corpus, base.folder, out, known)
        if not result.finished:
            _say(f"stopped after step {result.steps}; the same command with --resume goes on")
            return 130
        _say(f"{_done(result)}: {result.best} and {result.last}")
        if result.interrupted:
            _say("it was asked to stop, and that was the last step of this recipe")
            return 130
        base = Base(result.best, f"{base.name}, {recipe.name}", base.version)
    return 0


def _run_stages(stages: Stages, options: argparse.Namespace, base: Base) -> int:
    if options.set or options.steps or not options.corpus:
        raise TrainingError(
            f"{stages.name} runs several recipes: give it --corpus FILE and --minutes, and neither --set nor "
            "--steps. To change a stage, copy its TOML file."
        )
    if options.minutes is not None:
        stages = replace(stages, minutes=float(options.minutes))
    stages.check()
    given = _options(options)
    _say(arguments.LOADING)
    from training.runs.stages import read_corpora, run_stages  # noqa: PLC0415  torch

    known = replace(given, base_name=base.name, parent=base.version, resume=options.resume)
    result = run_stages(stages, read_corpora(stages, options.corpus), base.folder, options.out, known)
    if not result.finished:
        _say("stopped; the same command with --resume goes on")
        return 130
    _say(f"{_done(result)}: {result.best} and {result.last}")
    return 0


def _options(options: argparse.Namespace) -> Options:
    named = {name: getattr(options, name) for name in _NAMED}
    return Options(**named, data=optional_data_folder(options.data), progress=True, say=_say)


def _done(result: Result) -> str:
    return f"{amount(result.steps, 'step')}, loss {result.loss:.4f}" if result.steps else "nothing to train"


def _corpora(options: argparse.Namespace, kinds: Sequence[Kind]) -> list[Corpus]:
    """Reads a corpus for each kind of rows. Reads the same file only once for the same kind."""
    files = options.corpus or []
    if len(files) not in (0, 1, len(kinds)):
        raise TrainingError(
            f"There are {len(files)} corpora for {len(kinds)} recipes: give one, or one for each."
        )
    if options.negatives and TRIPLES not in kinds:
        raise TrainingError("--negatives is for a recipe that reads triples.")
    negatives = options.negatives or MAX_NEGATIVES
    chosen = chosen_collections(options)

    @cache
    def read(file: Path | None, kind: Kind) -> Corpus:
        _say("reading the corpus")
        if file:
            corpus = read_corpus(file, kind, negatives)
        else:
            corpus = from_service(options.from_service, kind, chosen)
        _say(str(corpus))
        return corpus

    each: Sequence[Path | None] = files if len(files) == len(kinds) else [*files, None][:1] * len(kinds)
    return [read(file, kind) for file, kind in zip(each, kinds, strict=True)]


def _say(step: str) -> None:
    if os.environ.get("RANK", "0") == "0":  # under torchrun only the first process prints
        print(step, file=sys.stderr)  # noqa: T201  a command's own progress

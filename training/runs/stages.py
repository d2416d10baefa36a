"""Run several training stages in one folder. A stopped run can be resumed.

OUT/
├── run.json, best/ last/     copied from the last stage when all stages are finished
├── steps.json                the number of steps of each stage
├── 0-vocabulary/             the base with its new tokens
└── 1-mlm/ 2-triples/ …       the run of each stage

A short trial on this machine measures how many steps fit into the minutes of a stage. The number must be
known before the stage begins, because the learning rate depends on it. A resumed run keeps the number.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from models.files.bounded import parse_json
from models.files.fsync import replace_text
from models.messages import amount
from models.progress import silent
from models.sources.folder import read_source
from models.version import VERSION
from training.errors import NothingToLearn, TrainingError
from training.methods.recipe import Recipe
from training.methods.sources import steps_of_a_round
from training.methods.stages import Stages
from training.model.base import find_version
from training.model.encoder import compute_digest
from training.model.new_bases import extend
from training.runfile import FILE_NAME as RUN
from training.runfile import Identity, Result, claim, read_run, write_run
from training.runs.device import open_device
from training.runs.loop import goes_in_bf16, run
from training.runs.options import Options, unheard
from training.runs.record import FILE_NAME as RECORD
from training.text.corpus import TEXTS, Corpus, Kind, holds, read_corpus

COUNTED = "steps.json"
_TRIAL = 10  # steps; the first is slow


class Part(NamedTuple):
    """A stage together with the corpus to train on, and the minutes for it."""

    name: str
    recipe: Recipe
    corpus: Corpus
    minutes: float


def read_corpora(stages: Stages, files: Sequence[Path]) -> dict[Kind, Corpus]:
    """Reads the corpora of all stages: for each kind of rows, the first file with rows of that kind.

    Raises:
        TrainingError: A file cannot be read.
    """
    found = {}
    for kind in {recipe.source.kind for recipe in stages.recipes()}:
        file = next((file for file in files if holds(file, kind)), None)
        if file is not None:
            found[kind] = read_corpus(file, kind)
    return found


def run_stages(
    stages: Stages, corpora: Mapping[Kind, Corpus], base: Path, out: Path, options: Options
) -> Result:
    """Runs all stages. Each stage starts with the weights of the previous one. Returns the last result.

    Raises:
        TrainingError: The stages, corpora or folder cannot be used.
        ModelError: The base cannot be used.
    """
    # The dev set is English, so it would choose the step that has learned the least of another language.
    options = replace(options, data=None, resume=options.resume and (out / RUN).is_file())
    bf16 = goes_in_bf16(out, options, open_device(options.device))
    options = replace(options, precision="bf16" if bf16 else "fp32")  # of every stage
    parts = build_parts(stages, corpora, options)
    identity = _identity(stages, parts, base, options)
    claim(out, identity, resume=options.resume)
    found = read_run(out)
    if "finished" in found:
        options.say(f"{out} is finished already")
        state = found["finished"]
        return Result(out, state["done"], interrupted=False, loss=state["loss"])
    begin = base
    if stages.vocabulary:
        begin = _vocabulary(parts, begin, out / "0-vocabulary", stages.vocabulary, options)
    steps: list[int] = []
    made: list[Part] = []
    name = identity["base_name"]
    for part in parts:
        known = replace(options, base_name=name, parent=identity["parent"], resume=False)
        within = out / part.name
        try:
            count = steps_within(part.minutes, part.recipe, part.corpus, begin, out, known, part.name)
            known = replace(known, steps=count, resume=(within / RUN).is_file())
            options.say(f"stage {part.name}: {amount(count, 'step')} on {part.corpus}")
            result = run(part.recipe, part.corpus, begin, within, known)
        except NothingToLearn as error:
            if not made:
                raise
            options.say(f"stage {part.name} is left out: {error}")
            continue
        if not result.finished or (result.interrupted and part is not parts[-1]):
            return replace(result, out=out, finished=False)
        steps.append(result.steps)
        made.append(part)
        begin, name = within / "last", f"{name}, {part.recipe.name}"
        if not begin.is_dir():  # a stopped run has moved it
            begin = out / "last"
    return _finish(out, identity, made, steps, result)


def build_parts(stages: Stages, corpora: Mapping[Kind, Corpus], options: Options) -> list[Part]:
    """Returns the stages that have a corpus, and divides the total time among them.

    Raises:
        TrainingError: No stage has a corpus, or a stage would lose the pooling of the base.
    """
    chosen = []
    for stage, recipe in zip(stages.stages, stages.recipes(), strict=True):
        if recipe.result != "encoder":
            raise TrainingError(
                f"{stages.name}: the stage {recipe.name} would lose the base's pooling: "
                'set result = "encoder".'
            )
        if recipe.source.kind not in corpora:
            options.say(f"stage {recipe.name} is left out: no corpus has the rows that it reads")
            continue
        seeded = recipe if options.seed is None else replace(recipe, seed=options.seed)
        chosen.append((stage, seeded, corpora[recipe.source.kind]))
    if not chosen:
        raise TrainingError(f"{stages.name}: no corpus has the rows that its stages read.")
    whole = sum(stage.share for stage, _, _ in chosen)
    return [
        Part(f"{number}-{recipe.name}", recipe, corpus, stages.minutes * stage.share / whole)
        for number, (stage, recipe, corpus) in enumerate(chosen, 1)
    ]


def _identity(stages: Stages, parts: Sequence[Part], base: Path, options: Options) -> Identity:
    return {
        "method": stages.name,
        **build_lineage_identity(stages, parts),
        "texts": sum({part.corpus.digest: len(part.corpus) for part in parts}.values()),
        "base": compute_digest(read_source(base)),
        "base_name": options.base_name or base.name,
        "parent": options.parent or find_version(base),
        "steps": None,  # of each stage: the plan
        "precision": options.precision,
        "code": VERSION,
        "result": "encoder",
    }


def build_lineage_identity(stages: Stages, parts: Sequence[Part]) -> Identity:
    """Returns the identity of a run of stages for the lineage. Equal identity and base give equal models."""
    corpora = " ".join(part.corpus.digest for part in parts)
    return {
        "recipe": stages.digest(),
        "corpus": hashlib.sha256(corpora.encode()).hexdigest(),
        "seed": parts[0].recipe.seed,
    }


def _vocabulary(parts: Sequence[Part], base: Path, folder: Path, count: int, options: Options) -> Path:
    """Adds up to `count` new tokens to the base, unless this was already done before a resumption.

    Returns:
        The folder of the base with the new tokens.

    """
    if not folder.is_dir():
        texts = next((part.corpus for part in parts if part.recipe.source.kind is TEXTS), parts[0].corpus)
        half = folder.with_name(f".{folder.name}")
        shutil.rmtree(half, ignore_errors=True)
        added = extend(base, texts.texts, half, count)
        half.rename(folder)
        options.say(f"{added:,} new tokens")
    return folder


def _finish(
    out: Path, identity: Identity, parts: Sequence[Part], steps: Sequence[int], result: Result
) -> Result:
    for name in ("best", "last"):
        if (out / parts[-1].name / name).is_dir():
            shutil.rmtree(out / name, ignore_errors=True)
            (out / parts[-1].name / name).rename(out / name)
    made: list[dict[str, Any]] = []
    for part, count in zip(parts, steps, strict=True):
        digests = {"recipe": part.recipe.digest(), "corpus": part.corpus.digest}
        made.append({"method": part.recipe.name, **digests, "steps": count})
    state = {"done": sum(steps), "loss": result.loss, "dev": {str(k): v for k, v in result.dev.items()}}
    write_run(out, identity | {"stages": made, "finished": state})
    return replace(result, out=out, steps=sum(steps))


def steps_within(
    minutes: float,
    recipe: Recipe,
    corpus: Corpus,
    base: Path,
    folder: Path,
    options: Options,
    name: str = "run",
) -> int:
    """Returns the number of training steps that fit into `minutes`: at least 1, at most all epochs.

    Args:
        minutes: Time for the training.
        recipe: Recipe to train.
        corpus: Corpus to train on.
        base: Folder of the base.
        folder: Folder with steps.json, which stores the number for a resumed run.
        options: Options of the run.
        name: Key of the number in steps.json.
    """
    kept = folder / COUNTED
    counted: dict[str, int] = parse_json(kept.read_bytes()) if kept.is_file() else {}
    if name not in counted:
        most = recipe.optim.epochs * steps_of_a_round(len(corpus), recipe.optim.batch)
        trial = folder / ".trial"
        shutil.rmtree(trial, ignore_errors=True)
        tried = min(_TRIAL, most)
        options.say(f"timing {tried} steps, to see how many fit into {minutes:g} min")
        timed = replace(options, steps=tried, data=None, dev=None, choose=None, say=silent, told=unheard)
        if run(recipe, corpus, base, trial, timed).interrupted:
            shutil.rmtree(trial)
            raise KeyboardInterrupt
        fitting = 60 * minutes * _rate(trial) / recipe.optim.batch
        shutil.rmtree(trial)
        counted[name] = max(1, min(most, int(fitting)))
        replace_text(kept, json.dumps(counted, indent=2) + "\n")
    return counted[name]


def _rate(trial: Path) -> float:
    """Returns the rows per second of the trial run."""
    events = [json.loads(line) for line in (trial / RECORD).read_text(encoding="utf-8").splitlines()]
    found: float = next(event["sentences_per_second"] for event in events if event["event"] == "step")
    return found

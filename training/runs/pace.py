"""The steps that fit into some minutes on this machine, by a short trial.

The learning rate falls to the end of a run, so its steps are counted before it begins, and kept: a run that
was stopped goes on with the same number.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from models.files.bounded import parse_json
from models.files.fsync import replace_text
from models.progress import silent
from training.methods.recipe import Recipe
from training.methods.sources import steps_of_a_round
from training.runs.log import FILE_NAME as RECORD
from training.runs.loop import run
from training.runs.options import Options, unheard
from training.text.corpus import Corpus

COUNTED = "steps.json"
_TRIAL = 10  # steps; the first is slow


def steps_within(
    minutes: float,
    recipe: Recipe,
    corpus: Corpus,
    base: Path,
    folder: Path,
    options: Options,
    name: str = "run",
) -> int:
    """Steps of `recipe` in these minutes, or of all its epochs if those are fewer; one at least.

    name: of the run, for the number that is kept in `folder`.
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
    """Rows of a second."""
    events = [json.loads(line) for line in (trial / RECORD).read_text(encoding="utf-8").splitlines()]
    found: float = next(event["sentences_per_second"] for event in events if event["event"] == "step")
    return found

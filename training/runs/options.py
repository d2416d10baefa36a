"""The options of a run: how a recipe is run, as a command or a retraining gives them. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.words.progress import silent
from training import arguments
from training.errors import TrainingError
from training.evaluation.encoding import Choose
from training.runs.dev import Score

Told = Callable[[Mapping[str, Any]], None]  # hears each line of a run's record


def unheard(event: Mapping[str, Any]) -> None:
    """Listen to nothing."""


@dataclass(frozen=True)
class Options:
    """None of them but `seed` and `batch` is a part of the method. Raise TrainingError for a wrong number."""

    steps: int | None = None  # None: each row once
    seed: int | None = None  # instead of the recipe's
    batch: int | None = None  # instead of the recipe's
    precision: str = "auto"  # auto, bf16 or fp32
    device: str = "auto"  # auto, or as torch names it
    threads: int | None = None  # of torch; None: its own choice
    chunk: int | None = None  # rows that are encoded at once, which changes nothing but memory and time
    eval_steps: int = 125  # SimCSE's run_unsup_example.sh
    checkpoint_steps: int = 100
    record_steps: int = 10
    data: Path | None = None  # the folder that has stsb/dev.tsv.gz, if any
    dev: Score | None = None  # chooses the best step instead of STS-B dev
    base_name: str = ""  # the folder's, unless given
    parent: str | None = None  # the published version that the base came from, where it is none itself
    choose: Choose | None = None  # which share of the training is kept; None: all of it
    resume: bool = False
    progress: bool = False
    say: Callable[[str], None] = silent  # told what happens
    told: Told = unheard

    def __post_init__(self) -> None:
        _check("batch", self.batch, 2)
        _check("seed", self.seed, 0, arguments.SEEDS)
        for name in ("steps", "threads", "chunk", "eval_steps", "checkpoint_steps", "record_steps"):
            _check(name, getattr(self, name), 1)


def _check(name: str, number: int | None, least: int, below: float = math.inf) -> None:
    if number is not None and not least <= number < below:
        raise TrainingError(
            f"{name} must be a whole number {arguments.whole_range(least, below)}, not {number}."
        )

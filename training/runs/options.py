"""The options of a run: how a recipe is run, as a command or a retraining gives them. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.progress import silent
from training.evaluation.encoding import Choose
from training.runs.dev import Score

Told = Callable[[Mapping[str, Any]], None]  # hears each line of a run's record


def unheard(event: Mapping[str, Any]) -> None:
    """Listen to nothing."""


@dataclass(frozen=True)
class Options:
    """None of them but `seed` and `batch` is a part of the method. Who takes them from people checks them."""

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

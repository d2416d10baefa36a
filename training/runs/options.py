"""Options of a training run that are not part of the recipe. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.progress import silent
from training.evaluation.encoding import Choose
from training.runs.dev import Score

Told = Callable[[Mapping[str, Any]], None]  # receives each line of a run's record


def unheard(event: Mapping[str, Any]) -> None:
    """Ignores the event."""


@dataclass(frozen=True)
class Options:
    """Options of a run. Only `seed` and `batch` belong to the method. Callers validate user input."""

    steps: int | None = None  # None: each row once
    seed: int | None = None  # instead of the recipe's
    batch: int | None = None  # instead of the recipe's
    precision: str = "auto"  # auto, bf16 or fp32
    device: str = "auto"  # auto, or as torch names it
    threads: int | None = None  # threads of torch; None: torch's default
    chunk: int | None = None  # rows encoded at once; affects memory and time only
    eval_steps: int = 125  # as in SimCSE's run_unsup_example.sh
    checkpoint_steps: int = 100
    record_steps: int = 10
    data: Path | None = None  # folder with stsb/dev.tsv.gz
    dev: Score | None = None  # chooses the best step instead of STS-B dev
    base_name: str = ""  # the name of the folder by default
    parent: str | None = None  # published version that the base came from, unless the base is one itself
    choose: Choose | None = None  # scores the shares of the training that may be kept; None: all is kept
    resume: bool = False
    progress: bool = False
    say: Callable[[str], None] = silent
    told: Told = unheard

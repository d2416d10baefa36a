"""Write progress.json into the models folder, from which the service reports the progress of a retraining."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from models.files.retrainings import now, remove_progress, write_progress
from models.progress import Say
from training.runs.record import Curve

EVERY = 1.0  # minimum seconds between two writes during training


class Watch:
    """Writes progress.json during a retraining.

    The retraining calls `say` when a long step begins, and `told` with each event of a training record.
    """

    def __init__(self, models: Path, say: Say) -> None:
        self._models, self._say = models, say
        self._began = now()
        self._doing = "beginning"
        self._curve, self._step = Curve(), 0
        self._first, self._since = 0, 0.0  # first step of the current training, and its start time
        self._written = 0.0

    def say(self, step: str) -> None:
        self._say(step)
        self._doing = step
        self._write()

    def told(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        self._step = event.get("step", self._step)
        if kind == "start":  # Another training begins, for example on the other half of the queries.
            self._curve, self._step = Curve(), 0
        if kind in {"start", "resume"}:
            self._first, self._since = self._step, time.monotonic()
        if kind in {"start", "resume", "step"}:
            self._doing = "training"
        self._curve.add(event)
        if kind != "step" or time.monotonic() - self._written > EVERY:
            self._write()

    def _eta(self) -> float | None:
        """Estimates the remaining seconds of the training, or returns None before the first finished step."""
        made, steps = self._step - self._first, self._curve.steps
        if made <= 0 or steps is None:
            return None
        return round((time.monotonic() - self._since) * (steps - self._step) / made, 1)

    def _write(self) -> None:
        self._written = time.monotonic()
        content = {
            "started": self._began,
            "updated": now(),
            "doing": self._doing,
            "step": self._step,
            "steps": self._curve.steps,
            "eta_seconds": self._eta(),
            **self._curve.shown(),
        }
        # A full disk does not end the training here. The next checkpoint reports it.
        with contextlib.suppress(OSError):
            write_progress(self._models, content)


@contextlib.contextmanager
def watched(models: Path, say: Say) -> Iterator[Watch]:
    """Yields a Watch, and removes progress.json at the end of the `with` block."""
    watch = Watch(models, say)
    try:
        yield watch
    finally:
        with contextlib.suppress(OSError):
            remove_progress(models)

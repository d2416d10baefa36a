"""The making of a candidate: train, and export what came of it. A run that was stopped goes on."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from models.publishing.publish import Say
from models.store import Store
from training.errors import TrainingError
from training.runfile import FILE_NAME as RUN
from training.runfile import OtherRun, Result
from training.runs.command import train
from training.runs.export import export_run
from training.runs.options import Options
from training.text.corpus import Corpus

if TYPE_CHECKING:
    from training.methods.recipe import Recipe


class Interrupted(TrainingError):
    """Ctrl-C. The same job goes on from there when its work folder was kept."""


class Making(NamedTuple):
    """A way to make a model out of a corpus."""

    recipe: Recipe
    base: Path
    anchor: str | None  # the version that the line of models began with
    options: Options

    def artifact(self, corpus: Corpus, place: Path, say: Say) -> tuple[Store, str]:
        """A store in `place` and the version in it. Raise Interrupted, or ProofFailed."""
        result = self._train(corpus, place / "run", say)
        if result.interrupted:
            raise Interrupted(f"Stopped after step {result.steps}; nothing was published.")
        artifacts = Store(place / "artifact")
        return artifacts, export_run(place / "run", artifacts, anchor=self.anchor, say=say).version

    def _train(self, corpus: Corpus, run: Path, say: Say) -> Result:
        """Go on with the run in `run`; begin anew where there is none, or one that cannot go on."""
        if (run / RUN).is_file():
            try:
                return train(self.recipe, corpus, self.base, run, replace(self.options, resume=True))
            except OtherRun as error:
                say(f"training begins anew: {error.why}")
                shutil.rmtree(run)
        return train(self.recipe, corpus, self.base, run, self.options)

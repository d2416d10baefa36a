"""A training of several stages, which a retraining runs like a training of a single recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from training.methods.stages import Stages
from training.runfile import Identity, Result
from training.runs.options import Options
from training.runs.stages import build_lineage_identity, build_parts, run_stages
from training.text.corpus import Corpus, Kind


class Staged(NamedTuple):
    stages: Stages
    corpora: Mapping[Kind, Corpus]
    seed: int | None  # of every recipe; None: its own

    def lineage(self) -> Identity:
        """Returns the part of the trained model's lineage that identifies recipes, rows and seed."""
        return build_lineage_identity(
            self.stages, build_parts(self.stages, self.corpora, Options(seed=self.seed))
        )

    def train(self, base: Path, run: Path, options: Options) -> Result:
        """Raise as `run_stages`."""
        known = replace(options, steps=None, dev=None, choose=None, seed=self.seed)
        return run_stages(self.stages, self.corpora, base, run, known)

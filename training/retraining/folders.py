"""Where a retraining finds the versions, and where it works."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from models.store import models_dir
from training.retraining.config import Config


class Folders(NamedTuple):
    models: Path
    work: Path  # the run in hand; what a killed run had done is in it


def folders(config: Config) -> Folders:
    models = config.folders.models or models_dir(os.environ)
    return Folders(models, config.folders.work or models.parent / "retrain")

"""A fixture: the folder of the published tiny model."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def folder(tiny_models_dir: Path) -> Path:
    return next(tiny_models_dir.glob("2*"))

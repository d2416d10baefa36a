"""Fixtures: an empty store, a tiny source folder, and an encoder of the tiny model."""

from pathlib import Path

import pytest

from models.encoder import Encoder
from models.store import ModelStore
from tests.tiny import tiny_source


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "models")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_source(tmp_path / "model")


@pytest.fixture(scope="module")
def encoder(tiny_models_dir: Path) -> Encoder:
    [manifest] = ModelStore(tiny_models_dir).versions()
    return ModelStore(tiny_models_dir).open(manifest.version)

"""Fixtures that every part uses: a tiny real model, as a source folder and as a published version."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.builtin import publish_default, wheel_path
from models.publish import publish
from models.store import Store
from tests.tiny import tiny_source as make_tiny_source


@pytest.fixture(scope="session")
def tiny_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's source folder, seed 0. Read only: it is shared by the whole session."""
    return make_tiny_source(tmp_path_factory.mktemp("tiny") / "tiny")


@pytest.fixture(scope="session")
def tiny_models_dir(tmp_path_factory: pytest.TempPathFactory, tiny_source: Path) -> Path:
    """A models folder in which the tiny model is published and wanted. Copy it before you change it."""
    store = Store(tmp_path_factory.mktemp("models") / "models")
    store.want(publish(store, tiny_source).version)
    return store.root


@pytest.fixture(scope="session")
def default_models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models folder in which the default model is published and wanted. Read only: copy it to change it."""
    if not wheel_path().is_file():
        pytest.skip(f"needs the default model's wheel at {wheel_path()} (`make test` downloads it)")
    store = Store(tmp_path_factory.mktemp("default") / "models")
    store.want(publish_default(store).version)
    return store.root

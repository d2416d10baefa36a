"""Models that `--base` may name: `default`, a published version, a folder, or a hub id, as a folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from models.errors import ModelUnavailable
from models.manifest import Manifest, check
from models.messages import did_you_mean
from models.publishing.default import ORIGIN, default_source
from models.sources.hub import fetch, is_hub_id
from models.store import Store
from training.errors import TrainingError
from training.model_names import find_model


class Base(NamedTuple):
    folder: Path
    name: str
    version: str | None  # when it is a published one


@contextlib.contextmanager
def open_base(name: str, models_dir: Path) -> Iterator[Base]:
    """Raise ModelUnavailable when there is no such model here, Damaged when the version is not whole."""
    if name == "default":
        with default_source() as default:
            yield Base(default, ORIGIN, None)
    elif found := find_model(name, Store(models_dir)):
        if found.folder.parent == models_dir:  # a copy elsewhere may have been changed on purpose
            check(found.folder)
        yield Base(found.folder, found.name, version_of(found.folder))
    elif name in ("active", "anchor"):
        raise TrainingError(
            f"`{name}` is for retrain; name a version, as `python -m models list` shows them."
        )
    elif is_hub_id(name):
        yield Base(fetch(name), name, None)
    else:
        hint = did_you_mean(name, ["default", *Store(models_dir).names()])
        raise ModelUnavailable(
            f"There is no model {name!r}.{hint} Name `default`, a version, a folder or a hub id."
        )


def check_base(name: str, models_dir: Path) -> None:
    """Raise as `open_base`."""
    with open_base(name, models_dir):
        pass


def version_of(folder: Path) -> str | None:
    """The version that a folder is, when it is a published one."""
    try:
        return Manifest.read(folder).version
    except (OSError, ValueError):
        return None

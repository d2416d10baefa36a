"""Models that `--base` may name: `default`, a published version, a folder, or a hub id, as a folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from models.errors import ModelUnavailable
from models.manifest import Manifest, is_version
from models.publishing.default import ORIGIN, default_source
from models.sources.hub import fetch, is_hub_id
from models.store import Store
from training.errors import TrainingError
from training.paths import expanded
from training.runfile import best_of


class Base(NamedTuple):
    folder: Path
    name: str
    version: str | None  # when it is a published one


@contextlib.contextmanager
def open_base(name: str, models_dir: Path) -> Iterator[Base]:
    """Raise ModelUnavailable when there is no such model here, Damaged when the version is not whole."""
    folder = expanded(name)
    if name == "default":
        with default_source() as default:
            yield Base(default, ORIGIN, None)
    elif is_version(name):
        store = Store(models_dir)
        store.verify(name)
        yield Base(store.folder(name), name, name)
    elif best := best_of(folder):  # one run goes on where another ended
        yield Base(best, folder.resolve().name, None)
    elif folder.is_dir():
        yield Base(folder, folder.resolve().name, version_of(folder))
    elif name == "active":
        raise TrainingError("`active` is for retrain; name a version, as `python -m models list` shows them.")
    elif is_hub_id(name):
        yield Base(fetch(name), name, None)
    else:
        raise ModelUnavailable(
            f"There is no model {name!r}: name `default`, a version, a folder or a hub id."
        )


def version_of(folder: Path) -> str | None:
    """The version that a folder is, when it is a published one."""
    try:
        return Manifest.read(folder).version
    except (OSError, ValueError):
        return None

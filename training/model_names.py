"""Find a model on disk by name: a published version, a run's best step, or a folder."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from models.errors import UnknownVersion
from models.manifest import FILE_NAME, is_version
from models.store import ModelStore
from training.arguments import expanded
from training.errors import TrainingError
from training.runfile import find_best


class Found(NamedTuple):
    folder: Path
    name: str  # the version, or the last part of the path of a run or folder
    published: bool  # sealed, with a manifest


def find_model(name: str, store: ModelStore) -> Found | None:
    """Returns the model that `name` denotes, or None. A folder is preferred to a version of the same name.

    Raises:
        TrainingError: `name` looks like a version, but the version does not exist.

    """
    folder = expanded(name)
    if is_version(name) and not folder.is_dir():
        try:
            return Found(store.folder(name), name, published=True)
        except UnknownVersion as error:
            raise TrainingError(f"{error} Looked in {store.root}; SIMILE_MODELS_DIR names it.") from None
    if best := find_best(folder):
        return Found(best, folder.resolve().name, published=False)
    if folder.is_dir():
        return Found(folder, folder.resolve().name, (folder / FILE_NAME).is_file())
    return None

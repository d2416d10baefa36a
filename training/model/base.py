"""Open the folder of the base model that `--base` names.

A base is `default`, a published version, a folder, or the id of a model on the Hugging Face hub.
"""

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
from models.store import ModelStore
from training.errors import TrainingError
from training.model_names import find_model


class Base(NamedTuple):
    folder: Path
    name: str
    version: str | None  # None if the base is not a published version


@contextlib.contextmanager
def open_base(name: str, models_dir: Path) -> Iterator[Base]:
    """Yields the base that `name` denotes. Its folder may be deleted after the `with` block.

    Args:
        name: `default`, a published version, a folder, or a hub id.
        models_dir: Folder of published versions.

    Raises:
        ModelUnavailable: The model does not exist.
        Damaged: A file of the version is missing or changed.
        TrainingError: The name is `active` or `anchor`, which only `retrain` accepts.

    """
    if name == "default":
        with default_source() as default:
            yield Base(default, ORIGIN, None)
    elif found := find_model(name, ModelStore(models_dir)):
        if found.folder.parent == models_dir:  # copies in other folders may be changed on purpose
            check(found.folder)
        yield Base(found.folder, found.name, find_version(found.folder))
    elif name in ("active", "anchor"):
        raise TrainingError(f"`{name}` is for retrain; name a version, as `simile models list` shows them.")
    elif is_hub_id(name):
        yield Base(fetch(name), name, None)
    else:
        hint = did_you_mean(name, ["default", *ModelStore(models_dir).names()])
        raise ModelUnavailable(
            f"There is no model {name!r}.{hint} Name `default`, a version, a folder or a hub id."
        )


def check_base(name: str, models_dir: Path) -> None:
    """Opens and closes a base, so that the errors of `open_base` occur early."""
    with open_base(name, models_dir):
        pass


def find_version(folder: Path) -> str | None:
    """Returns the version name in a folder's manifest, or None if it is not a published version."""
    try:
        return Manifest.read(folder).version
    except (OSError, ValueError):
        return None

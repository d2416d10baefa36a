"""Check that a retraining publishes into the models folder of the service whose documents it reads.

A retraining reads a service at a URL, but publishes into a folder on disk. At each start, a service writes a
new id into its models folder. `GET /info` reports the same id, so a retraining can compare the two.
"""

from __future__ import annotations

from pathlib import Path

from models.progress import to_stderr
from models.store import ModelStore
from training.errors import TrainingError
from training.retraining.anchor import active_version
from training.text.service import fetch_info, shown


class OtherFolder(TrainingError):
    """The service uses another models folder, so it would never see the new version."""


def require_same_folder(url: str, models: Path) -> None:
    """Checks that the service at `url` uses the folder `models`.

    Raises:
        OtherFolder: The service uses another folder, or reports no id and has another active version.
        TrainingError: The service does not answer as expected.

    """
    info, store = fetch_info(url), ModelStore(models)
    theirs, ours = info.get("models_id"), store.id()
    if theirs is None and ours is None:
        _require_same_version(url, info.get("model_version"), store)
    elif "models_id" not in info:
        raise OtherFolder(
            f"The models folder {models.absolute()} has an id, and the service at {shown(url)} is of an "
            "earlier release, which reports none. "
            f"Delete {models.absolute() / 'id'} if the folder is this service's. "
            "Otherwise name the folder of the service: --models-dir, or folders.models in retrain.toml."
        )
    elif theirs != ours:
        named = f" {folder}" if (folder := info.get("models_dir")) else ""
        raise OtherFolder(
            f"The service at {shown(url)} uses the models folder{named} ({_shown_id(theirs)}). "
            f"This command would use {models.absolute()} ({_shown_id(ours)}), the folder of another service. "
            f"Name the folder of the service: --models-dir{named}, or folders.models in retrain.toml. "
            f"Or name the address of the service that uses {models.absolute()}."
        )


def _require_same_version(url: str, version: object, store: ModelStore) -> None:
    """Compares active versions instead. Used if the service reports no id, as earlier releases do."""
    ours, service = active_version(store), f"The service at {shown(url)}"
    if version != ours:
        raise OtherFolder(
            f"{service} does not report the id of its models folder, and its active version is {version}. "
            f"The active version in {store.root.absolute()} is {ours}: it is the folder of another service. "
            "Name the folder of the service: --models-dir, or folders.models in retrain.toml."
        )
    to_stderr(
        f"! {service} does not report the id of its models folder. It has the active version {ours}, as "
        f"{store.root.absolute()} has, so this folder is taken for the service's."
    )


def _shown_id(id: object) -> str:
    return f"id {id}" if id else "without an id"

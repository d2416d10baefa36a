"""The folders of a retraining: its work folder, and the models folder, which must be the service's.

A killed process cannot remove its temporary folder, so the next retraining does. A running process holds a
lock on its folder, which protects the folder. At most one retraining works on a models folder at a time.

A retraining reads a service at a URL, but publishes into a models folder on disk. At each start, a service
writes a new id into its models folder, which `GET /info` reports, so `require_same_folder` can compare them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

from models.files.folders import lock
from models.progress import to_stderr
from models.store import ModelStore
from training.errors import Busy, TrainingError
from training.retraining.lineage import active_version
from training.text.service import fetch_info, shown

_PREFIX = "simile-retrain-"


@contextlib.contextmanager
def alone(store: ModelStore) -> Iterator[None]:
    """Locks the models folder, if it exists, inside the `with` block. Raises Busy if it is already locked."""
    with contextlib.ExitStack() as opened:
        if store.root.is_dir():
            if (held := lock(store.root)) is None:
                raise Busy(f"Another retraining is at work on {store.root}. Wait for it, or stop it.")
            opened.callback(os.close, held)
        yield


@contextlib.contextmanager
def workplace(kept: Path | None) -> Iterator[Path]:
    """Yields the folder `kept`, created if missing. If `kept` is None, yields a temporary folder.

    The temporary folder is removed afterwards, even after SIGTERM, which ends the process like Ctrl-C inside
    the `with` block.
    """
    with contextlib.ExitStack() as opened:
        if kept is None:
            _sweep()
            kept = Path(tempfile.mkdtemp(prefix=_PREFIX))
            if (held := lock(kept)) is not None:
                opened.callback(os.close, held)
            opened.callback(shutil.rmtree, kept, ignore_errors=True)
        kept.mkdir(parents=True, exist_ok=True)
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        opened.callback(signal.signal, signal.SIGTERM, before)
        yield kept


def _sweep() -> None:
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # The folder belongs to another user.
            if (held := lock(left)) is not None:
                shutil.rmtree(left, ignore_errors=True)
                os.close(held)


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
        # The service cannot write an id into its models folder.
        version, ours = info.get("model_version"), active_version(store)
        service, place = f"The service at {shown(url)}", models.absolute()
        if version != ours:
            raise OtherFolder(
                f"{service} does not report the id of its models folder, and its active version is "
                f"{version}. The active version in {place} is {ours}: it is the folder of another service. "
                "Name the folder of the service: --models-dir, or folders.models in retrain.toml."
            )
        to_stderr(
            f"! {service} does not report the id of its models folder. It has the active version {ours}, as "
            f"{place} has, so this folder is taken for the service's."
        )
    elif theirs != ours:
        named = f" {folder}" if (folder := info.get("models_dir")) else ""
        raise OtherFolder(
            f"The service at {shown(url)} uses the models folder{named} ({_shown_id(theirs)}). "
            f"This command would use {models.absolute()} ({_shown_id(ours)}), the folder of another service. "
            f"Name the folder of the service: --models-dir{named}, or folders.models in retrain.toml. "
            f"Or name the address of the service that uses {models.absolute()}."
        )


def _shown_id(id: object) -> str:
    return f"id {id}" if id else "without an id"

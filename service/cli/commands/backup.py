"""`python -m service backup FOLDER`: the whole store at one moment, while the service runs or not.

    FOLDER/
    ├── manifest.json     what it holds, the schema, the versions it needs, size and SHA-256 of every file
    ├── simile.db         documents, vectors, judgements, events, generations; nothing that was deleted
    └── models/VERSION/…  with --models

The folder is written aside, locked, and renamed: it is there whole or not at all. What a backup that was
killed left aside is removed by the next one in the same place. An index is never in it, since every index is
made from the vectors.
"""

import argparse
import contextlib
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version as package_version
from pathlib import Path

from models.errors import ModelError
from models.files.copying import copy_tree
from models.files.fsync import sync, sync_tree
from models.files.lock import lock
from models.store import Store
from service.cli.commands.backup_manifest import MANIFEST, MODELS, Contents, listed
from service.errors import CommandError, unwritable
from service.settings import Settings, models_dir_of
from service.store.offline import DATABASE, copy

_ASIDE = ".simile-backup-"  # and eight hex digits: a backup in the making
_ASIDE_NAME = re.compile(rf"{re.escape(_ASIDE)}[0-9a-f]{{8}}")
_HOLDS = {MANIFEST, MODELS, DATABASE, f"{DATABASE}-journal", f"{DATABASE}-wal", f"{DATABASE}-shm"}


def describe(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `backup`."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="is made; must not be there yet")
    parser.add_argument("--models", action="store_true", help="copy the model versions that it needs, too")
    parser.add_argument("--data-dir", type=Path, help="of the service; SIMILE_DATA_DIR unless named")


def run(arguments: argparse.Namespace, settings: Settings) -> str:
    """Do it; what to print.

    Raises:
        CommandError: it cannot be done. No folder was left behind.

    """
    data_dir = arguments.data_dir or settings.data_dir
    folder: Path = arguments.folder
    try:
        if folder.exists() or folder.is_symlink():
            raise CommandError(f"{folder} is there already. Name a folder that is not.")
        folder.parent.mkdir(parents=True, exist_ok=True)
        swept = _sweep(folder.parent)
        with _aside(folder.parent) as aside:
            contents = _copy_store(data_dir, aside)
            if arguments.models:
                models = Store(models_dir_of(settings, arguments.data_dir))
                _copy_models(models, contents.versions, aside / MODELS)
            contents = contents.model_copy(update={"files": listed(aside)})
            (aside / MANIFEST).write_text(contents.text(), encoding="utf-8")
            sync_tree(aside)
            aside.rename(folder)
        sync(folder.parent)
    except OSError as error:
        raise CommandError(unwritable(folder, error, "No backup was left behind.")) from error
    needs = "" if arguments.models else f" It needs {contents.active} in the models folder."
    said = f"{contents.counts()} are in {folder}.{needs}"
    return f"{said}\n{swept} unfinished backups were removed from {folder.parent}." if swept else said


@contextlib.contextmanager
def _aside(parent: Path) -> Iterator[Path]:
    """An empty folder that this process holds locked; what is left of it at the end is removed."""
    folder = parent / f"{_ASIDE}{secrets.token_hex(4)}"
    folder.mkdir()
    holder = os.open(folder, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # renamed away when it is whole
        os.close(holder)


def _sweep(parent: Path) -> int:
    """Remove what backups left that were killed; a living one holds the lock of its folder.

    An empty folder is left alone: its backup may be about to lock it.
    """
    swept = 0
    for left in sorted(parent.iterdir()):
        if not _ASIDE_NAME.fullmatch(left.name) or left.is_symlink() or not left.is_dir():
            continue
        with contextlib.suppress(OSError):  # another sweep took it, or it is another user's
            held = {path.name for path in left.iterdir()}
            if not held or not held <= _HOLDS or (holder := lock(left)) is None:
                continue
            shutil.rmtree(left, ignore_errors=True)
            os.close(holder)
            swept += not left.exists()
    return swept


def _copy_store(data_dir: Path, folder: Path) -> Contents:
    facts, judgements, events = copy(data_dir, folder)
    if not facts.active:
        raise CommandError(f"{data_dir} has no version in service: no service has started on it yet.")
    return Contents(
        simile=package_version("simile"),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        sequence=facts.sequence,
        documents=facts.documents,
        judgements=judgements,
        events=events,
        active=facts.active[0],
        versions=facts.versions,
    )


def _copy_models(store: Store, versions: list[str], to: Path) -> None:
    """Copy the versions that are still published; the active one must be."""
    for at, version in enumerate(versions):
        try:
            store.verify(version)
            copy_tree(store.folder(version), to / version)
            Store(to).verify(version)
        except ModelError as error:
            if at == 0:
                raise CommandError(f"The version in service cannot be copied: {error}") from error

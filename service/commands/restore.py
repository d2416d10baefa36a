"""`python -m service restore FOLDER`: a backup becomes the store of a data directory that no service owns.

    check every byte ─▶ copy aside ─▶ check the copy ─▶ what was there moves aside ─▶ one rename

Killed at any point before the last step, the directory holds what it held; the same command
again finishes. A backup of an older schema is brought to today's by the next start.
"""

import argparse
import contextlib
import shutil
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from models.errors import ModelError
from models.fsync import sync
from models.store import Store
from service.commands.backup import MODELS, Contents, damaged, read_contents
from service.commands.errors import CommandError
from service.ownership import Ownership
from service.schema import DATABASE
from service.settings import Settings, StartupError
from service.snapshots import FOLDER

ASIDE = ".restoring"
REPLACED = "replaced-"  # and the time: what was there before


def describe(parser: argparse.ArgumentParser) -> None:
    """What may stand behind `restore`."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="that `backup` made")
    parser.add_argument("--data-dir", type=Path, help="where to; SIMILE_DATA_DIR unless named")
    parser.add_argument("--force", action="store_true", help="move the store that is there aside")


def run(arguments: argparse.Namespace, settings: Settings) -> str:
    """Do it; what to print.

    Raises:
        CommandError: it cannot be done; the data directory is as it was.

    """
    folder: Path = arguments.folder
    data_dir: Path = arguments.data_dir or settings.data_dir
    contents = read_contents(folder)
    _check(folder, contents, folder)
    try:
        ownership = Ownership(data_dir)
    except StartupError as error:
        raise CommandError(str(error)) from error
    try:
        moved = _restore(folder, contents, data_dir, settings.models_dir, force=arguments.force)
    except OSError as error:
        raise CommandError(f"{data_dir} cannot be written ({error.strerror or error}).") from error
    finally:
        shutil.rmtree(data_dir / ASIDE, ignore_errors=True)
        ownership.release()
    said = [f"{contents.documents} documents and {contents.judgements} judgements are in {data_dir}."]
    if moved is not None:
        said.append(f"What was there is in {moved}; remove it when you are sure.")
    try:
        Store(settings.models_dir).verify(contents.active)
    except ModelError as error:
        where = settings.models_dir
        said.append(f"The service cannot start yet: it needs {contents.active} in {where} ({error})")
    return "\n".join(said)


def _check(folder: Path, contents: Contents, named: Path) -> None:
    if problems := list(damaged(folder, contents)):
        raise CommandError(f"{named} is damaged: {'; '.join(problems)}. Nothing was restored.")


def _restore(
    folder: Path, contents: Contents, data_dir: Path, models_dir: Path, *, force: bool
) -> Path | None:
    """Returns where the store went that was there."""
    there = sorted(_there(data_dir))
    if (data_dir / DATABASE).exists() and not force:
        raise CommandError(
            f"{data_dir} holds a store. Name another with --data-dir, or move that one aside with --force."
        )
    aside = data_dir / ASIDE
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(folder, aside)
    _check(aside, contents, folder)  # a disk may write other bytes than it was given
    for path in aside.rglob("*"):
        sync(path)
    for version in contents.versions:
        _restore_model(aside / MODELS / version, models_dir / version)
    moved = _move_aside(there, data_dir) if there else None
    (aside / DATABASE).replace(data_dir / DATABASE)
    sync(data_dir)
    return moved


def _there(data_dir: Path) -> Iterator[Path]:
    """What belongs to the store in a data directory; indexes too, which are of another moment."""
    for name in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", FOLDER):
        if (data_dir / name).exists():
            yield data_dir / name


def _move_aside(there: list[Path], data_dir: Path) -> Path:
    """The store itself last, and by a second name only: until it is replaced the directory has it."""
    store = data_dir / DATABASE
    to = data_dir / f"{REPLACED}{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
    to.mkdir()
    log = [store.with_name(store.name + ending) for ending in ("-wal", "-shm")]
    if store in there:
        # What the write-ahead log holds goes into the file. One that is too damaged for that keeps its log.
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(store)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
    for path in there:
        if path != store and path not in log and path.exists():
            path.rename(to / path.name)
    if log[0].exists():
        store.rename(to / DATABASE)
    elif store.exists():
        (to / DATABASE).hardlink_to(store)
    for path in log:
        if path.exists():
            path.rename(to / path.name)
    sync(to)
    return to


def _restore_model(found: Path, to: Path) -> None:
    """A version of the backup, unless it was copied without, or the version is there."""
    if found.is_dir() and not to.exists():
        to.parent.mkdir(parents=True, exist_ok=True)
        copy = to.with_name(f".tmp-{to.name}")  # the models folder sweeps it, should this be killed
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(found, copy)
        for path in [*copy.rglob("*"), copy]:
            sync(path)
        copy.rename(to)
        sync(to.parent)

"""`python -m service restore FOLDER`: a backup becomes the store of a data directory that no service owns.

    check every byte ─▶ copy aside ─▶ check copy and tables ─▶ what was there moves aside ─▶ one rename

A backup may come from anywhere: what its manifest does not list, a link, or a database that holds more than
this program's tables is refused before anything runs on it.

Killed at any point before the last step, the directory holds what it held; the same command
again finishes. A backup of an older schema is brought to today's by the next start.
"""

import argparse
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from models.errors import ModelError
from models.files.copying import copy_tree
from models.files.fsync import sync, sync_tree
from models.files.lock import lock
from models.store import Store
from service.cli.commands.backup_manifest import MODELS, Contents, copy_listed, read_contents, require_exact
from service.errors import CommandError, StartupError, Unusable, unwritable
from service.runtime.data_lock import ASIDE, DataDirLock
from service.settings import INDEXES, Settings, models_dir_of
from service.store.offline import DATABASE, FILES, Facts, examine, fold_log

REPLACED = "replaced-"  # and the time: what was there before


def describe(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `restore`."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="that `backup` made")
    parser.add_argument("--data-dir", type=Path, help="where to; SIMILE_DATA_DIR unless named")
    parser.add_argument(
        "--models-dir",
        type=Path,
        help="where to put models of the backup; SIMILE_MODELS_DIR, or `models` in the data directory, "
        "unless named",
    )
    parser.add_argument("--force", action="store_true", help="move the store that is there aside")


def run(arguments: argparse.Namespace, settings: Settings) -> str:
    """Do it; what to print.

    Raises:
        CommandError: it cannot be done; the data directory is as it was.

    """
    folder: Path = arguments.folder
    data_dir: Path = arguments.data_dir or settings.data_dir
    models_dir: Path = arguments.models_dir or models_dir_of(settings, arguments.data_dir)
    contents = read_contents(folder)
    require_exact(folder, contents, folder)
    try:
        data_lock = DataDirLock(data_dir)
    except StartupError as error:
        raise CommandError(str(error)) from error
    try:
        moved = _restore(folder, contents, data_dir, models_dir, force=arguments.force)
    except OSError as error:
        raise CommandError(unwritable(data_dir, error, "It holds what it held.")) from error
    finally:
        shutil.rmtree(data_dir / ASIDE, ignore_errors=True)
        data_lock.release()
    said = [f"{contents.counts()} are in {data_dir}."]
    if moved is not None:
        said.append(f"What was there is in {moved}; remove it when you are sure.")
    try:
        Store(models_dir).verify(contents.active)
    except ModelError as error:
        said.append(f"The service cannot start yet: it needs {contents.active} in {models_dir} ({error})")
    return "\n".join(said)


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
    aside.mkdir()
    copy_listed(folder, contents, aside)
    require_exact(aside, contents, folder)  # a disk may write other bytes than it was given
    _check_store(aside, contents, folder)
    copied = [version for version in contents.versions if (aside / MODELS / version).is_dir()]
    for version in copied:
        _check_model(Store(aside / MODELS), version, folder)
    sync_tree(aside)
    for version in copied:
        _restore_model(aside / MODELS / version, models_dir / version)
    moved = _move_aside(there, data_dir) if there else None
    (aside / DATABASE).replace(data_dir / DATABASE)
    sync(data_dir)
    return moved


def _check_model(store: Store, version: str, named: Path) -> None:
    try:
        store.verify(version)
    except ModelError as error:
        raise CommandError(f"{named}: {error} Nothing was restored.") from error


def _check_store(aside: Path, contents: Contents, named: Path) -> None:
    """Refuse a database whose tables, pages or numbers are not what the manifest promises."""
    try:
        problem = _wrong(examine(aside, contents.schema_), contents)
    except Unusable as error:
        problem = str(error)
    if problem is not None:
        raise CommandError(f"{named}: {DATABASE} cannot be restored: {problem}. Nothing was restored.")


def _wrong(facts: Facts, contents: Contents) -> str | None:
    for name, there, said in (
        ("operations", facts.sequence, contents.sequence),
        ("documents", facts.documents, contents.documents),
    ):
        if there != said:
            return f"it holds {there} {name}, and the manifest says {said}"
    if facts.active != [contents.active]:
        return f"the manifest names {contents.active} as the version in service, and it names another"
    return None


def _there(data_dir: Path) -> Iterator[Path]:
    """Files of the store in a data directory; indexes too, which are of another moment."""
    for name in (*FILES, INDEXES):
        if (data_dir / name).exists():
            yield data_dir / name


def _move_aside(there: list[Path], data_dir: Path) -> Path:
    """The store itself last, and by a second name only: until it is replaced the directory has it."""
    store = data_dir / DATABASE
    to = data_dir / f"{REPLACED}{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
    to.mkdir()
    log = [store.with_name(store.name + ending) for ending in ("-wal", "-shm")]
    if store in there:
        fold_log(store)
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
    if not found.is_dir() or to.exists():
        return
    copy = to.with_name(f".tmp-{to.name}")  # the models folder sweeps it, should this be killed
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        holder = lock(copy)  # so that no sweep takes it meanwhile
        try:
            copy_tree(found, copy)
            sync_tree(copy)
            copy.rename(to)
        finally:
            shutil.rmtree(copy, ignore_errors=True)  # renamed away when it is whole
            if holder is not None:
                os.close(holder)
        sync(to.parent)
    except OSError as error:
        raise CommandError(unwritable(to.parent, error, "The data directory holds what it held.")) from error

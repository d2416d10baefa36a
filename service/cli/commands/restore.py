"""`simile restore FOLDER`: restores a backup into a data directory that no service uses.

    check every byte ─▶ copy, and check the database ─▶ link the old store aside ─▶ one rename

Start reading at `run`. The old database stays in place until the final rename. After a kill, the same command
finishes the work. If the backup has an older schema, the next start of the service migrates it.

Code in the database, such as triggers, never runs. Links, files that the manifest does not list, and a
database with other tables than those of Simile are rejected.
"""

import argparse
import contextlib
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from models.errors import ModelError
from models.files.folders import copy_tree
from models.files.fsync import sync, sync_tree
from models.progress import Progress
from models.store import ModelStore
from service.cli.commands.backup import MANIFEST, MODELS, Contents, checksum, read_manifest
from service.errors import CommandError, StartupError, Unusable, unwritable
from service.runtime.data_lock import ASIDE, locked
from service.settings import INDEXES, Settings, get_models_dir
from service.store.sqlite.offline import DATABASE, FILES, examine, fold_log

REPLACED = "replaced-"  # Followed by the time: the folder of the store that was replaced.
MAX_NAMED = 10  # Damaged files in a message.


def describe(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `restore`."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a folder that `backup` wrote")
    parser.add_argument("--data-dir", type=Path, help="the target; default: SIMILE_DATA_DIR")
    parser.add_argument(
        "--models-dir",
        type=Path,
        help="the target of its models; default: SIMILE_MODELS_DIR, or `models` in the data directory",
    )
    parser.add_argument("--force", action="store_true", help="move an existing store aside")


def run(arguments: argparse.Namespace, settings: Settings) -> str:
    """Restores the backup.

    Returns:
        The text to print.

    Raises:
        CommandError: The backup cannot be restored. The database in the data directory was not replaced.

    """
    folder: Path = arguments.folder
    data_dir: Path = arguments.data_dir or settings.data_dir
    models = ModelStore(arguments.models_dir or get_models_dir(settings, arguments.data_dir))
    contents = read_manifest(folder)
    _require_intact(folder, contents)
    try:
        with locked(data_dir), contextlib.ExitStack() as ending:
            ending.callback(shutil.rmtree, data_dir / ASIDE, ignore_errors=True)
            if (data_dir / DATABASE).exists() and not arguments.force:
                raise CommandError(
                    f"{data_dir} holds a store. Name another with --data-dir, or move it aside with --force."
                )
            copied = _copy_store(folder, contents, data_dir / ASIDE)
            _copy_models(folder, contents, models)
            moved = _move_aside(data_dir)
            copied.replace(data_dir / DATABASE)
            sync(data_dir)
    except StartupError as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(unwritable(data_dir, error, "Nothing in it was changed.")) from error
    said = [f"{contents.counts()} are in {data_dir}."]
    if moved is not None:
        said.append(f"The old store is in {moved}; remove it when you are sure.")
    try:
        models.verify(contents.active)
    except ModelError as error:
        said.append(f"The service cannot start yet: it needs {contents.active} in {models.root} ({error})")
    return "\n".join(said)


def _require_intact(folder: Path, contents: Contents) -> None:
    """Checks every byte of a backup.

    Raises:
        CommandError: A file is missing, changed, not listed, or a link, or a model version is damaged.

    """
    if damage := list(_find_damage(folder, contents)):
        more = f"; and {len(damage) - MAX_NAMED} more" if len(damage) > MAX_NAMED else ""
        named = "; ".join(damage[:MAX_NAMED])
        raise CommandError(f"{folder} is damaged: {named}{more}. Nothing was restored.")
    for version in _versions(contents):
        try:
            ModelStore(folder / MODELS).verify(version)
        except ModelError as error:
            raise CommandError(f"{folder}: {error} Nothing was restored.") from error


def _find_damage(folder: Path, contents: Contents) -> Iterator[str]:
    root = folder.resolve()
    with Progress("bytes", sum(file.bytes for file in contents.files.values()), "checking") as progress:
        for name, file in contents.files.items():
            path = root / name
            if path.resolve() != path:
                yield f"{name} is a link"
            elif not path.is_file():
                yield f"{name} is missing"
            elif checksum(path, progress) != file.sha256:
                yield f"{name} was changed"
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if (path.is_symlink() or not path.is_dir()) and name not in {MANIFEST, *contents.files}:
            yield f"{name} is not listed in the manifest"


def _versions(contents: Contents) -> set[str]:
    """Returns the model versions whose files are in the backup."""
    return {PurePosixPath(name).parts[1] for name in contents.files if name != DATABASE}


def _copy_store(folder: Path, contents: Contents, aside: Path) -> Path:
    """Copies the database into the folder `aside` and checks the copy.

    Returns:
        Path of the copy.

    Raises:
        CommandError: The copy is not the store that the manifest describes.
        OSError: The copy cannot be written.

    """
    aside.mkdir()
    copied = aside / DATABASE
    shutil.copyfile(folder / DATABASE, copied)
    with Progress("bytes", copied.stat().st_size, "checking the copy") as progress:
        differs = checksum(copied, progress) != contents.files[DATABASE].sha256
    if differs:
        raise CommandError(f"{copied} differs from its source. Check the disk. Nothing was restored.")
    try:
        facts = examine(aside, contents.schema_)
    except Unusable as error:
        problem = str(error)
    else:
        found = facts.sequence, facts.documents, facts.active
        listed = contents.sequence, contents.documents, [contents.active]
        names = "operations", "documents", "active versions"
        problem = "; ".join(
            f"{name}: it holds {there}, and the manifest says {said}"
            for name, there, said in zip(names, found, listed, strict=True)
            if there != said
        )
    if problem:
        raise CommandError(f"{folder}: {DATABASE} cannot be restored: {problem}. Nothing was restored.")
    sync_tree(aside)
    return copied


def _copy_models(folder: Path, contents: Contents, models: ModelStore) -> None:
    """Copies the versions of the backup that are not in the models folder yet.

    Raises:
        CommandError: The models folder cannot be written.

    """
    try:
        for version in _versions(contents):
            if (models.root / version).exists():
                continue
            with models.temporary() as temporary:
                copy_tree(folder / MODELS / version, temporary / version)
                sync_tree(temporary / version)
                (temporary / version).rename(models.root / version)
            sync(models.root)
    except OSError as error:
        raise CommandError(unwritable(models.root, error, "The data directory was not changed.")) from error


def _move_aside(data_dir: Path) -> Path | None:
    """Moves the old store into a new folder.

    The database is not moved, but gets a second name (hard link) in the new folder. The data directory
    therefore contains a database until the restored one replaces it.

    Returns:
        The new folder, or None if the data directory contains no store.

    """
    store = data_dir / DATABASE
    if store.exists():
        fold_log(store)
    there = [path for name in (*FILES, INDEXES) if (path := data_dir / name).exists()]
    if not there:
        return None
    to = data_dir / f"{REPLACED}{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
    to.mkdir()
    for path in there:
        if path == store:
            (to / DATABASE).hardlink_to(store)
        else:
            path.rename(to / path.name)
    sync(to)
    return to

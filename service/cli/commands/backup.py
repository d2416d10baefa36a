"""`simile backup FOLDER`: copies the whole store at one moment, even while the service runs.

    FOLDER/
    ├── manifest.json     counts, schema, required versions, size and SHA-256 of every file
    ├── simile.db         documents, vectors, judgments, events and generations, without deleted data
    └── models/VERSION/…  only with --models

Start reading at `run`. The files are written into a locked temporary folder, which gets its final name at the
end. A backup is therefore complete or absent. A backup does not contain indexes, because they are rebuilt
from the vectors.
"""

import argparse
import contextlib
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from models.errors import ModelError
from models.files.bounded import read_json
from models.files.folders import copy_tree, lock
from models.files.fsync import sync, sync_tree
from models.messages import amount
from models.progress import Progress
from models.store import ModelStore
from models.version import VERSION
from service.errors import CommandError, unwritable
from service.settings import Settings, get_models_dir
from service.store.sqlite.offline import DATABASE, SCHEMA_VERSION, copy

MANIFEST, MODELS = "manifest.json", "models"
BLOCK_BYTES = 1 << 20
FORMAT = 1
_TEMPORARY = ".simile-backup-"  # Followed by eight hexadecimal digits.
_CONTENTS = {DATABASE, f"{DATABASE}-journal", MANIFEST, MODELS}  # The entries of an unfinished backup.
# The database, or a file in a model's folder. No path leads out of the backup.
_FILE_NAME = rf"^({re.escape(DATABASE)}|{MODELS}(/\.?[^/.\x00][^/\x00]*){{2,}})$"
_FileName = Annotated[str, Field(pattern=_FILE_NAME)]


class File(BaseModel):
    """Size and checksum of a file in a backup."""

    model_config = ConfigDict(extra="forbid")

    bytes: int
    sha256: str


class Contents(BaseModel):
    """The manifest of a backup."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    format: int = FORMAT
    simile: str  # the version of Simile that wrote it
    created: str  # UTC
    schema_: Annotated[int, Field(alias="schema")] = SCHEMA_VERSION
    sequence: int  # the store's operation number
    documents: int
    judgements: int
    events: int | None = None  # missing in backups of earlier versions
    active: str  # the version that serves it
    versions: list[str]  # all versions with vectors in it, the active one first
    files: dict[_FileName, File] = Field(default_factory=dict)  # by path inside the folder

    def counts(self) -> str:
        """Returns the numbers of documents, judgments and events as a phrase."""
        documents, judgments = amount(self.documents, "document"), amount(self.judgements, "judgment")
        if self.events is None:
            return f"{documents} and {judgments}"
        return f"{documents}, {judgments} and {amount(self.events, 'event')}"


def describe(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `backup`."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a new folder")
    parser.add_argument("--models", action="store_true", help="also copy the model versions that it needs")
    parser.add_argument("--data-dir", type=Path, help="of the service; default: SIMILE_DATA_DIR")


def run(arguments: argparse.Namespace, settings: Settings) -> str:
    """Creates the backup.

    Returns:
        The text to print.

    Raises:
        CommandError: The backup cannot be created. No folder remains.

    """
    data_dir = arguments.data_dir or settings.data_dir
    folder: Path = arguments.folder
    try:
        if folder.exists() or folder.is_symlink():
            raise CommandError(f"{folder} already exists. Name a new folder.")
        folder.parent.mkdir(parents=True, exist_ok=True)
        swept = _sweep(folder.parent)
        with _temporary(folder.parent) as temporary:
            contents = _copy_store(data_dir, temporary)
            if arguments.models:
                models = ModelStore(get_models_dir(settings, arguments.data_dir))
                _copy_models(models, contents.versions, temporary / MODELS)
            contents.files = list_files(temporary)
            written = contents.model_dump_json(indent=2, by_alias=True)
            (temporary / MANIFEST).write_text(f"{written}\n", encoding="utf-8")
            sync_tree(temporary)
            temporary.rename(folder)
        sync(folder.parent)
    except OSError as error:
        raise CommandError(unwritable(folder, error, "No part of the backup remains.")) from error
    needs = "" if arguments.models else f" It needs {contents.active} in the models folder."
    said = f"{contents.counts()} are in {folder}.{needs}"
    return f"{said}\n{swept} unfinished backups were removed from {folder.parent}." if swept else said


def read_manifest(folder: Path) -> Contents:
    """Reads and validates the manifest of a backup.

    Raises:
        CommandError: The folder is not a backup, a newer version of Simile wrote it, or the manifest is a
            link, is damaged or has unknown fields.

    """
    newest = {"format": FORMAT, "schema": SCHEMA_VERSION}
    if (folder / MANIFEST).is_symlink():
        raise CommandError(f"{folder}: {MANIFEST} is a link. Take another backup.")
    try:
        found = read_json(folder / MANIFEST)
        if isinstance(found, dict) and any(
            isinstance(number := found.get(key), int) and number > most for key, most in newest.items()
        ):
            raise CommandError(
                f"{folder} was written by Simile {found.get('simile')}, with a newer schema "
                f"({found.get('schema')}; this one knows {SCHEMA_VERSION}). Install that version."
            )
        contents = Contents.model_validate(found)
    except OSError as error:
        raise CommandError(
            f"{folder} is not a backup: {MANIFEST} cannot be read ({error.strerror})."
        ) from error
    except ValueError as error:
        reason = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            reason = f"{'.'.join(str(part)[:80] for part in first['loc'])}: {first['msg']}"
        raise CommandError(f"{folder}: {MANIFEST} is damaged ({reason}). Take another backup.") from error
    if DATABASE not in contents.files:
        raise CommandError(f"{folder}: {MANIFEST} does not list {DATABASE}. Take another backup.")
    return contents


def checksum(path: Path, progress: Progress) -> str:
    """Returns the SHA-256 of a file as hexadecimal digits, and reports the progress."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            progress.add(len(block))
    return digest.hexdigest()


def list_files(folder: Path) -> dict[str, File]:
    """Returns the size and the SHA-256 of each file in a folder, by relative path."""
    sizes = {path: path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    with Progress("bytes", sum(sizes.values()), "computing checksums") as progress:
        return {
            path.relative_to(folder).as_posix(): File(bytes=size, sha256=checksum(path, progress))
            for path, size in sizes.items()
        }


@contextlib.contextmanager
def _temporary(parent: Path) -> Iterator[Path]:
    """Creates and locks an empty folder. At the end of the block it is removed, unless it was renamed."""
    folder = parent / f"{_TEMPORARY}{secrets.token_hex(4)}"
    folder.mkdir()
    holder = lock(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if holder is not None:
            os.close(holder)


def _sweep(parent: Path) -> int:
    """Removes temporary folders of backups that were killed. Returns the number of removed folders.

    Such a folder is no longer locked. A folder without the database stays, because another backup may be
    about to lock it. A folder with unknown files stays, because no backup created it.
    """
    swept = 0
    for left in parent.glob(f"{_TEMPORARY}{'[0-9a-f]' * 8}"):
        with contextlib.suppress(OSError):  # Another backup removed it, or it belongs to another user.
            names = set() if left.is_symlink() else {path.name for path in left.iterdir()}
            if DATABASE not in names or not names <= _CONTENTS or (holder := lock(left)) is None:
                continue
            shutil.rmtree(left, ignore_errors=True)
            os.close(holder)
            swept += not left.exists()
    return swept


def _copy_store(data_dir: Path, folder: Path) -> Contents:
    facts, judgements, events = copy(data_dir, folder)
    if not facts.active:
        raise CommandError(f"{data_dir} has no active version: no service has started on it yet.")
    return Contents(
        simile=VERSION,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        sequence=facts.sequence,
        documents=facts.documents,
        judgements=judgements,
        events=events,
        active=facts.active[0],
        versions=facts.versions,
    )


def _copy_models(store: ModelStore, versions: list[str], to: Path) -> None:
    """Copies model versions into the backup. `versions` lists the active version first.

    Other versions are skipped if they are missing or damaged.

    Raises:
        CommandError: The active version is missing or damaged.

    """
    for at, version in enumerate(versions):
        try:
            store.verify(version)
            copy_tree(store.folder(version), to / version)
            ModelStore(to).verify(version)
        except ModelError as error:
            if at == 0:
                raise CommandError(f"The active version cannot be copied: {error}") from error

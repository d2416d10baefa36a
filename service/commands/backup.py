"""`python -m service backup FOLDER`: the whole store at one moment, while the service runs or not.

    FOLDER/
    ├── manifest.json     what it holds, the schema, the versions it needs, size and SHA-256 of every file
    ├── simile.db         documents, vectors, judgements, generations; nothing that was deleted
    └── models/VERSION/…  with --models

The folder is written aside and renamed: it is there whole or not at all. An index is never in it, since every
index is made from the vectors.
"""

import argparse
import contextlib
import hashlib
import json
import secrets
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version as package_version
from pathlib import Path, PurePosixPath
from typing import Any

from models.errors import ModelError
from models.fsync import sync
from models.store import Store
from service import derived
from service.commands.errors import CommandError
from service.commands.exporting import reading
from service.commands.progress import Progress
from service.documents import count_all, sequence
from service.generations import ACTIVE, DROPPED
from service.schema import DATABASE, SCHEMA_VERSION
from service.settings import Settings

MANIFEST, MODELS = "manifest.json", "models"
FORMAT = 1
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Contents:
    """manifest.json."""

    format: int
    simile: str  # the program's version
    created: str  # UTC
    schema: int
    sequence: int  # the store's operation number
    documents: int
    judgements: int
    active: str  # the version that serves it
    versions: list[str]  # all that have vectors in it, the active one first
    files: dict[str, dict[str, Any]]  # path to {"bytes", "sha256"}


def describe(parser: argparse.ArgumentParser) -> None:
    """What may stand behind `backup`."""
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
    if folder.exists():
        raise CommandError(f"{folder} is there already. Name a folder that is not.")
    aside = folder.with_name(f".{folder.name}-{secrets.token_hex(4)}")
    try:
        aside.mkdir(parents=True)
        contents = _copy_store(data_dir / DATABASE, aside)
        if arguments.models:
            _copy_models(Store(settings.models_dir), contents.versions, aside / MODELS)
        contents.files.update(_listed(aside))
        (aside / MANIFEST).write_text(json.dumps(asdict(contents), indent=2) + "\n", encoding="utf-8")
        for path in [*aside.rglob("*"), aside]:
            sync(path)
        aside.rename(folder)
        sync(folder.parent)
    except OSError as error:
        raise CommandError(f"{folder} cannot be written ({error.strerror or error}).") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    needs = "" if arguments.models else f" It needs {contents.active} in the models folder."
    return f"{contents.documents} documents and {contents.judgements} judgements are in {folder}.{needs}"


def _copy_store(path: Path, folder: Path) -> Contents:
    """`VACUUM INTO`: consistent whoever writes meanwhile, and without what was deleted."""
    with reading(path) as connection:
        connection.execute("COMMIT")  # VACUUM takes a moment of its own
        connection.execute("PRAGMA query_only = 0")
        connection.execute("VACUUM INTO ?", (str(folder / DATABASE),))
    with contextlib.closing(sqlite3.connect(folder / DATABASE, isolation_level=None)) as copy:
        derived.optimize(copy)
        copy.execute("VACUUM")
        if (found := copy.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
            raise CommandError(f"{path} is damaged ({found}). `check --data` says more; nothing was kept.")
        versions = copy.execute(
            "SELECT version, state FROM generations WHERE state <> ? ORDER BY state <> ?, number DESC",
            (DROPPED, ACTIVE),
        ).fetchall()
        if not versions or versions[0][1] != ACTIVE:
            raise CommandError(f"{path} has no version in service: no service has started on it yet.")
        return Contents(
            format=FORMAT,
            simile=package_version("simile"),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            schema=SCHEMA_VERSION,
            sequence=sequence(copy),
            documents=count_all(copy),
            judgements=int(copy.execute("SELECT count(*) FROM feedback").fetchone()[0]),
            active=versions[0][0],
            versions=list(dict.fromkeys(version for version, _ in versions)),
            files={},
        )


def _copy_models(store: Store, versions: list[str], to: Path) -> None:
    """Those that are still published; the active one must be."""
    for at, version in enumerate(versions):
        try:
            store.verify(version)
            shutil.copytree(store.folder(version), to / version)
            Store(to).verify(version)
        except ModelError as error:
            if at == 0:
                raise CommandError(f"The version in service cannot be copied: {error}") from error


def _listed(folder: Path) -> dict[str, dict[str, Any]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    progress = Progress("bytes", sum(path.stat().st_size for path in files))
    return {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": checksum(path, progress),
        }
        for path in files
    }


def checksum(path: Path, progress: Progress) -> str:
    """SHA-256, as hex."""
    found, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            found.update(block)
            done += len(block)
            progress.tell(done, done)
    progress.end()
    return found.hexdigest()


def read_contents(folder: Path) -> Contents:
    """The manifest of a backup that can be restored here.

    Raises:
        CommandError: it is no backup, or a newer version's.

    """
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if found["format"] > FORMAT or found["schema"] > SCHEMA_VERSION:
            raise CommandError(
                f"{folder} was written by Simile {found['simile']}, with a newer schema ({found['schema']}; "
                f"this one knows {SCHEMA_VERSION}). Install that version."
            )
        contents = Contents(**found)
    except OSError as error:
        raise CommandError(f"{folder} is no backup: {MANIFEST} cannot be read ({error.strerror}).") from error
    except (ValueError, TypeError, KeyError) as error:
        raise CommandError(f"{folder}: {MANIFEST} is damaged. Take another backup.") from error
    for name in contents.files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise CommandError(f"{folder}: {MANIFEST} names {name!r}, which leads out of it.")
    return contents


def damaged(folder: Path, contents: Contents) -> Iterator[str]:
    """What is wrong with the files of a backup."""
    progress = Progress("bytes", sum(file["bytes"] for file in contents.files.values()))
    for name, file in contents.files.items():
        path = folder / name
        if not path.is_file():
            yield f"{name} is missing"
        elif path.stat().st_size != file["bytes"]:
            yield f"{name} has {path.stat().st_size} bytes instead of {file['bytes']}"
        elif checksum(path, progress) != file["sha256"]:
            yield f"{name} was changed"

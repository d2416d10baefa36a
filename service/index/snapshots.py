"""Files that are worth keeping because they take long to make, and can always be made again.

    DATA_DIR/indexes/default/     of a collection
    ├── 2-000000041377/       generation 2, at operation 41,377; never changed after its rename
    │   ├── manifest.json     what it is of, the size and SHA-256 of each file, and its own
    │   └── lists.faiss  rows.npy  labels.npy
    └── .tmp-9f8e7d6c/        being written; swept at the next start

Nothing here is the truth. Whatever is wrong with a snapshot, an older one or none is used, and the log says
why: a derived file must never stop a start, and none is parsed whose checksum is not the one that this
program wrote (FAISS's reader is a parser in C++, and trusts its input).
"""

import hashlib
import json
import logging
import re
import secrets
import shutil
from collections.abc import Callable, Container, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from models.files.bounded import read_json
from models.files.fsync import sync
from models.seal import checksum

log = logging.getLogger(__name__)

T = TypeVar("T")

MANIFEST = "manifest.json"
FORMAT = 1
MANIFEST_BYTES = 1 << 20  # at most
KEPT = 2  # the newest, and one before it should the newest be damaged
_TEMPORARY = ".tmp-"
_NAME = re.compile(r"(\d+)-(\d{12,})")


class Damaged(Exception):
    """A snapshot cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What a snapshot is of. One of another origin is not read."""

    generation: int
    fingerprint: str
    dimension: int


class Snapshot(NamedTuple):
    """One that was found whole."""

    folder: Path
    sequence: int  # the store's operation number of its moment
    facts: Mapping[str, int]


class Snapshots:
    """Those in `root`, which is made when the first is written."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def write(
        self,
        origin: Origin,
        sequence: int,
        files: Mapping[str, Callable[[Path], None]],
        facts: Mapping[str, int] | None = None,
    ) -> None:
        """Write a snapshot of `files` (name to what writes it), then remove all but the newest.

        Raises:
            OSError: the disk is full or failing; the ones before are as they were.

        """
        self._root.mkdir(parents=True, exist_ok=True)
        making = self._root / f"{_TEMPORARY}{secrets.token_hex(4)}"
        making.mkdir()
        try:
            sealed = {}
            for name, write in files.items():
                write(making / name)
                sealed[name] = _sealed(making / name)
                sync(making / name)
            said = {
                "format": FORMAT,
                "sequence": sequence,
                "origin": asdict(origin),
                "files": sealed,
                "facts": dict(facts or {}),
            }
            (making / MANIFEST).write_text(json.dumps({**said, "sha256": _digest(said)}), encoding="utf-8")
            sync(making / MANIFEST)
            sync(making)
            whole = self._root / f"{origin.generation}-{sequence:012}"
            shutil.rmtree(whole, ignore_errors=True)
            making.rename(whole)
            sync(self._root)
        finally:
            shutil.rmtree(making, ignore_errors=True)
        there = self._of(origin.generation)
        now = there.index(whole)  # those of later moments are of a store that was replaced
        for other in (*there[:now], *there[now + KEPT :]):
            shutil.rmtree(other, ignore_errors=True)

    def newest(self, origin: Origin, read: Callable[[Snapshot], T]) -> T | None:
        """What `read` makes of the newest snapshot of `origin` that is whole, None when there is none.

        `read` raises Damaged for one that it cannot use.
        """
        for folder in self._of(origin.generation):
            try:
                return read(Snapshot(folder, *_checked(folder, origin)))
            except (Damaged, OSError) as error:
                log.warning("The index snapshot %s is not used: %s", folder.name, error)
            except Exception:  # whatever it is, the index can be made again
                log.exception("The index snapshot %s is not used", folder.name)
        return None

    def keep_only(self, generations: Container[int]) -> None:
        """Remove the snapshots of all other generations, and what writers that died have left.

        For the owner of the data directory, before anything is written.
        """
        for folder in self._root.iterdir() if self._root.is_dir() else []:
            named = _NAME.fullmatch(folder.name)
            if folder.name.startswith(_TEMPORARY) or (named and int(named[1]) not in generations):
                shutil.rmtree(folder, ignore_errors=True)

    def damage(self) -> list[str]:
        """What is wrong with any of them, one line each; reads every byte."""
        found = []
        for folder in sorted(self._root.iterdir()) if self._root.is_dir() else []:
            if _NAME.fullmatch(folder.name):
                try:
                    _checked(folder, None)
                except (Damaged, OSError) as error:
                    found.append(f"{folder.name}: {error}")
        return found

    def _of(self, generation: int) -> list[Path]:
        """The folders of a generation, the newest first."""
        found = []
        for folder in self._root.iterdir() if self._root.is_dir() else []:
            named = _NAME.fullmatch(folder.name)
            if named is not None and int(named[1]) == generation:
                found.append((int(named[2]), folder))
        return [folder for _, folder in sorted(found, reverse=True)]


def tidy(root: Path, collections: Container[str], generations: Container[int]) -> None:
    """As `keep_only`, for the snapshots of all collections; those of collections that are gone go too."""
    try:
        for folder in root.iterdir() if root.is_dir() else []:
            if folder.name in collections:
                Snapshots(folder).keep_only(generations)
            else:
                shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:  # what is left takes room, and stops nothing
        log.warning("%s could not be tidied: %s", root, error)


def damage(root: Path) -> list[str]:
    """What is wrong with the snapshots of any collection, one line each; reads every byte."""
    folders = sorted(folder for folder in root.iterdir() if folder.is_dir()) if root.is_dir() else []
    return [f"{folder.name}/{line}" for folder in folders for line in Snapshots(folder).damage()]


def _checked(folder: Path, origin: Origin | None) -> tuple[int, Mapping[str, int]]:
    """The sequence and the facts of the snapshot in `folder`, every byte of which is as it was written.

    Raises:
        Damaged: it is not, or it is of another origin than `origin`.

    """
    try:
        said = read_json(folder / MANIFEST, MANIFEST_BYTES)
        if said.pop("sha256") != _digest(said):
            raise Damaged("its manifest is not what was written")
        if said["format"] != FORMAT:
            raise Damaged(f"its format is {said['format']}, and this program writes {FORMAT}")
        if origin is not None and said["origin"] != asdict(origin):
            raise Damaged("it is of another model")
        for name, sealed in said["files"].items():
            if _sealed(folder / name) != sealed:
                raise Damaged(f"{name} is not what was written")
        return int(said["sequence"]), dict(said["facts"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"its manifest cannot be read ({type(error).__name__})") from error


def _digest(said: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _sealed(file: Path) -> dict[str, int | str]:
    return {"bytes": file.stat().st_size, "sha256": checksum(file)}

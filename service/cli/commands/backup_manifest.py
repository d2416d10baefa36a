"""manifest.json of a backup: what the folder holds, and whether the folder holds exactly that.

A backup may come from anywhere. Nothing is followed out of its folder, nothing that the manifest does not
list is taken, and names are used as paths only when they have the form that `backup` writes.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from models.files.bounded import read_bytes
from models.manifest import is_version
from models.words.progress import Progress
from service.errors import CommandError
from service.store.offline import DATABASE, SCHEMA_VERSION

MANIFEST, MODELS = "manifest.json", "models"
FORMAT = 1
BLOCK_BYTES = 1 << 20
_LONGEST_PATH = 500  # characters
_SHOWN = 5  # of what is wrong

Count = Annotated[int, Field(ge=0, lt=1 << 63, strict=True)]


class _Header(BaseModel):
    """The fields that tell which program can read the rest."""

    model_config = ConfigDict(extra="ignore")

    format: Count
    simile: Annotated[str, Field(max_length=100)]
    schema_: Annotated[Count, Field(alias="schema")]


class File(BaseModel):
    """A file of a backup."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bytes: Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Contents(BaseModel):
    """The whole manifest."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    format: Count = FORMAT
    simile: Annotated[str, Field(max_length=100)]  # the program's version
    created: Annotated[str, Field(max_length=100)]  # UTC
    schema_: Annotated[Count, Field(alias="schema")] = SCHEMA_VERSION
    sequence: Count  # the store's operation number
    documents: Count
    judgements: Count
    events: Count | None = None  # a backup of an earlier version does not say
    active: str  # the version that serves it
    versions: Annotated[list[str], Field(min_length=1)]  # all that have vectors in it, the active one first
    files: dict[str, File] = Field(default_factory=dict)  # by path inside the folder

    def counts(self) -> str:
        """The numbers of documents, judgements and events, in words."""
        if self.events is None:
            return f"{self.documents} documents and {self.judgements} judgements"
        return f"{self.documents} documents, {self.judgements} judgements and {self.events} events"

    def text(self) -> str:
        return self.model_dump_json(indent=2, by_alias=True) + "\n"


def read_contents(folder: Path) -> Contents:
    """The manifest of a backup that can be restored here.

    Raises:
        CommandError: the folder is no backup, a newer version wrote it, or its manifest is not as `backup`
            writes it.

    """
    file = folder / MANIFEST
    if file.is_symlink():
        raise CommandError(f"{folder}: {MANIFEST} is a link. Nothing was restored.")
    try:
        content = read_bytes(file)
        header = _Header.model_validate_json(content)
        if header.format > FORMAT or header.schema_ > SCHEMA_VERSION:
            raise CommandError(
                f"{folder} was written by Simile {header.simile}, with a newer schema ({header.schema_}; "
                f"this one knows {SCHEMA_VERSION}). Install that version."
            )
        contents = Contents.model_validate_json(content)
    except OSError as error:
        raise CommandError(f"{folder} is no backup: {MANIFEST} cannot be read ({error.strerror}).") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part)[:80] for part in first["loc"]) or "JSON"
        raise CommandError(
            f"{folder}: {MANIFEST} is damaged ({where}: {first['msg']}). Take another backup."
        ) from error
    except ValueError as error:
        raise CommandError(f"{folder}: {MANIFEST} is damaged ({error}). Take another backup.") from error
    if (problem := _wrong_names(contents)) is not None:
        raise CommandError(f"{folder}: {MANIFEST} {problem}. Nothing was restored.")
    return contents


def _wrong_names(contents: Contents) -> str | None:
    """A name that `backup` would not have written, in words."""
    for version in (contents.active, *contents.versions):
        if not is_version(version):
            return f"names {version[:100]!r}, which is no version's name"
    if contents.versions[0] != contents.active or len(set(contents.versions)) != len(contents.versions):
        return "does not list each version once, the active one first"
    for name in contents.files:
        path = PurePosixPath(name)
        odd = len(name) > _LONGEST_PATH or "\\" in name or not name.isprintable()
        if path.is_absolute() or ".." in path.parts:
            return f"names {name[:100]!r}, which leads out of the folder"
        if odd or str(path) != name or not (name == DATABASE or _is_of_a_model(path, contents)):
            return f"names {name[:100]!r}, which is no file of a backup"
    return None if DATABASE in contents.files else f"does not list {DATABASE}"


def _is_of_a_model(path: PurePosixPath, contents: Contents) -> bool:
    return len(path.parts) > 2 and path.parts[0] == MODELS and path.parts[1] in contents.versions


def listed(folder: Path) -> dict[str, File]:
    """Each file of a folder, for a manifest."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    progress = Progress("bytes", sum(path.stat().st_size for path in files))
    return {
        path.relative_to(folder).as_posix(): File(bytes=path.stat().st_size, sha256=checksum(path, progress))
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


def require_exact(folder: Path, contents: Contents, named: Path) -> None:
    """Raise CommandError unless the folder holds what the manifest lists, byte for byte, and nothing else.

    named: the folder to speak of.
    """
    problems = [*_unlisted(folder, contents), *_damaged(folder, contents)]
    if problems:
        more = f" and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise CommandError(f"{named} is damaged: {'; '.join(problems[:_SHOWN])}{more}. Nothing was restored.")


def _unlisted(folder: Path, contents: Contents) -> Iterator[str]:
    """Links, devices and files that the manifest does not list; no link is followed."""
    for at, folders, files in os.walk(folder, onerror=_stop):
        for name in (*folders, *files):
            path = Path(at, name)
            inside = path.relative_to(folder).as_posix()
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                yield f"{inside} is a link"
            elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                yield f"{inside} is a device or a pipe"
            elif stat.S_ISREG(mode) and inside not in contents.files and inside != MANIFEST:
                yield f"{inside} is not listed in {MANIFEST}"


def _stop(error: OSError) -> None:
    raise CommandError(f"{error.filename} cannot be read ({error.strerror}). Nothing was restored.")


def _damaged(folder: Path, contents: Contents) -> Iterator[str]:
    progress = Progress("bytes", sum(file.bytes for file in contents.files.values()))
    for name, file in contents.files.items():
        path = folder / name
        try:
            found = path.lstat()
        except OSError:
            yield f"{name} is missing"
            continue
        if not stat.S_ISREG(found.st_mode):
            continue  # said already
        if found.st_size != file.bytes:
            yield f"{name} has {found.st_size} bytes instead of {file.bytes}"
        elif checksum(path, progress) != file.sha256:
            yield f"{name} was changed"


def copy_listed(folder: Path, contents: Contents, to: Path) -> None:
    """Copy the files that the manifest lists, and no other. Raise OSError; a link is refused by ELOOP."""
    for name in contents.files:
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        source = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(source, "rb") as file, target.open("xb") as copy:
            while block := file.read(BLOCK_BYTES):
                copy.write(block)

"""Seals the folder of a version, and checks that it is unchanged. Start at `seal` and `check`.

A folder is rejected for a missing, extra or changed file, a pickle, a link, a path outside, and a manifest
that is damaged or contradicts the ONNX file. proof.py checks the vectors.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from models.errors import Damaged, ModelError, Unreadable
from models.files.bounded import parse_json
from models.files.fsync import sync_tree
from models.graph.file import FINGERPRINT, SPACE, read_metadata
from models.manifest import FILE_NAME, QUERIES, Manifest

ONNX = "onnx/model.onnx"
PICKLES = frozenset(
    {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".npy", ".npz", ".h5", ".msgpack"}
)


def seal(folder: Path, manifest: Manifest) -> Manifest:
    """Writes the manifest with the checksums of all files, and flushes the folder to the disk."""
    files = {}
    for file in sorted(_walk(folder)):
        if file.suffix in PICKLES:
            raise ModelError(f"{file.name} may hold a pickle and cannot be part of a version.")
        files[file.relative_to(folder).as_posix()] = checksum(file)
    sealed = manifest.model_copy(update={"files": files})
    (folder / FILE_NAME).write_text(sealed.text(), encoding="utf-8")
    sync_tree(folder)
    return sealed


def check(folder: Path) -> Manifest:
    """Checks every file of a folder, and returns its manifest.

    Raises:
        Damaged: The folder must not be served.
        Unreadable: The folder cannot be read now.
    """
    manifest = read_manifest(folder)
    _check_paths(folder, manifest)
    for path, expected in manifest.files.items():
        try:
            found = checksum(folder / path)
        except OSError as error:
            raise _trouble(folder, path, error) from None
        if found != expected:
            raise Damaged(folder.name, f"{path} was changed after it was published")
    _check_space(folder, manifest)
    if manifest.query_encoder is not None:
        _check_space(folder, _queries_of(folder, manifest), f"{QUERIES}/")
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Reads the manifest of a folder, with the errors of `check`."""
    if folder.is_symlink():
        raise Damaged(folder.name, "its folder is a link")
    manifest = _read(folder)
    if manifest.version != folder.name:
        raise Damaged(folder.name, f"its manifest belongs to {manifest.version}")
    return manifest


def _read(folder: Path, within: str = "") -> Manifest:
    """Reads the manifest in `folder`, or in its subfolder `within`, which ends with a slash."""
    name = within + FILE_NAME
    try:
        return Manifest.read(folder / within)
    except OSError as error:
        raise _trouble(folder, name, error) from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise Damaged(folder.name, f"{name} is malformed ({field}: {first['msg']})") from None
    except ValueError as error:
        raise Damaged(folder.name, f"{name} is malformed ({error})") from None


def _queries_of(folder: Path, manifest: Manifest) -> Manifest:
    """Reads the manifest of a pair's query encoder. Rejects one that does not fit the pair."""
    queries = _read(folder, f"{QUERIES}/")
    if manifest.query_encoder is None or queries.fingerprint != manifest.query_encoder.fingerprint:
        raise Damaged(folder.name, f"{QUERIES}/ holds another query encoder than its manifest names")
    for field in ("dimension", "search_prompt"):
        claimed, own = getattr(manifest, field), getattr(queries, field)
        if claimed != own:
            raise Damaged(folder.name, f"its manifest says {field}={claimed!r} and its query encoder {own!r}")
    return queries


def _trouble(folder: Path, path: str, error: OSError) -> Exception:
    """Converts an OSError. A missing file is damage, unless its folder is missing. Other errors may pass."""
    if error.errno in {errno.EMFILE, errno.ENFILE}:  # The process has no file descriptors left.
        return error
    reason = f"{path} cannot be read ({error.strerror or error})"
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        return Unreadable(folder.name, reason)
    try:
        folder.stat()
    except OSError:
        return Unreadable(folder.name, reason)
    return Damaged(folder.name, reason)


def _check_paths(folder: Path, manifest: Manifest) -> None:
    for path in manifest.files:
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts or "\\" in path or str(pure) != path:
            raise Damaged(folder.name, f"its manifest has a path that leads out of the folder: {path!r}")
    try:
        present = {file.relative_to(folder).as_posix() for file in _walk(folder)} - {FILE_NAME}
    except ModelError as error:
        raise Damaged(folder.name, str(error)) from None
    except OSError as error:
        raise _trouble(folder, "a folder of it", error) from None
    for path in sorted(present):
        if Path(path).suffix in PICKLES:
            raise Damaged(folder.name, f"{path} may hold a pickle")
    for path in sorted(present ^ manifest.files.keys()):
        reason = "is not listed in the manifest" if path in present else "is missing"
        raise Damaged(folder.name, f"{path} {reason}")
    if ONNX not in present:
        raise Damaged(folder.name, f"{ONNX} is missing")


def _check_space(folder: Path, manifest: Manifest, within: str = "") -> None:
    """Compares the manifest with the space and the fingerprint in the ONNX file. `within`: see `_read`."""
    name = within + ONNX
    try:
        metadata = read_metadata(folder / name)
        space = parse_json(metadata.get(SPACE, "{}"))
    except ValueError as error:
        raise Damaged(folder.name, f"{name} is not an ONNX file ({error})") from None
    except OSError as error:
        raise _trouble(folder, name, error) from None
    computed = hashlib.sha256(metadata.get(SPACE, "").encode()).hexdigest()
    claims = {manifest.fingerprint, metadata.get(FINGERPRINT), computed}
    if len(claims) != 1 or not manifest.version.endswith(manifest.fingerprint[:8]):
        raise Damaged(folder.name, f"its manifest claims another fingerprint than {name}")
    for field in ("pooling", "search_prompt", "document_prompt", "max_length", "dimension"):
        claimed, stored = getattr(manifest, field), space.get(field)
        if claimed != stored:
            raise Damaged(folder.name, f"its manifest says {field}={claimed!r} and {name} {stored!r}")


def _walk(folder: Path) -> Iterator[Path]:
    """Yields every regular file. Rejects links and devices."""

    def fail(error: OSError) -> None:
        raise error

    for at, folders, files in os.walk(folder, onerror=fail):
        for name in (*folders, *files):
            path = Path(at, name)
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise ModelError(f"{path.relative_to(folder).as_posix()} is a link or a device")
        yield from (Path(at, name) for name in files)


def checksum(file: Path) -> str:
    """Returns the SHA-256 in hex."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()

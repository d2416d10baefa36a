"""Stores published versions, one folder each. Start at `ModelStore.publish`.

A version appears atomically, when its folder is renamed.

    MODELS_DIR/
    ├── 20260102T030405-all-minilm-l6-v2-1a2b3c4d/   one version; never changed after its rename
    │   ├── manifest.json                            identity, lineage, SHA-256 of every other file
    │   ├── onnx/model.onnx                          the graph that is served; contains the fingerprint
    │   ├── golden.json                              texts and their published vectors or scores
    │   ├── queries/                                 the student of a pair (pair.py)
    │   ├── ranking/                                 learned rankings of collections (search/ranking.py)
    │   └── config.json  tokenizer.json  model.safetensors  modules.json  1_Pooling/ …
    ├── .tmp-9f8e7d6c/                               a version being built; locked by its builder
    ├── wanted                                       the requested version; commands and service write it
    ├── asked.json                                   the kind and id of that request
    ├── reranker.json                                the requested reranker and the one before it
    ├── state.json                                   the service's copy of its state, for other programs
    ├── id                                           a random id of this folder, new at every service start
    └── .lock                                        locked during changes

The service's database decides which version is active, and state.json repeats it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack, get_args

from models.encoder import Encoder
from models.errors import Damaged, DamagedRequest, InUse, ModelError, UnknownVersion, Unreadable
from models.files.bounded import read_bytes, read_json
from models.files.folders import lock
from models.files.fsync import replace_text, sync
from models.manifest import (
    ANCHOR,
    TEACHER,
    Manifest,
    check,
    is_version,
    read_manifest,
    require_kind,
    seal,
    version_name,
)
from models.open_version import How
from models.reranker import Reranker
from models.search.ranking import FOLDER

Build = Callable[[Path], Manifest]
Kind = Literal["want", "activate", "rollback"]
REQUESTED = "requested"  # Key in state.json: the id of the last request that a service has seen.
_TEMPORARY = ".tmp-"
_ID = re.compile(r"[0-9a-f]{32}")
_KEPT_STATES = {"building", "ready"}


def models_dir(environ: Mapping[str, str]) -> Path:
    """Returns the models folder: SIMILE_MODELS_DIR, or else `models` in SIMILE_DATA_DIR."""
    return Path(environ.get("SIMILE_MODELS_DIR") or Path(environ.get("SIMILE_DATA_DIR") or "data") / "models")


def activate_command(root: Path, version: str) -> str:
    """Returns the command that activates a version. It names the folder if it is not the default one."""
    place = "" if root == models_dir(os.environ) else f" --models-dir {shlex.quote(str(root))}"
    return f"simile models activate {version}{place}"


class RequestedVersion(NamedTuple):
    """A request to activate a version.

    The service may reject a request of the kind `want`, for example if the version failed before. Requests of
    the kinds `activate` and `rollback` are decisions of a person, or of a live test that accepts a version.
    The `id` is empty if the file `wanted` was written without asked.json.
    """

    version: str
    kind: Kind
    id: str


class RequestedReranker(NamedTuple):
    """The requested reranker, and the reranker that was active before it. None: no reranker.

    Each request has a new `id`, so that the service notices a repeated request. `served` is true if a service
    has made the version active since the request.
    """

    version: str | None = None
    previous: str | None = None
    id: str = ""
    served: bool = False


class ModelStore:
    """The versions in a models folder.

    Several processes can share the folder. Readers need no write access.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def publish(self, build: Build) -> Manifest:
        """Publishes the files that `build` writes to an empty folder.

        Args:
            build: Writes the files, and returns the manifest without `files`. If it raises, nothing is
                published.

        Returns:
            The manifest of the new version. If an equal version exists, and the new version does not add a
            graph or calibration, the manifest of the existing version.
        """
        with self.temporary() as folder:
            manifest = seal(folder, build(folder))
            with self._locked():
                existing = self.find(manifest)
                if existing and not _adds(manifest, existing):
                    return existing
                folder.rename(self.root / manifest.version)
                sync(self.root)
        return manifest

    def require_writable(self) -> None:
        """Raises OSError if nothing can be published. Call this before hours of training."""
        with self._locked():
            pass

    def find(self, like: Manifest) -> Manifest | None:
        """Returns the newest intact version that equals `like`, or None. Raises Unreadable.

        Equal versions have the same vectors or scores, precision, prompts, labels, student, search settings
        and rankings.
        """
        for known in reversed(self.versions()):
            if _identity(known) == _identity(like):
                with contextlib.suppress(Damaged):
                    return self.verify(known.version)
        return None

    def new_time(self, origin: str, fingerprint: str) -> datetime:
        """Returns the time for the name of a new version: now, or the next second without such a version."""
        time = datetime.now(UTC)
        while (self.root / version_name(time, origin, fingerprint)).exists():
            time += timedelta(seconds=1)
        return time

    def versions(self) -> list[Manifest]:
        """Returns every version with a readable manifest, oldest first."""
        return [entry for _, entry in self._entries() if isinstance(entry, Manifest)]

    def names(self) -> set[str]:
        """Returns the names of folders that may be versions. Does not read their content."""
        with contextlib.suppress(FileNotFoundError):
            return {path.name for path in self.root.iterdir() if is_version(path.name)}
        return set()

    def problems(self) -> dict[str, str]:
        """Returns the reasons why folders, or the files `wanted` and reranker.json, are invalid, by name.

        This reads only the manifests; `verify` checks all files.
        """
        found = {name: entry.reason for name, entry in self._entries() if not isinstance(entry, Manifest)}
        pointer = self._pointer()
        if pointer and pointer != self.requested():
            found["wanted"] = f"it names {pointer[:100]!r}, which is not a published version"
        try:
            self.requested_reranker()
        except DamagedRequest as error:
            found["reranker.json"] = str(error)
        return found

    def folder(self, version: str) -> Path:
        """Returns the folder of a version. Raises UnknownVersion."""
        if not is_version(version) or not (self.root / version).is_dir():
            raise UnknownVersion(version)
        return self.root / version

    def verify(self, version: str) -> Manifest:
        """Checks every file of a version. Raises Damaged, Unreadable or UnknownVersion."""
        return check(self.folder(version))

    def open(self, version: str, threads: int = 1, **how: Unpack[How]) -> Encoder:
        """Verifies and opens an encoder. Raises WrongKind, and the errors of `verify` and `Encoder`."""
        manifest = require_kind(self.verify(version), "encoder")
        return Encoder(self.folder(version), manifest, threads=threads, **how)

    def open_reranker(self, version: str, threads: int = 1, **how: Unpack[How]) -> Reranker:
        """Verifies and opens a reranker. Raises WrongKind, and the errors of `verify` and `Reranker`."""
        manifest = require_kind(self.verify(version), "reranker")
        return Reranker(self.folder(version), manifest, threads=threads, **how)

    def requested(self) -> str | None:
        """Returns the requested version, or None if `wanted` does not name a published version."""
        pointer = self._pointer()
        known = pointer and is_version(pointer) and (self.root / pointer).is_dir()
        return pointer if known else None

    def request(self, version: str, kind: Kind = "want") -> None:
        """Requests a version. Raises the errors of `new_request`."""
        self.write_request(self.new_request(version, kind))

    def new_request(self, version: str, kind: Kind) -> RequestedVersion:
        """Creates a request without writing it.

        Raises:
            UnknownVersion: The version does not exist.
            WrongKind: The version is a reranker.
            Damaged: The manifest of the version is damaged.
            Unreadable: The manifest cannot be read now.
            OSError: The models folder cannot be written.
        """
        require_kind(read_manifest(self.folder(version)), "encoder")
        self.require_writable()
        return RequestedVersion(version, kind, secrets.token_hex(8))

    def write_request(self, requested: RequestedVersion) -> None:
        with self._locked():  # Both files belong to one request.
            replace_text(self.root / "asked.json", json.dumps(requested._asdict()) + "\n")
            replace_text(self.root / "wanted", requested.version + "\n")

    def read_request(self) -> RequestedVersion | None:
        """Returns the current request, or None if no published version is requested.

        Without an asked.json for the same version, the request has the kind `want` and no id.
        """
        version = self.requested()
        if version is None:
            return None
        with contextlib.suppress(FileNotFoundError, ValueError, TypeError):
            requested = RequestedVersion(**read_json(self.root / "asked.json"))
            if (
                requested.version == version
                and requested.kind in get_args(Kind)
                and isinstance(requested.id, str)
            ):
                return requested
        return RequestedVersion(version, "want", "")

    def request_reranker(self, version: str | None, *, first: bool = False) -> RequestedReranker:
        """Requests a reranker, or that no reranker is active.

        The previous reranker of the request is the last reranker that was active.

        Args:
            version: The version, or None.
            first: If true, an earlier request stays in effect.

        Returns:
            The request in effect.

        Raises:
            UnknownVersion: The version does not exist.
            WrongKind: The version is an encoder.
            Damaged: The manifest of the version is damaged.
            Unreadable: The manifest cannot be read now.
            OSError: The models folder cannot be written.
        """
        if version is not None:
            require_kind(read_manifest(self.folder(version)), "reranker")
        with self._locked():
            before = RequestedReranker()
            if first and (self.root / "reranker.json").exists():
                return self.requested_reranker()
            with contextlib.suppress(DamagedRequest):  # The new request replaces it.
                before = self.requested_reranker()
            previous = before.version if before.served else before.previous
            requested = RequestedReranker(version, None if previous == version else previous)
            if version == before.version:
                requested = before
            requested = requested._replace(id=secrets.token_hex(8))
            self._write_reranker(requested)
        return requested

    def note_served(self, version: str) -> None:
        """Records that the requested reranker is active. Only the service may call this."""
        with self._locked():
            requested = self.requested_reranker()
            if requested.version == version and not requested.served:
                self._write_reranker(requested._replace(served=True))

    def _write_reranker(self, requested: RequestedReranker) -> None:
        replace_text(self.root / "reranker.json", json.dumps(requested._asdict()) + "\n")

    def requested_reranker(self) -> RequestedReranker:
        """Returns the request for a reranker. The versions in it may be deleted.

        Raises:
            DamagedRequest: reranker.json is damaged.
            OSError: reranker.json cannot be read now.
        """
        file = self.root / "reranker.json"
        try:
            written = read_json(file)
            # Later releases may write more fields. The first releases wrote only these two.
            found = RequestedReranker(
                written["version"],
                written["previous"],
                str(written.get("id", "")),
                bool(written.get("served", written["version"])),
            )
        except FileNotFoundError:
            return RequestedReranker()
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedRequest(file) from error
        if not all(name is None or (isinstance(name, str) and is_version(name)) for name in found[:2]):
            raise DamagedRequest(file)
        return found

    def is_locked(self) -> bool:
        """Returns True if another process holds the lock.

        A process holds it while it writes a request, publishes a version or deletes one.
        """
        try:
            with (self.root / ".lock").open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # The file does not exist, or this user may not read it.
            return False
        return False

    def requested_at(self) -> float:
        """Returns the modification time of the file `wanted` as Unix time, or 0 if the file is missing."""
        try:
            return (self.root / "wanted").stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def prune(self, version: str) -> None:
        """Deletes a version.

        Raises:
            UnknownVersion: The version does not exist.
            InUse: The version is still needed.
            ModelError: The active version is unknown, because state.json cannot be read.
        """
        with self._locked():  # Otherwise the version could be requested before the rename.
            state = self.read_state()
            if not state and (self.root / "state.json").exists():
                raise ModelError(
                    f"{self.root / 'state.json'} cannot be read, so the active version is unknown. "
                    "Nothing was deleted."
                )
            building = state.get("versions", {}).get(version, {}).get("state") in _KEPT_STATES
            reranker = self.requested_reranker()
            uses = {
                "the requested reranker": version == reranker.version,
                "the active reranker": version == state.get("reranker"),
                "the previous reranker": version == reranker.previous,
                "the requested version": version == self._pointer(),
                "the active version": version == state.get("live"),
                "the previous version": version == state.get("previous"),
                "the anchor of retrainings, or a teacher": version in self._anchors(state),
                "being built": building,
            }
            for use, holds in uses.items():
                if holds:
                    raise InUse(version, use)
            removed = self.folder(version).rename(self.root / f"{_TEMPORARY}{secrets.token_hex(4)}")
        shutil.rmtree(removed)  # After a crash, `sweep` removes the rest.
        self.sweep()

    def read_state(self) -> dict[str, Any]:
        """Returns the state that the service wrote last. Returns {} for a missing or damaged file."""
        try:
            state = read_json(self.root / "state.json")
        except (FileNotFoundError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

    def write_state(self, state: dict[str, Any], *, make: bool = True) -> None:
        """Writes the state. Only the service may call this.

        Args:
            make: If true, creates a missing models folder. Pass False if the folder may be only temporarily
                unavailable.
        """
        if make:
            self.root.mkdir(parents=True, exist_ok=True)
        replace_text(self.root / "state.json", json.dumps(state, indent=2, sort_keys=True) + "\n")

    def id(self) -> str | None:
        """Returns the id of the folder.

        Returns None if no service has used the folder yet, or the id cannot be read.
        """
        try:
            found = read_bytes(self.root / "id", 100).decode("ascii", "replace").strip()
        except (OSError, ValueError):
            return None
        return found if _ID.fullmatch(found) else None

    def renew_id(self) -> None:
        """Gives the folder a new random id. Only the service may call this.

        A copy of the folder or a restored backup has the same id as the source until this is called.
        """
        replace_text(self.root / "id", secrets.token_hex(16) + "\n")

    def _anchors(self, state: Mapping[str, Any]) -> set[Any]:
        """Returns the anchors and teachers of the requested, active and previous versions.

        An anchor is the imported version before the first retraining. A teacher is the version whose vectors
        a student learned.
        """
        used = {self._pointer(), state.get("live"), state.get("previous")}
        versions = self.versions()
        lineages = [known.lineage for known in versions if known.version in used]
        taught = {lineage.get(TEACHER) for lineage in lineages}
        teachers = {known.fingerprint: known.version for known in versions if known.fingerprint in taught}
        return {lineage.get(ANCHOR) for lineage in lineages} | {*teachers.values()}

    def _pointer(self) -> str:
        try:
            return read_bytes(self.root / "wanted").decode(errors="replace").strip()
        except (FileNotFoundError, ValueError):
            return ""

    def _entries(self) -> Iterator[tuple[str, Manifest | Damaged | Unreadable]]:
        names = sorted(path.name for path in self.root.iterdir()) if self.root.is_dir() else []
        for name in names:
            if name.startswith(".") or not (self.root / name).is_dir():
                continue
            try:
                if not is_version(name):
                    raise Damaged(name, "its name is not a version's name")  # noqa: TRY301  one handler
                yield name, read_manifest(self.root / name)
            except (Damaged, Unreadable) as trouble:
                yield name, trouble

    @contextlib.contextmanager
    def temporary(self) -> Iterator[Path]:
        """Creates a locked, empty folder for a build, and removes it at the end of the `with` block.

        The folder is on the same file system as the versions, so a rename can publish it.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        folder = self.root / f"{_TEMPORARY}{secrets.token_hex(4)}"
        with self._locked():
            self._sweep()
            folder.mkdir()
            builder = lock(folder)
        if builder is None:
            raise ModelError(f"{folder} is locked by another process.")
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # After publishing, it has another name.
            os.close(builder)

    def sweep(self) -> None:
        """Removes unfinished folders whose builder has ended."""
        with self._locked():
            self._sweep()

    def _sweep(self) -> None:
        """Removes unfinished folders that no process has locked. The caller must hold the store's lock."""
        for left in self.root.glob(f"{_TEMPORARY}*"):
            with contextlib.suppress(OSError):  # The folder may be vanishing, or belong to another user.
                holder = lock(left)
                if holder is not None:
                    shutil.rmtree(left, ignore_errors=True)
                    os.close(holder)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.root / ".lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _adds(new: Manifest, existing: Manifest) -> bool:
    calibrated = new.calibration.int8 is not None and existing.calibration.int8 is None
    quantized = new.quantised is not None and existing.quantised is None
    return calibrated or quantized or (new.packed and not existing.packed)


def _identity(manifest: Manifest) -> tuple[object, ...]:
    prompts = manifest.prompts, manifest.default_prompt
    labels = tuple(manifest.labels)
    student = manifest.query_encoder and manifest.query_encoder.fingerprint
    rankings = {path: digest for path, digest in manifest.files.items() if path.startswith(f"{FOLDER}/")}
    return manifest.fingerprint, manifest.precision, prompts, labels, manifest.search, student, rankings

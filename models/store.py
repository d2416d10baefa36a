"""Store: published versions, as folders that appear whole or not at all.

    MODELS_DIR/
    ├── 20260102T030405-all-minilm-l6-v2-1a2b3c4d/   one version; never changed after its rename
    │   ├── manifest.json                            identity, lineage, SHA-256 of every file below
    │   ├── onnx/model.onnx                          what is served; carries the fingerprint too
    │   ├── golden.json                              texts and the vectors they had when published
    │   ├── queries/                                 of a pair: the student that encodes queries (pair.py)
    │   └── config.json  tokenizer.json  model.safetensors  modules.json  1_Pooling/ …
    ├── .tmp-9f8e7d6c/                               being built; locked by its builder, swept once it died
    ├── wanted                                       the version to serve next: anyone may write it
    ├── asked.json                                   how it was asked for: a mere wish, or insisted on
    ├── state.json                                   what is live and previous: written by the service only
    ├── id                                       of this folder; every start of a service renews it
    └── .lock                                        held for the moment of a rename

Not here: which version is live (the service's database knows), what one computes (encoder.py, proof.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack, get_args

from models.encoder import Encoder, How
from models.errors import Damaged, InUse, ModelError, UnknownVersion, Unreadable
from models.files.bounded import read_bytes, read_json
from models.files.fsync import replace_text, sync
from models.files.lock import lock
from models.manifest import ANCHOR, TEACHER, Manifest, is_version
from models.seal import check, read_manifest, seal

Build = Callable[[Path], Manifest]
Kind = Literal["want", "activate", "rollback"]
REQUESTED = "requested"  # in state.json: the id of the last request in this folder that a service has seen
_TEMPORARY = ".tmp-"
_ID = re.compile(r"[0-9a-f]{32}")
_KEPT_STATES = {"building", "ready"}


def models_dir(environ: Mapping[str, str]) -> Path:
    """The models folder that the environment names, for every command."""
    return Path(environ.get("SIMILE_MODELS_DIR") or Path(environ.get("SIMILE_DATA_DIR") or "data") / "models")


class DesiredVersion(NamedTuple):
    """The requested version, and how it was requested.

    The service may refuse a `want` (the version failed before, or was rolled back from); `activate` and
    `rollback` are express decisions. `id` identifies the request, so that each one counts once; it is empty
    where `wanted` was written without asked.json.
    """

    version: str
    kind: Kind
    id: str


class Store:
    """Several processes may share one folder. A reader needs no write access."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def publish(self, build: Build) -> Manifest:
        """Publish what `build` puts into the empty folder it is given; it answers the manifest without files.

        Whatever `build` raises is passed on, and nothing is published. When the same space in the same form
        is already there with the same prompts and search, that version is the answer and the new folder is
        dropped; but not where the new one has a calibration or a faster graph that it was published without.
        """
        with self.temporary() as folder:
            manifest = seal(folder, build(folder))
            with self._locked():
                existing = self.find(manifest)
                if existing and not _adds(manifest, existing):
                    return existing
                folder.rename(self._path(manifest.version))
                sync(self.root)
        return manifest

    def require_writable(self) -> None:
        """Raise OSError when nothing can be published here; better now than after hours of training."""
        with self._locked():
            pass

    def find(self, like: Manifest) -> Manifest | None:
        """The newest whole version that `like` would only repeat."""
        for known in reversed(self.versions()):
            if _identity(known) == _identity(like):
                with contextlib.suppress(Damaged):
                    return self.verify(known.version)
        return None

    def versions(self) -> list[Manifest]:
        """Every version with a readable manifest, oldest first; `problems` names the others."""
        return [entry for _, entry in self._entries() if isinstance(entry, Manifest)]

    def names(self) -> set[str]:
        """The names of the folders that may be versions; nothing in them is read."""
        with contextlib.suppress(FileNotFoundError):
            return {path.name for path in self.root.iterdir() if is_version(path.name)}
        return set()

    def problems(self) -> dict[str, str]:
        """Folder names that are no readable version, and the reason. Checksums are `verify`'s work."""
        found = {name: entry.reason for name, entry in self._entries() if not isinstance(entry, Manifest)}
        pointer = self._pointer()
        if pointer and pointer != self.wanted():
            found["wanted"] = f"it names {pointer[:100]!r}, which is no published version"
        return found

    def folder(self, version: str) -> Path:
        """Raise UnknownVersion."""
        if not is_version(version) or not self._path(version).is_dir():
            raise UnknownVersion(version)
        return self._path(version)

    def verify(self, version: str) -> Manifest:
        """Read and check every byte. Raise Damaged or Unreadable with the reason, or UnknownVersion."""
        return check(self.folder(version))

    def open(self, version: str, threads: int = 1, **how: Unpack[How]) -> Encoder:
        """Verify, then open as `Encoder` says, which raises too. Raise as `verify`."""
        manifest = self.verify(version)
        return Encoder(self.folder(version), manifest, threads=threads, **how)

    def wanted(self) -> str | None:
        """The version to serve next; None when there is no pointer or it names no published version."""
        pointer = self._pointer()
        known = pointer and is_version(pointer) and self._path(pointer).is_dir()
        return pointer if known else None

    def want(self, version: str, kind: Kind = "want") -> None:
        """Raise UnknownVersion, or Damaged when its manifest cannot be read."""
        self.write_request(self.new_request(version, kind))

    def new_request(self, version: str, kind: Kind) -> DesiredVersion:
        """A request for `write_request`. Raise as `want`, or OSError where nothing can be written."""
        read_manifest(self.folder(version))
        self.require_writable()
        return DesiredVersion(version, kind, secrets.token_hex(8))

    def write_request(self, asked: DesiredVersion) -> None:
        with self._locked():  # the two files are one decision
            replace_text(self.root / "asked.json", json.dumps(asked._asdict()) + "\n")
            replace_text(self.root / "wanted", asked.version + "\n")

    def desired(self) -> DesiredVersion | None:
        """The version that `wanted` names, and how it was asked for; the file alone is a mere wish."""
        version = self.wanted()
        if version is None:
            return None
        with contextlib.suppress(FileNotFoundError, ValueError, TypeError):
            asked = DesiredVersion(**read_json(self.root / "asked.json"))
            if asked.version == version and asked.kind in get_args(Kind) and isinstance(asked.id, str):
                return asked
        return DesiredVersion(version, "want", "")

    def is_locked(self) -> bool:
        """Whether a process writes a request, publishes or removes something at this moment."""
        try:
            with (self.root / ".lock").open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # nothing was ever written, or this user may not know
            return False
        return False

    def asked_at(self) -> float:
        """The Unix time of the file `wanted`, by the clock of its writer; 0 where there is none."""
        try:
            return (self.root / "wanted").stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def prune(self, version: str) -> None:
        """Delete a version. Raise UnknownVersion, or InUse when something still needs it."""
        with self._locked():  # or it could be wanted between the look and the rename
            state = self.read_state()
            if not state and (self.root / "state.json").exists():
                raise ModelError(f"{self.root / 'state.json'} cannot be read, so what is live is not known.")
            building = state.get("versions", {}).get(version, {}).get("state") in _KEPT_STATES
            uses = {
                "wanted": version == self._pointer(),
                "live": version == state.get("live"),
                "what a rollback goes to": version == state.get("previous"),
                "the anchor that retrainings begin with": version in self._anchors(state),
                "being built": building,
            }
            for use, holds in uses.items():
                if holds:
                    raise InUse(version, use)
            removed = self.folder(version).rename(self.root / f"{_TEMPORARY}{secrets.token_hex(4)}")
        shutil.rmtree(removed)  # what a crash leaves of it is swept later
        self.sweep()

    def read_state(self) -> dict[str, Any]:
        """The state that the service last wrote; empty before that, or when it cannot be understood."""
        try:
            state = read_json(self.root / "state.json")
        except (FileNotFoundError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

    def write_state(self, state: dict[str, Any], *, make: bool = True) -> None:
        """For the service alone. Raise OSError.

        make: the models folder, where there is none; else it may only be away for a moment.
        """
        if make:
            self.root.mkdir(parents=True, exist_ok=True)
        replace_text(self.root / "state.json", json.dumps(state, indent=2, sort_keys=True) + "\n")

    def id(self) -> str | None:
        """The id of the folder. Returns None before a service used it, or if the file cannot be read."""
        try:
            found = read_bytes(self.root / "id", 100).decode("ascii", "replace").strip()
        except (OSError, ValueError):
            return None
        return found if _ID.fullmatch(found) else None

    def renew_id(self) -> None:
        """Give the folder a new random id, for the service alone.

        A copy of the folder, or a restored backup, has the id of its source until a service starts on it.

        Raises:
            OSError: The folder cannot be written.

        """
        replace_text(self.root / "id", secrets.token_hex(16) + "\n")

    def _anchors(self, state: Mapping[str, Any]) -> set[Any]:
        """The anchors of the versions that are wanted, live or gone back to, and the teachers of students."""
        used = {self._pointer(), state.get("live"), state.get("previous")}
        versions = self.versions()
        lineages = [known.lineage for known in versions if known.version in used]
        taught = {lineage.get(TEACHER) for lineage in lineages}
        teachers = {known.fingerprint: known.version for known in versions if known.fingerprint in taught}
        return {lineage.get(ANCHOR) for lineage in lineages} | {*teachers.values()}

    def _path(self, version: str) -> Path:
        return self.root / version

    def _pointer(self) -> str:
        try:
            return read_bytes(self.root / "wanted").decode(errors="replace").strip()
        except (FileNotFoundError, ValueError):
            return ""

    def _entries(self) -> Iterator[tuple[str, Manifest | Damaged | Unreadable]]:
        names = sorted(path.name for path in self.root.iterdir()) if self.root.is_dir() else []
        for name in names:
            if name.startswith(".") or not self._path(name).is_dir():
                continue
            try:
                if not is_version(name):
                    raise Damaged(name, "its name is no version's")  # noqa: TRY301  one way out for every reason
                yield name, read_manifest(self._path(name))
            except (Damaged, Unreadable) as trouble:
                yield name, trouble

    @contextlib.contextmanager
    def temporary(self) -> Iterator[Path]:
        """An empty folder for a version that is being written, on the file system of the versions.

        It is locked until the end, and removed unless it was renamed. What a killed process leaves of it is
        removed by a later call.
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
            shutil.rmtree(folder, ignore_errors=True)
            os.close(builder)

    def sweep(self) -> None:
        """Remove what builders left that died. Publishing and pruning do so, too."""
        with self._locked():
            self._sweep()

    def _sweep(self) -> None:
        """A builder that lives holds the lock of its folder. The caller has the store's."""
        for left in self.root.glob(f"{_TEMPORARY}*"):
            with contextlib.suppress(OSError):  # its builder may be removing it now, or be another user
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
    quantised = new.quantised is not None and existing.quantised is None
    return calibrated or quantised or (new.packed and not existing.packed)


def _identity(manifest: Manifest) -> tuple[object, ...]:
    prompts = manifest.prompts, manifest.default_prompt
    student = manifest.query_encoder and manifest.query_encoder.fingerprint
    return manifest.fingerprint, manifest.precision, prompts, manifest.search, student

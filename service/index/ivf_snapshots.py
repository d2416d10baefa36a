"""Saves the inverted lists of an index's base on disk. Start at `IvfSnapshots`.

With a snapshot, the service need not train the lists again when it starts.

    DATA_DIR/indexes/default/      a collection
    ├── 2.lists                    generation 2: SHA-256, length, a line of JSON, and bytes
    └── .2.lists-9f8e7d6c          being written; removed at the next start

A snapshot contains the centers, the ranges of codes, and the list of each row: about 12 bytes per row. The
store has the vectors and decides which rows exist, so an old snapshot can be used. A damaged file is
ignored with a log line. The checksum is verified first, because FAISS's C++ reader trusts its input.
"""

import hashlib
import json
import logging
import os
import shutil
import struct
from collections.abc import Collection, Container, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
from numpy.typing import NDArray

from models.files.fsync import replace_bytes
from service.errors import machine_error
from service.index.gpu import GpuThread
from service.index.ivf import Clustered, Training
from service.observability import outages
from service.store.values import RowNames

log = logging.getLogger(__name__)

FORMAT = 2  # Format 1 was a folder of files.
SUFFIX = ".lists"
_HEADER = struct.Struct("<32sQ")  # SHA-256 and length of the rest of the file


class Damaged(Exception):
    """Raised if a snapshot cannot be used. The message has the reason."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Identifies the vectors of a snapshot. Snapshots with another origin are ignored."""

    generation: int
    fingerprint: str
    dimension: int


class Known(NamedTuple):
    """The inverted list of each row in a snapshot. `names` are sorted."""

    training: Training
    names: RowNames
    labels: NDArray[np.int32]

    def get_labels(self, names: RowNames) -> NDArray[np.int32]:
        """Returns the list of each row. Rows that the snapshot does not contain get -1."""
        places = np.minimum(np.searchsorted(self.names, names), len(self.names) - 1)
        found: NDArray[np.int32] = np.where(self.names[places] == names, self.labels[places], np.int32(-1))
        return found


class IvfSnapshots:
    """Reads and writes the snapshot of one collection and generation."""

    def __init__(self, folder: Path, origin: Origin, gpu: GpuThread | None = None) -> None:
        self._file = folder / f"{origin.generation}{SUFFIX}"
        self._origin = origin
        self._gpu = gpu

    def place(self, base: Clustered) -> None:
        """Copies `base` to the GPU, if a GPU is used. Searches may continue during the copy."""
        if self._gpu is not None:
            base.place(self._gpu)

    def keep(self, base: Clustered, sequence: int) -> None:
        """Copies `base` to the GPU, and writes a snapshot. Disk errors are only logged."""
        self.place(base)
        order = np.argsort(base.names)
        facts = {
            "format": FORMAT,
            "origin": asdict(self._origin),
            "sequence": sequence,
            "trained_on": base.training.rows,
            "rows": len(order),
        }
        arrays = base.names[order], base.labels[order], faiss.serialize_index(base.training.empty)
        try:
            write(self._file, facts, b"".join(array.tobytes() for array in arrays))
        except OSError as error:
            fault = machine_error(error)
            why = fault.message if fault else type(error).__name__
            outages.warn(log, f"The lists of the index were not saved: {why}")

    def read(self, sequence: int) -> Known | None:
        """Returns the lists of the snapshot, or None if it is missing, damaged or unsuitable.

        A snapshot is unsuitable if it is newer than `sequence`, or has another origin or format.
        """
        if not self._file.exists():
            return None
        try:
            return self._read(sequence)
        except (Damaged, OSError) as error:
            log.warning("The index snapshot %s is not used: %s", self._file, error)
        except Exception:  # The index can be rebuilt after any error.
            log.exception("The index snapshot %s is not used", self._file)
        return None

    def _read(self, sequence: int) -> Known:
        facts, content = read(self._file)
        if facts["format"] != FORMAT:
            raise Damaged(f"its format is {facts['format']}, and this program writes {FORMAT}")
        if facts["origin"] != asdict(self._origin):
            raise Damaged("it belongs to another model")
        if facts["sequence"] > sequence:  # The store was replaced, so its row names mean other texts.
            raise Damaged("it is newer than the store")
        rows = facts["rows"]
        names = np.frombuffer(content, np.int64, rows)
        labels = np.frombuffer(content, np.int32, rows, offset=8 * rows)
        lists: Any = faiss.deserialize_index(np.frombuffer(content, np.uint8, offset=12 * rows))
        if not (
            isinstance(lists, faiss.IndexIVFScalarQuantizer)
            and (lists.d, lists.ntotal) == (self._origin.dimension, 0)
            and rows
            and (np.diff(names) > 0).all()
            and 0 <= labels.min() <= labels.max() < lists.nlist
        ):
            raise Damaged("it does not contain inverted lists")
        return Known(Training(lists, facts["trained_on"]), names, labels)


def write(file: Path, facts: Mapping[str, object], content: bytes) -> None:
    """Replaces `file` atomically, and creates its folder.

    Raises:
        OSError: The disk is full or failing. The old file is unchanged.

    """
    file.parent.mkdir(parents=True, exist_ok=True)
    body = json.dumps(facts).encode() + b"\n" + content
    replace_bytes(file, _HEADER.pack(hashlib.sha256(body).digest(), len(body)) + body)


def read(file: Path) -> tuple[dict[str, Any], bytes]:
    """Reads the facts and the content of `file`, and verifies the checksum.

    Raises:
        Damaged: `file` is not a file, or its content differs from what was written.
        OSError: The file cannot be read.
    """
    if not file.is_file():  # Opening a pipe would block forever.
        raise Damaged("it is not a file")
    with file.open("rb") as stream:
        header, size = stream.read(_HEADER.size), os.fstat(stream.fileno()).st_size
        digest, length = _HEADER.unpack(header) if len(header) == _HEADER.size else (b"", -1)
        if size != _HEADER.size + length:
            raise Damaged("its length is wrong")
        body = stream.read()
    if hashlib.sha256(body).digest() != digest:
        raise Damaged("its checksum is wrong")
    line, _, content = body.partition(b"\n")
    facts: dict[str, Any] = json.loads(line)
    return facts, content


def tidy(root: Path, collections: Container[str], generations: Collection[int]) -> None:
    """Removes all files below `root`, except the snapshots of the given collections and generations.

    Only the owner of the data directory may call this, before anything is written.
    """
    kept = {f"{generation}{SUFFIX}" for generation in generations}
    try:
        for folder in root.iterdir() if root.is_dir() else []:
            if folder.name not in collections:
                shutil.rmtree(folder, ignore_errors=True)
                continue
            for path in folder.iterdir():
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                elif path.name not in kept:
                    path.unlink()
    except OSError as error:  # Files that are left only take space.
        log.warning("%s could not be tidied: %s", root, error)


def damage(root: Path) -> list[str]:
    """Reads all snapshots. Returns a line for each damaged snapshot."""
    found = []
    for file in sorted(root.glob(f"*/*{SUFFIX}")):
        try:
            read(file)
        except (Damaged, OSError) as error:
            found.append(f"{file.relative_to(root)}: {error}")
    return found

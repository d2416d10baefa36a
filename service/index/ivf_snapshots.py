"""The inverted lists of a base on disk: a start finds them there, and need not train them again.

    DATA_DIR/indexes/default/      of a collection
    ├── 2.lists                    of generation 2: SHA-256, length, a line of JSON, and bytes
    └── .2.lists-9f8e7d6c          being written; removed at the next start

Kept are the centres, the ranges of the codes, and which row is in which list: some 12 bytes a row. The
vectors are the store's, and so is what is alive: rows that came since the snapshot are put into their lists,
and those that went are left out, so a snapshot of any age gives the index that the store says.

Nothing here is the truth. A file that is not as it was written is not used, and the log says why: a derived
file must never stop a start, and none is parsed whose checksum is not the one that this program wrote
(FAISS's reader is a parser in C++, and trusts its input).
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

FORMAT = 2  # 1 was a folder of files
SUFFIX = ".lists"
_HEADER = struct.Struct("<32sQ")  # SHA-256 and length of all that follows


class Damaged(Exception):
    """A snapshot cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Identity of the vectors that a snapshot is of. A snapshot of another origin is not read."""

    generation: int
    fingerprint: str
    dimension: int


class Known(NamedTuple):
    """The lists that were kept of the rows of `names`, which rise."""

    training: Training
    names: RowNames
    labels: NDArray[np.int32]

    def labels_of(self, names: RowNames) -> NDArray[np.int32]:
        """The lists of the rows of these names, -1 for those that are not known."""
        places = np.minimum(np.searchsorted(self.names, names), len(self.names) - 1)
        found: NDArray[np.int32] = np.where(self.names[places] == names, self.labels[places], np.int32(-1))
        return found


class IvfSnapshots:
    """The snapshot of one collection's index, of one generation."""

    def __init__(self, folder: Path, origin: Origin, gpu: GpuThread | None = None) -> None:
        """gpu: where the lists are searched; None: on the CPU."""
        self._file = folder / f"{origin.generation}{SUFFIX}"
        self._origin = origin
        self._gpu = gpu

    def place(self, base: Clustered) -> None:
        """Put it onto the GPU, if there is one; it can be searched meanwhile."""
        if self._gpu is not None:
            base.place(self._gpu)

    def keep(self, base: Clustered, sequence: int) -> None:
        """Place it, and write a snapshot. A disk that fails costs the next start some time."""
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
            outages.warn(log, f"The lists of the index were not kept: {why}")

    def read(self, sequence: int) -> Known | None:
        """The lists of the snapshot, when it is whole, and of the moment `sequence` or before."""
        if not self._file.exists():
            return None
        try:
            return self._read(sequence)
        except (Damaged, OSError) as error:
            log.warning("The index snapshot %s is not used: %s", self._file, error)
        except Exception:  # whatever it is, the index can be made again
            log.exception("The index snapshot %s is not used", self._file)
        return None

    def _read(self, sequence: int) -> Known:
        facts, content = read(self._file)
        if facts["format"] != FORMAT:
            raise Damaged(f"its format is {facts['format']}, and this program writes {FORMAT}")
        if facts["origin"] != asdict(self._origin):
            raise Damaged("it is of another model")
        if facts["sequence"] > sequence:  # of a store that was replaced: its names mean other texts
            raise Damaged("it is of a later moment than the store")
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
            raise Damaged("it holds something else than lists")
        return Known(Training(lists, facts["trained_on"]), names, labels)


def write(file: Path, facts: Mapping[str, object], content: bytes) -> None:
    """Replace `file`, whose folder is made if need be.

    Raises:
        OSError: the disk is full or failing; the file before is as it was.

    """
    file.parent.mkdir(parents=True, exist_ok=True)
    body = json.dumps(facts).encode() + b"\n" + content
    replace_bytes(file, _HEADER.pack(hashlib.sha256(body).digest(), len(body)) + body)


def read(file: Path) -> tuple[dict[str, Any], bytes]:
    """The facts and the content of `file`, every byte of which is as it was written.

    Raises:
        Damaged: it is not.
        OSError: it cannot be read.

    """
    if not file.is_file():  # to open a pipe would take for ever
        raise Damaged("it is not a file")
    with file.open("rb") as stream:
        header, size = stream.read(_HEADER.size), os.fstat(stream.fileno()).st_size
        digest, length = _HEADER.unpack(header) if len(header) == _HEADER.size else (b"", -1)
        if size != _HEADER.size + length:
            raise Damaged("it is shorter or longer than it was written")
        body = stream.read()
    if hashlib.sha256(body).digest() != digest:
        raise Damaged("it is not what was written")
    line, _, content = body.partition(b"\n")
    facts: dict[str, Any] = json.loads(line)
    return facts, content


def tidy(root: Path, collections: Container[str], generations: Collection[int]) -> None:
    """Remove all but the snapshots of these collections and generations, also what older programs wrote.

    For the owner of the data directory, before anything is written.
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
    except OSError as error:  # what is left takes room, and stops nothing
        log.warning("%s could not be tidied: %s", root, error)


def damage(root: Path) -> list[str]:
    """Damaged snapshots of all collections, one line each; reads every byte."""
    found = []
    for file in sorted(root.glob(f"*/*{SUFFIX}")):
        try:
            read(file)
        except (Damaged, OSError) as error:
            found.append(f"{file.relative_to(root)}: {error}")
    return found

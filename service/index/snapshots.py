"""Files that take long to make, and can always be made again.

    DATA_DIR/indexes/default/      of a collection
    ├── 2.lists                    of generation 2: SHA-256, length, a line of JSON, and bytes
    └── .2.lists-9f8e7d6c          being written; removed at the next start

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.files.fsync import replace_bytes

log = logging.getLogger(__name__)

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

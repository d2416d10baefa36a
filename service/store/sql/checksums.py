"""Checksums of documents: a damaged id, title, text or metadata is never answered as if it were true.

Start reading at `damaged_part`. The column `checksums` of a document has four bytes for each of PARTS, so a
search that reads some parts can check those. The statement that writes a document writes them, too. SQLite
stores CRC-32, computed here. PostgreSQL computes the beginning of MD5 itself, because its jsonb returns
another text than it was given. A document from before that column has NULL until `fill` has come to it.

A damaged document is an error where it is read by its id or listed, and left out of searches.
"""

import hashlib
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Final

from service.errors import Storage
from service.store.sql.connection import Connection
from service.store.values import DEFAULT_COLLECTION

PARTS: Final = ("id", "title", "text", "metadata")
SIZE: Final = 4  # bytes of the checksum of a part
FILL_DOCUMENTS = 128  # of one step
SHOWN_CHARACTERS = 80  # of an id in an error

Checksum = Callable[[bytes], bytes]


class DamagedDocument(Storage):
    """A document that is not what was stored."""

    def __init__(self, name: bytes, part: str) -> None:
        """name: as `parts_of` has it."""
        collection, _, id = name.decode(errors="replace").partition("/")
        where = "" if collection == DEFAULT_COLLECTION else f" of the collection {collection!r}"
        super().__init__(
            f"The {part} of the document {id[:SHOWN_CHARACTERS]!r}{where} is damaged: its checksum differs "
            "from what was stored. Send the document again, delete it, or restore a backup. "
            "`python -m service check --data` lists all damaged documents. Check the disk."
        )


class Damaged:
    """Damaged documents that this process has met; used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: set[bytes] = set()

    def add(self, name: bytes) -> bool:
        """Returns whether it is a new one."""
        with self._lock:
            known = name in self._names
            self._names.add(name)
        return not known

    def __len__(self) -> int:
        return len(self._names)


met = Damaged()


def crc32(part: bytes) -> bytes:
    return zlib.crc32(part).to_bytes(SIZE, "big")


def md5(part: bytes) -> bytes:
    return hashlib.md5(part, usedforsecurity=False).digest()[:SIZE]


def parts_of(collection: str, id: str, title: str, text: str, *metadata_json: str) -> list[bytes]:
    """Returns the parts as `checksums_of` takes them. The id has its collection's name before it."""
    return [part.encode() for part in (f"{collection}/{id}", title, text, *metadata_json)]


def checksums_of(parts: Sequence[bytes], checksum: Checksum = crc32) -> bytes:
    """Returns what the column `checksums` holds for a document."""
    return b"".join(map(checksum, parts))


def damaged_part(
    checksums: bytes | None, parts: Sequence[bytes | None], checksum: Checksum = crc32
) -> str | None:
    """Returns the first part that is not what was stored. None: all that were read are sound.

    Args:
        checksums: The column. NULL: not computed yet, so that only invalid UTF-8 is found. That is damage in
            any case: `fill` cannot know what was stored.
        parts: As `parts_of` makes them, None for those that were not read.
        checksum: Of one part, as the store computes it.

    """
    read = [part for part in parts if part is not None]
    whole = len(read) == len(PARTS) and checksums == checksums_of(read, checksum)  # the usual case
    for at, (name, part) in enumerate(zip(PARTS, parts, strict=True)):
        if part is None:
            continue
        if not _is_utf8(part):
            return name
        if whole or checksums is None:
            continue
        if checksum(part) != checksums[at * SIZE : (at + 1) * SIZE]:
            return name
    return None


def _is_utf8(part: bytes) -> bool:
    if part.isascii():  # that is quick
        return True
    try:
        part.decode()
    except UnicodeDecodeError:
        return False
    return True


def missing(connection: Connection) -> int:
    """The number of documents whose checksums are not computed yet."""
    row = connection.execute("SELECT count(*) FROM documents WHERE checksums IS NULL").fetchone()
    return int(row[0])

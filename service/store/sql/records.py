"""Reads of documents that both stores share, with the check of their checksums.

Start reading at `answered` and `damaged_part`. Sizes are counted in SQL before texts are read. Metadata is
returned as the JSON that it is stored as.

The column `checksums` of a document has four bytes for each of PARTS, so a search that reads some parts can
check them. SQLite stores CRC-32, computed here. PostgreSQL computes the beginning of MD5 itself, because its
jsonb changes the text. Documents from before the column have NULL until `fill_checksums` reaches them. A
damaged document is an error if it is read by its id or listed. Searches leave it out.
"""

import hashlib
import heapq
import logging
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from math import inf
from typing import Any, Final, Protocol

import orjson

from models.search.content import Content
from service.errors import Conflict, Storage
from service.store.filters.explain import FieldSample
from service.store.filters.grammar import Predicate
from service.store.scheduling import pause, reads
from service.store.sql.connection import Connection
from service.store.values import COLUMNS, DEFAULT_COLLECTION, Column, Record, TooMuch, Unembedded

PARTS: Final = ("id", "title", "text", "metadata")
CHECKSUM_BYTES: Final = 4  # Bytes of the checksum of a part.
FILL_DOCUMENTS = 128  # Documents of one step.
SHOWN_CHARACTERS = 80  # Characters of an id in a message.

Checksum = Callable[[bytes], bytes]


class DamagedDocument(Storage):
    """A document whose checksum is wrong. `name` is the first part of `encode_parts`."""

    def __init__(self, name: bytes, part: str) -> None:
        collection, _, id = name.decode(errors="replace").partition("/")
        where = "" if collection == DEFAULT_COLLECTION else f" of the collection {collection!r}"
        super().__init__(
            f"The {part} of the document {id[:SHOWN_CHARACTERS]!r}{where} is damaged: its checksum differs "
            "from what was stored. Send the document again, delete it, or restore a backup. "
            "`python -m service check --data` lists all damaged documents. Check the disk."
        )


# Damaged documents that this process has read, by `encode_parts`'s first part.
known_damage: set[bytes] = set()


def crc32(part: bytes) -> bytes:
    return zlib.crc32(part).to_bytes(CHECKSUM_BYTES, "big")


def md5(part: bytes) -> bytes:
    return hashlib.md5(part, usedforsecurity=False).digest()[:CHECKSUM_BYTES]


def encode_parts(collection: str, id: str, title: str, text: str, *metadata_json: str) -> list[bytes]:
    """Returns the parts as `compute_checksums` takes them. The id has its collection's name before it."""
    return [part.encode() for part in (f"{collection}/{id}", title, text, *metadata_json)]


def compute_checksums(parts: Sequence[bytes], checksum: Checksum = crc32) -> bytes:
    """Returns what the column `checksums` holds for a document."""
    return b"".join(map(checksum, parts))


def damaged_part(
    checksums: bytes | None, parts: Sequence[bytes | None], checksum: Checksum = crc32
) -> str | None:
    """Returns the name of the first damaged part, or None if all parts that were read are sound.

    Args:
        checksums: The column. NULL means not computed yet: then only invalid UTF-8 counts as damage.
        parts: As `encode_parts` returns them, with None for parts that were not read.
        checksum: Computes the checksum of a part.
    """
    read = [part for part in parts if part is not None]
    whole = len(read) == len(PARTS) and checksums == compute_checksums(read, checksum)
    for at, (name, part) in enumerate(zip(PARTS, parts, strict=True)):
        if part is None:
            continue
        if not _is_utf8(part):
            return name
        if whole or checksums is None:
            continue
        if checksum(part) != checksums[at * CHECKSUM_BYTES : (at + 1) * CHECKSUM_BYTES]:
            return name
    return None


def _is_utf8(part: bytes) -> bool:
    if part.isascii():
        return True
    try:
        part.decode()
    except UnicodeDecodeError:
        return False
    return True


def count_without_checksums(connection: Connection) -> int:
    """Returns the number of documents without checksums."""
    row = connection.execute("SELECT count(*) FROM documents WHERE checksums IS NULL").fetchone()
    return int(row[0])


log = logging.getLogger(__name__)

SAMPLE_IDS = 5000  # Ids that are read at a time, in some milliseconds.
SAMPLED_DOCUMENTS = 1000  # For `field_sample`: half of them from each end.
SAMPLED_TOGETHER = 100
MAX_SAMPLED_BYTES = 2 << 20  # Of metadata, in some 20 ms.


class Listing(Connection, Protocol):
    """A connection that takes a list of values as one parameter."""

    AMONG: str  # Follows a column. The parameter is the result of `listed`.

    def listed(self, values: Sequence[object], /) -> Any: ...


class Reading(Listing, Protocol):
    """A connection that reads documents, with the parts of SQL in which the databases differ."""

    BYTES: str  # The number of bytes of a text column.
    RAW: str  # A text column as UTF-8 bytes.
    METADATA: str  # The metadata, as `as_json` takes it.

    def as_json(self, metadata: Any, /) -> bytes: ...
    def checksum(self, part: bytes, /) -> bytes: ...

    def scope(self, where: Predicate | None, collection: str, /) -> tuple[str, list[Any]]:
        """Returns SQL and parameters for the documents of a collection that match a filter."""


def collections(connection: Connection) -> list[str]:
    """Returns the sorted names of all collections."""
    return [name for (name,) in connection.execute("SELECT name FROM collections ORDER BY name")]


def has_collection(connection: Connection, name: str) -> bool:
    return connection.execute("SELECT 1 FROM collections WHERE name = ?", (name,)).fetchone() is not None


def refuse_another(connection: Connection, name: str, most: int) -> None:
    """Raises Conflict if another collection would be one too many."""
    if len(collections(connection)) >= most:
        raise Conflict(
            f"There are {most} collections, and {name!r} would be one more than SIMILE_MAX_COLLECTIONS "
            "allows. Delete one, or raise the setting."
        )


def get(connection: Reading, id: str, collection: str = DEFAULT_COLLECTION) -> Record | None:
    """Returns a document, or None. Raises DamagedDocument."""
    row = connection.execute(
        f"SELECT {_columns(connection)} FROM documents WHERE collection = ? AND id = ?", (collection, id)
    ).fetchone()
    return None if row is None else _record(connection, row)


def page(
    connection: Reading,
    after: str,
    limit: int,
    where: Predicate | None,
    max_bytes: float = inf,
    collection: str = DEFAULT_COLLECTION,
) -> tuple[list[Record], bool]:
    """Returns documents by id, as `protocol.Documents.page` says."""
    sql, parameters = connection.scope(where, collection)
    rows = connection.execute(
        f"SELECT revision, {_bytes(connection, COLUMNS)} FROM documents WHERE {sql} AND id > ? "
        "ORDER BY id LIMIT ?",
        [*parameters, after, limit + 1],
    )
    chosen: list[int] = []
    left, more = max_bytes, False
    for revision, size in rows:
        more = len(chosen) == limit or bool(chosen and left < size)
        if more:
            break
        reads(size)
        chosen.append(revision)
        left -= size
    read = records(connection, dict.fromkeys(chosen, 1), fails=True)
    found: list[Record] = []
    for revision in chosen:
        max_bytes -= read[revision].size
        if found and max_bytes < 0:  # Control characters are longer in JSON.
            return found, True
        found.append(read[revision])
    return found, more


def answered(
    connection: Reading, times: Mapping[int, int], max_bytes: float = inf, columns: Sequence[Column] = COLUMNS
) -> dict[int, Record]:
    """Returns the documents of an answer, as `protocol.Snapshot.answered` says."""
    found = sizes(connection, times, max_bytes, columns)
    reads(sum(times[revision] * size for revision, size in found.items()))
    return records(connection, times, max_bytes, columns)


def sizes(
    connection: Reading, times: Mapping[int, int], max_bytes: float = inf, columns: Sequence[Column] = COLUMNS
) -> dict[int, int]:
    """Returns the bytes of these columns, for the current revisions among `times`."""
    sql = f"SELECT revision, {_bytes(connection, columns)} FROM documents WHERE revision {connection.AMONG}"
    rows = connection.execute(sql, (connection.listed([*times]),))
    found: dict[int, int] = {}
    for revision, size in rows:
        found[revision] = size
        max_bytes -= times[revision] * size
        if max_bytes < 0:
            raise TooMuch
    return found


def records(
    connection: Reading,
    times: Mapping[int, int],
    max_bytes: float = inf,
    columns: Sequence[Column] = COLUMNS,
    *,
    fails: bool = False,
) -> dict[int, Record]:
    """Returns the documents with current revisions among `times`.

    Args:
        connection: Of either store.
        times: How often each revision is in the answer.
        max_bytes: Bytes that the answer may have. TooMuch is raised beyond.
        columns: The parts to read.
        fails: Raise DamagedDocument. Otherwise damaged documents are left out.
    """
    sql = f"SELECT revision, {_columns(connection, columns)} FROM documents WHERE revision {connection.AMONG}"
    rows = connection.execute(sql, (connection.listed([*times]),))
    found: dict[int, Record] = {}
    for revision, *row in rows:
        try:
            found[revision] = _record(connection, row)
        except DamagedDocument:
            if fails:
                raise
            continue
        max_bytes -= times[revision] * found[revision].size
        if max_bytes < 0:
            raise TooMuch
        pause()
    return found


def sample(
    connection: Reading, count: int, characters: int, collection: str = DEFAULT_COLLECTION
) -> list[str]:
    """Returns the beginnings of texts, as `protocol.Documents.sample` says."""
    chosen: list[tuple[bytes, int]] = []
    after: str | None = ""
    while after is not None:
        sql = "SELECT id, revision FROM documents WHERE collection = ? AND id > ? ORDER BY id LIMIT ?"
        rows = connection.execute(sql, (collection, after, SAMPLE_IDS)).fetchall()
        hashed = [(blake2b(id.encode(), digest_size=8).digest(), revision) for id, revision in rows]
        chosen = heapq.nsmallest(count, [*chosen, *hashed])
        after = rows[-1][0] if rows else None
        pause()
    revisions = [revision for _, revision in chosen]
    heads = connection.execute(
        "SELECT revision, substr(text, 1, ?), substr(title, 1, ?) FROM documents "
        f"WHERE revision {connection.AMONG}",
        (characters, characters, connection.listed(revisions)),
    )
    found = {revision: Content(text, title).whole[:characters] for revision, text, title in heads}
    return [found[revision] for revision in revisions]


def unembedded(connection: Listing, revisions: Sequence[int]) -> dict[int, Unembedded]:
    """Returns titles and texts to embed, for the current revisions among these."""
    sql = f"SELECT revision, collection, id, text, title FROM documents WHERE revision {connection.AMONG}"
    rows = connection.execute(sql, (connection.listed(revisions),))
    return {at: Unembedded(collection, id, Content(text, title)) for at, collection, id, text, title in rows}


def get_ids(connection: Reading, revisions: Sequence[int]) -> dict[int, str]:
    """Returns the ids of the current revisions among these."""
    sql = f"SELECT revision, id FROM documents WHERE revision {connection.AMONG}"
    return dict(connection.execute(sql, (connection.listed(revisions),)).fetchall())


def last_revision(connection: Connection) -> int:
    """Returns the highest revision of a living document, or 0."""
    return int(connection.execute("SELECT coalesce(max(revision), 0) FROM documents").fetchone()[0])


def _bytes(connection: Reading, columns: Iterable[Column]) -> str:
    return " + ".join(map(connection.BYTES.format, columns)) or "0"


def _columns(connection: Reading, columns: Sequence[Column] = COLUMNS) -> str:
    """Returns SQL of the columns that `_record` takes."""
    raw = connection.RAW.format
    parts = {"title": raw("title"), "text": raw("text"), "metadata": connection.METADATA}
    read = (parts[column] if column in columns else "NULL" for column in COLUMNS)
    return ", ".join(["checksums", raw("collection || '/' || id"), *read])


def _record(connection: Reading, row: Sequence[Any]) -> Record:
    """Makes a record from the columns of `_columns`. Raises DamagedDocument."""
    checksums, name, title, text, metadata = row
    stored = metadata.encode() if isinstance(metadata, str) else metadata
    part = damaged_part(checksums, (name, title, text, stored), connection.checksum)
    if part is not None:
        if name not in known_damage:
            known_damage.add(name)
            log.error("A document is damaged: its %s. `python -m service check --data` names it", part)
        raise DamagedDocument(name, part)
    as_json = connection.as_json(metadata) if metadata else b"{}"
    id = name.decode().partition("/")[2]
    return Record(id, _json(text), as_json, _json(title) if title else b"")


def _json(part: bytes | None) -> bytes:
    return orjson.dumps((part or b"").decode())


def field_sample(connection: Reading, collection: str) -> FieldSample:
    """Reads the fields of the first and the last documents of a collection, by id."""
    sample, left, last = FieldSample(), MAX_SAMPLED_BYTES, ""
    for order, bound in (("ASC", SAMPLED_DOCUMENTS // 2), ("DESC", SAMPLED_DOCUMENTS)):
        before = ""  # In descending order, the next documents have smaller ids.
        while sample.documents < bound:
            at = ("AND id < ? ", [before]) if before else ("", [])
            rows = connection.execute(
                f"SELECT id, {connection.METADATA} FROM documents WHERE collection = ? AND id > ? {at[0]}"
                f"ORDER BY id {order} LIMIT ?",
                [collection, last, *at[1], SAMPLED_TOGETHER],
            ).fetchall()
            for id, metadata in rows:
                left -= len(metadata)
                sample.add(parse_metadata(metadata, connection.as_json))
                last, before = (id, before) if order == "ASC" else (last, id)
                if left <= 0:
                    sample.complete = False
                    return sample
            pause()
            if len(rows) < SAMPLED_TOGETHER:
                return sample
    sample.complete = False
    return sample


def parse_metadata(metadata: Any, as_json: Callable[[Any], bytes | str] = lambda it: it) -> dict[str, Any]:
    """Returns metadata as an object. Damaged metadata, on which `as_json` may fail, has no fields."""
    try:
        parsed = orjson.loads(as_json(metadata))
    except orjson.JSONDecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}

"""Reads documents in both stores, and verifies their checksums. Start at `answered` and `damaged_part`.

Sizes are counted in SQL before texts are read. Metadata is returned as the JSON that is stored.

The column `checksums` of a document has four bytes for each of PARTS, so a search that reads some parts can
verify only these. SQLite stores CRC-32 sums that this module computes. PostgreSQL itself computes MD5 sums,
because jsonb changes the text, and stores the first four bytes of each. Documents that an older version
stored have NULL until `fill_checksums` reaches them. A damaged document is an error if it is read by its id
or listed. Searches leave it out.
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
from service.errors import Conflict, Forbidden, Storage
from service.store.filters.explain import FieldSample
from service.store.filters.grammar import Predicate, scoped
from service.store.scheduling import pause, reads
from service.store.sql.connection import Connection, fetch_column, fetch_value
from service.store.values import COLUMNS, DEFAULT_COLLECTION, Column, Record, TooMuch, Unembedded, Usage

PARTS: Final = ("id", "title", "text", "metadata")
CHECKSUM_BYTES: Final = 4  # Bytes of the checksum of a part.
FILL_DOCUMENTS = 128  # Documents of one step.
IDS_TOGETHER = 256  # Ids of one statement.
SHOWN_CHARACTERS = 80  # Characters of an id in a message.

Checksum = Callable[[bytes], bytes]


class DamagedDocument(Storage):
    """Raised for a document with a wrong checksum or invalid UTF-8.

    Args:
        name: Collection and id, as in the first part of `encode_parts`.
        part: Name of the damaged part.
    """

    def __init__(self, name: bytes, part: str) -> None:
        collection, _, id = name.decode(errors="replace").partition("/")
        where = "" if collection == DEFAULT_COLLECTION else f" of the collection {collection!r}"
        super().__init__(
            f"The {part} of the document {id[:SHOWN_CHARACTERS]!r}{where} is damaged: its checksum differs "
            "from what was stored. Send the document again, delete it, or restore a backup. "
            "`simile check --data` lists all damaged documents. Check the disk."
        )


# Damaged documents that this process has read, by `encode_parts`'s first part.
known_damage: set[bytes] = set()


def crc32(part: bytes) -> bytes:
    return zlib.crc32(part).to_bytes(CHECKSUM_BYTES, "big")


def md5(part: bytes) -> bytes:
    return hashlib.md5(part, usedforsecurity=False).digest()[:CHECKSUM_BYTES]


def encode_parts(collection: str, id: str, title: str, text: str, *metadata_json: str) -> list[bytes]:
    """Returns the parts of a document for `compute_checksums`. The first part is collection and id."""
    return [part.encode() for part in (f"{collection}/{id}", title, text, *metadata_json)]


def compute_checksums(parts: Sequence[bytes], checksum: Checksum = crc32) -> bytes:
    """Returns the value of the column `checksums` for the parts of a document."""
    return b"".join(map(checksum, parts))


def damaged_part(
    checksums: bytes | None, parts: Sequence[bytes | None], checksum: Checksum = crc32
) -> str | None:
    """Returns the name of the first damaged part. Returns None if no part that was read is damaged.

    Args:
        checksums: The column `checksums`. NULL if not computed yet; then only invalid UTF-8 counts as damage.
        parts: The parts as `encode_parts` returns them, with None for parts that were not read.
        checksum: Computes the checksum of a part.
    """
    read = [part for part in parts if part is not None]
    whole = len(read) == len(PARTS) and checksums == compute_checksums(read, checksum)
    for at, (name, part) in enumerate(zip(PARTS, parts, strict=True)):
        if part is not None and not _is_utf8(part):
            return name
        if part is None or whole or checksums is None:
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
    return int(fetch_value(connection, "SELECT count(*) FROM documents WHERE checksums IS NULL"))


log = logging.getLogger(__name__)

SAMPLE_IDS = 5000  # Ids that are read at a time, in some milliseconds.
SAMPLED_DOCUMENTS = 1000  # Documents that `field_sample` reads, half of them from each end.
SAMPLED_TOGETHER = 100
MAX_SAMPLED_BYTES = 2 << 20  # Metadata that `field_sample` reads, in some 20 ms.


class Listing(Connection, Protocol):
    """Interface of a connection that accepts a list of values as one parameter."""

    AMONG: str  # Follows a column. The parameter is the result of `listed`.

    def listed(self, values: Sequence[object], /) -> Any: ...


class Reading(Listing, Protocol):
    """Interface of a connection that reads documents.

    The attributes are SQL that differs between the stores.
    """

    BYTES: str  # The number of bytes of a text column.
    RAW: str  # A text column as UTF-8 bytes.
    METADATA: str  # The metadata, as `as_json` takes it.

    def as_json(self, metadata: Any, /) -> bytes: ...
    def checksum(self, part: bytes, /) -> bytes: ...

    def scope(self, where: Predicate | None, collection: str, /) -> tuple[str, list[Any]]:
        """Returns SQL and parameters for the documents in a collection that match a filter."""


def collections(connection: Connection) -> list[str]:
    """Returns the sorted names of all collections."""
    return fetch_column(connection, "SELECT name FROM collections ORDER BY name")


def has_collection(connection: Connection, name: str) -> bool:
    return connection.execute("SELECT 1 FROM collections WHERE name = ?", (name,)).fetchone() is not None


def refuse_another(connection: Connection, name: str, most: int) -> None:
    """Raises Conflict if one more collection would exceed the limit of `most` collections."""
    if fetch_value(connection, "SELECT count(*) FROM collections") >= most:
        raise Conflict(
            f"There are {most} collections, and {name!r} would be one more than SIMILE_MAX_COLLECTIONS "
            "allows. Delete one, or raise the setting."
        )


def get(
    connection: Reading, id: str, collection: str = DEFAULT_COLLECTION, where: Predicate | None = None
) -> Record | None:
    """Returns a document, or None if it does not exist or match the filter. Raises DamagedDocument."""
    sql, parameters = scoped(where, collection)
    row = connection.execute(
        f"SELECT {_columns(connection)} FROM documents WHERE {sql} AND id = ?", [*parameters, id]
    ).fetchone()
    return None if row is None else _record(connection, row)


def find_among(
    connection: Connection, ids: Sequence[str], collection: str, condition: str = "TRUE", *values: object
) -> list[str]:
    """Returns those of some ids whose documents exist in a collection and meet a condition in SQL.

    The ids are one parameter each, because one may contain U+0000, which SQLite's JSON functions cannot read.
    """
    found: list[str] = []
    for first in range(0, len(ids), IDS_TOGETHER):
        some = ids[first : first + IDS_TOGETHER]
        among = ", ".join("?" * len(some))
        sql = f"SELECT id FROM documents WHERE collection = ? AND id IN ({among}) AND {condition}"
        found += fetch_column(connection, sql, collection, *some, *values)
    return found


def refuse_hidden(
    connection: Connection, ids: Sequence[str], collection: str, within: Predicate | None
) -> None:
    """Raises Forbidden if a stored document with one of the ids does not match `within`."""
    if within is None:
        return
    hidden = f"NOT coalesce(({within.sql}), FALSE)"
    if find_among(connection, ids, collection, hidden, *within.parameters):
        raise Forbidden(
            "The key may not write one of these ids. Tenants share the ids of a collection, so begin each id "
            "with a prefix of your own."
        )


def measure(
    connection: Reading,
    chosen: Callable[[str], bool],
    where: Predicate | None,
    writes: Sequence[tuple[str, Sequence[str]]] = (),
) -> tuple[Usage, list[Usage]]:
    """Measures documents, as `protocol.Documents.measure` says."""
    total = Usage(0, 0)
    for name in filter(chosen, collections(connection)):
        total = total.plus(_measure(connection, name, where))
        pause()
    replaced = []
    for name, ids in writes:
        held = Usage(0, 0)
        for first in range(0, len(ids), IDS_TOGETHER):
            held = held.plus(_measure(connection, name, where, ids[first : first + IDS_TOGETHER]))
        replaced.append(held)
    return total, replaced


def _measure(connection: Reading, collection: str, where: Predicate | None, ids: Sequence[str] = ()) -> Usage:
    sql, parameters = scoped(where, collection)
    among = f" AND id IN ({', '.join('?' * len(ids))})" if ids else ""
    row = connection.execute(
        f"SELECT count(*), coalesce(sum({_bytes(connection, COLUMNS)}), 0) FROM documents WHERE {sql}{among}",
        [*parameters, *ids],
    ).fetchone()
    return Usage(*map(int, row))


def page(
    connection: Reading,
    after: str,
    limit: int,
    where: Predicate | None,
    max_bytes: float = inf,
    collection: str = DEFAULT_COLLECTION,
) -> tuple[list[Record], bool]:
    """Returns documents in the order of their ids, as `protocol.Documents.page` says."""
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
    """Returns the sizes of documents in bytes, by revision.

    Args:
        connection: A connection to either store.
        times: How often the answer contains each revision. Deleted revisions are left out.
        max_bytes: Maximum size of the answer. TooMuch is raised beyond it.
        columns: The columns that count.
    """
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
    """Returns documents by revision.

    Args:
        connection: A connection to either store.
        times: How often the answer contains each revision. Deleted revisions are left out.
        max_bytes: Maximum size of the answer in bytes. TooMuch is raised beyond it.
        columns: The columns to read.
        fails: Whether a damaged document raises DamagedDocument. Otherwise it is left out.
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
    found = beginnings(connection, revisions, characters)
    return [found[revision].whole[:characters] for revision in revisions]


def beginnings(connection: Reading, revisions: Sequence[int], characters: int) -> dict[int, Content]:
    """Returns the beginnings of titles and texts, as `protocol.Snapshot.beginnings` says."""
    text, title = (connection.RAW.format(f"substr({column}, 1, ?)") for column in ("text", "title"))
    rows = connection.execute(
        f"SELECT revision, {text}, {title} FROM documents WHERE revision {connection.AMONG}",
        (characters, characters, connection.listed(revisions)),
    )
    return {
        revision: Content(bytes(text).decode(errors="replace"), bytes(title).decode(errors="replace"))
        for revision, text, title in rows
    }


def titles(connection: Reading, revisions: Sequence[int]) -> dict[int, str]:
    """Returns the titles of those of `revisions` that still exist, by revision."""
    sql = f"SELECT revision, title FROM documents WHERE revision {connection.AMONG}"
    return dict(connection.execute(sql, (connection.listed(revisions),)).fetchall())


def unembedded(connection: Listing, revisions: Sequence[int]) -> dict[int, Unembedded]:
    """Returns the documents to embed by revision, for those of `revisions` that still exist."""
    sql = f"SELECT revision, collection, id, text, title FROM documents WHERE revision {connection.AMONG}"
    rows = connection.execute(sql, (connection.listed(revisions),))
    return {at: Unembedded(collection, id, Content(text, title)) for at, collection, id, text, title in rows}


def get_ids(connection: Reading, revisions: Sequence[int]) -> dict[int, str]:
    """Returns the document ids of those of `revisions` that still exist, by revision."""
    sql = f"SELECT revision, id FROM documents WHERE revision {connection.AMONG}"
    return dict(connection.execute(sql, (connection.listed(revisions),)).fetchall())


def get_revisions(connection: Connection, ids: Sequence[str], collection: str) -> dict[str, int]:
    """Returns the revisions of those of `ids` that exist in a collection, by document id."""
    among = ", ".join("?" * len(ids))
    sql = f"SELECT id, revision FROM documents WHERE collection = ? AND id IN ({among})"
    return dict(connection.execute(sql, (collection, *ids)).fetchall())


def get_titles(connection: Reading, revisions: Sequence[int]) -> dict[int, str]:
    """Returns the titles of those of `revisions` that still exist, by revision."""
    sql = f"SELECT revision, title FROM documents WHERE revision {connection.AMONG}"
    return dict(connection.execute(sql, (connection.listed(revisions),)).fetchall())


def last_revision(connection: Connection) -> int:
    """Returns the highest revision of an existing document, or 0."""
    return int(fetch_value(connection, "SELECT coalesce(max(revision), 0) FROM documents"))


def _bytes(connection: Reading, columns: Iterable[Column]) -> str:
    return " + ".join(map(connection.BYTES.format, columns)) or "0"


def _columns(connection: Reading, columns: Sequence[Column] = COLUMNS) -> str:
    """Returns SQL of the columns in the order that `_record` requires."""
    raw = connection.RAW.format
    parts = {"title": raw("title"), "text": raw("text"), "metadata": connection.METADATA}
    read = (parts[column] if column in columns else "NULL" for column in COLUMNS)
    return ", ".join(["checksums", raw("collection || '/' || id"), *read])


def _record(connection: Reading, row: Sequence[Any]) -> Record:
    """Creates a record from the values of `_columns`. Raises DamagedDocument."""
    checksums, name, title, text, metadata = row
    stored = metadata.encode() if isinstance(metadata, str) else metadata
    part = damaged_part(checksums, (name, title, text, stored), connection.checksum)
    if part is not None:
        if name not in known_damage:
            known_damage.add(name)
            log.error("A document is damaged: its %s. `simile check --data` names it", part)
        raise DamagedDocument(name, part)
    as_json = connection.as_json(metadata) if metadata else b"{}"
    id = name.decode().partition("/")[2]
    return Record(id, _json(text), as_json, _json(title) if title else b"")


def _json(part: bytes | None) -> bytes:
    return orjson.dumps((part or b"").decode())


def field_sample(connection: Reading, collection: str) -> FieldSample:
    """Reads the metadata fields of the first and the last documents in a collection, in the order of ids."""
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
    """Parses metadata to an object. Damaged metadata gives an empty object.

    Args:
        metadata: The stored value.
        as_json: Converts the value to JSON. For damaged metadata, it may raise JSONDecodeError.
    """
    try:
        parsed = orjson.loads(as_json(metadata))
    except orjson.JSONDecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}

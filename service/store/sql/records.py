"""Documents as they are read: the queries that both stores ask, each in the words of its database.

Sizes are counted in SQL before texts are read, and metadata is handed on as the JSON that it is stored as.
"""

import heapq
import logging
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from math import inf
from typing import Any, Protocol

import orjson

from models.search.content import Content
from service.errors import Conflict
from service.store.filters.explain import FieldSample
from service.store.filters.predicate import Predicate
from service.store.sql.checksums import DamagedDocument, damaged_part, met
from service.store.sql.connection import Connection
from service.store.turns import pause, reads
from service.store.values import COLUMNS, DEFAULT_COLLECTION, Column, Record, TooMuch, Unembedded

log = logging.getLogger(__name__)

SAMPLE_IDS = 5000  # looked at in one go: some milliseconds
SAMPLED_DOCUMENTS = 1000  # for `field_sample`, half of them from each end of the order of ids
SAMPLED_TOGETHER = 100
MAX_SAMPLED_BYTES = 2 << 20  # of metadata: some 20 ms


class Reading(Connection, Protocol):
    """A connection that reads documents, with what the databases say in different words."""

    AMONG: str  # behind a column: it is one of what `listed` makes of some
    BYTES: str  # of a column of text
    RAW: str  # a column of text, as bytes in UTF-8
    METADATA: str  # as `as_json` takes it

    def listed(self, values: Sequence[object], /) -> Any: ...
    def as_json(self, metadata: Any, /) -> bytes: ...
    def checksum(self, part: bytes, /) -> bytes: ...

    def scope(self, where: Predicate | None, collection: str, /) -> tuple[str, list[Any]]:
        """SQL and parameters for the documents of a collection that pass `where`."""


def collections(connection: Connection) -> list[str]:
    """The names of all, sorted; the default one is always there."""
    return [name for (name,) in connection.execute("SELECT name FROM collections ORDER BY name")]


def has_collection(connection: Connection, name: str) -> bool:
    return connection.execute("SELECT 1 FROM collections WHERE name = ?", (name,)).fetchone() is not None


def refuse_another(connection: Connection, name: str, most: int) -> None:
    """Raise Conflict where the collection `name` would be one too many."""
    if len(collections(connection)) >= most:
        raise Conflict(
            f"There are {most} collections, and {name!r} would be one more than SIMILE_MAX_COLLECTIONS "
            "allows. Delete one, or raise the setting."
        )


def get(connection: Reading, id: str, collection: str = DEFAULT_COLLECTION) -> Record | None:
    """The document `id`, None where there is none. Raises DamagedDocument."""
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
    """At most `limit` documents in id order, those after the id `after`; and whether others follow.

    Fewer when they would have more than `max_bytes` bytes together, but the first one always.

    Raises:
        DamagedDocument: one of them is not what was stored.

    """
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
        if found and max_bytes < 0:  # control characters are longer in JSON
            return found, True
        found.append(read[revision])
    return found, more


def answered(
    connection: Reading,
    times: Mapping[int, int],
    max_bytes: float = inf,
    columns: Sequence[Column] = COLUMNS,
) -> dict[int, Record]:
    """The documents of one answer: `times` says how often each revision is in it.

    columns: what else they have is not read, and is empty here. A damaged document is left out.

    Raises:
        TooMuch: the answer would have more than `max_bytes` bytes; then nothing is read.
        Overloaded: with other answers it would have more than all together may have.

    """
    found = sizes(connection, times, max_bytes, columns)
    reads(sum(times[revision] * size for revision, size in found.items()))
    return records(connection, times, max_bytes, columns)


def sizes(
    connection: Reading,
    times: Mapping[int, int],
    max_bytes: float = inf,
    columns: Sequence[Column] = COLUMNS,
) -> dict[int, int]:
    """Bytes of these columns of the documents whose current revision is one of `times`."""
    rows = connection.execute(
        f"SELECT revision, {_bytes(connection, columns)} FROM documents WHERE revision {connection.AMONG}",
        (connection.listed([*times]),),
    )
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
    """The documents whose current revision is one of `times`; one that is gone or damaged is absent.

    fails: a damaged one raises DamagedDocument.
    """
    rows = connection.execute(
        f"SELECT revision, {_columns(connection, columns)} FROM documents WHERE revision {connection.AMONG}",
        (connection.listed([*times]),),
    )
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
    """The first `characters` of `count` documents, titles first: those whose ids have the smallest hashes.

    So every store takes the same ones.
    """
    chosen: list[tuple[bytes, int]] = []
    after: str | None = ""
    while after is not None:
        rows = connection.execute(
            "SELECT id, revision FROM documents WHERE collection = ? AND id > ? ORDER BY id LIMIT ?",
            (collection, after, SAMPLE_IDS),
        ).fetchall()
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


def unembedded(connection: Reading, revisions: Sequence[int]) -> dict[int, Unembedded]:
    """Titles and texts to embed, of those of `revisions` that are current."""
    rows = connection.execute(
        f"SELECT revision, collection, id, text, title FROM documents WHERE revision {connection.AMONG}",
        (connection.listed(revisions),),
    )
    return {
        revision: Unembedded(collection, id, Content(text, title))
        for revision, collection, id, text, title in rows
    }


def ids_of(connection: Reading, revisions: Sequence[int]) -> dict[int, str]:
    """The ids of those of `revisions` that are current."""
    sql = f"SELECT revision, id FROM documents WHERE revision {connection.AMONG}"
    return dict(connection.execute(sql, (connection.listed(revisions),)).fetchall())


def last_revision(connection: Connection) -> int:
    """The highest revision of a living document, 0 when there is none."""
    return int(connection.execute("SELECT coalesce(max(revision), 0) FROM documents").fetchone()[0])


def _bytes(connection: Reading, columns: Iterable[Column]) -> str:
    return " + ".join(map(connection.BYTES.format, columns)) or "0"


def _columns(connection: Reading, columns: Sequence[Column] = COLUMNS) -> str:
    """SQL of what `_record` takes."""
    raw = connection.RAW.format
    parts = {"title": raw("title"), "text": raw("text"), "metadata": connection.METADATA}
    read = (parts[column] if column in columns else "NULL" for column in COLUMNS)
    return ", ".join(["checksums", raw("collection || '/' || id"), *read])


def _record(connection: Reading, row: Sequence[Any]) -> Record:
    """A row of `_columns`. Raises DamagedDocument."""
    checksums, name, title, text, metadata = row
    stored = metadata.encode() if isinstance(metadata, str) else metadata
    part = damaged_part(checksums, (name, title, text, stored), connection.checksum)
    if part is not None:
        damaged = DamagedDocument(name, part)
        if met.add(name):
            log.error("A document is damaged: its %s. `python -m service check --data` names it", part)
        raise damaged
    as_json = connection.as_json(metadata) if metadata else b"{}"
    id = name.decode().partition("/")[2]
    return Record(id, _json(text), as_json, _json(title) if title else b"")


def _json(part: bytes | None) -> bytes:
    return orjson.dumps((part or b"").decode())


def field_sample(connection: Reading, collection: str) -> FieldSample:
    """Reads the fields of the first and the last documents of a collection, by id."""
    sample, left, last = FieldSample(), MAX_SAMPLED_BYTES, ""
    for order, bound in (("ASC", SAMPLED_DOCUMENTS // 2), ("DESC", SAMPLED_DOCUMENTS)):
        before = ""  # of the documents from the end: those that come next have smaller ids
        while sample.documents < bound:
            at = ("AND id < ? ", [before]) if before else ("", [])
            rows = connection.execute(
                f"SELECT id, {connection.METADATA} FROM documents WHERE collection = ? AND id > ? {at[0]}"
                f"ORDER BY id {order} LIMIT ?",
                [collection, last, *at[1], SAMPLED_TOGETHER],
            ).fetchall()
            for id, metadata in rows:
                left -= len(metadata)
                sample.add(_object(connection, metadata))
                last, before = (id, before) if order == "ASC" else (last, id)
                if left <= 0:
                    sample.complete = False
                    return sample
            pause()
            if len(rows) < SAMPLED_TOGETHER:
                return sample
    sample.complete = False
    return sample


def _object(connection: Reading, metadata: Any) -> dict[str, Any]:
    """Returns metadata; what is damaged has no field, and `check --data` names its document."""
    try:
        parsed = orjson.loads(connection.as_json(metadata))
    except orjson.JSONDecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}

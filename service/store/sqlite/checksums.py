"""Computes and compares the checksums of documents in SQLite; sql/checksums.py says what they are."""

from collections.abc import Callable

from service.store.sql.checksums import FILL_DOCUMENTS, checksums_of, damaged_part
from service.store.sql.connection import Connection
from service.store.values import DEFAULT_COLLECTION

FILL_BYTES = 1 << 20

# SQL of the parts of a document in SQLite. SQLite raises for invalid UTF-8, unless it is asked for a BLOB.
_PARTS_SQL = ", ".join(
    f"CAST({part} AS BLOB)" for part in ("collection || '/' || id", "title", "text", "metadata")
)


def fill(connection: Connection) -> int:
    """Compute the checksums of some documents that have none, in SQLite. Returns how many, 0 at the end."""
    rows = connection.execute(
        f"SELECT revision, {_PARTS_SQL} FROM documents WHERE checksums IS NULL ORDER BY revision LIMIT ?",
        (FILL_DOCUMENTS,),
    )
    found: list[tuple[bytes, int]] = []
    left = FILL_BYTES
    for revision, *parts in rows:
        found.append((checksums_of(parts), revision))
        left -= sum(map(len, parts))
        if left < 0:
            break
    connection.executemany("UPDATE documents SET checksums = ? WHERE revision = ?", found)
    return len(found)


def is_damaged(connection: Connection, revision: int) -> bool:
    """Returns whether a document in SQLite is not what was stored."""
    sql = f"SELECT checksums, {_PARTS_SQL} FROM documents WHERE revision = ?"
    checksums, *parts = connection.execute(sql, (revision,)).fetchone()
    return damaged_part(checksums, parts) is not None


def damaged_documents(connection: Connection, tell: Callable[[int, int], None]) -> list[str]:
    """Read every document in SQLite.

    Args:
        connection: Of a store with today's column.
        tell: Told how many documents were looked at.

    Returns:
        The ids of the damaged ones; one of another collection than the default one comes after its name.

    """
    rows = connection.execute(f"SELECT checksums, {_PARTS_SQL} FROM documents ORDER BY collection, id")
    found = []
    for at, (checksums, *parts) in enumerate(rows, 1):
        part = damaged_part(checksums, parts)
        if part is not None:
            found.append(parts[0].decode(errors="replace").removeprefix(f"{DEFAULT_COLLECTION}/"))
        tell(at, at)
    return found

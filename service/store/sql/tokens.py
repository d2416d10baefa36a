"""Token vectors of documents for late interaction (models/tokens/late.py), in both stores.

They are derived from the documents: the service makes them again where they are missing. A row belongs to a
revision and a space, which names the encoder and the projection.
"""

from collections.abc import Iterable, Mapping, Sequence

from service.store.sql.connection import Connection, fetch_column
from service.store.sql.records import Reading, unembedded
from service.store.values import Unembedded

FORGOTTEN = 256  # Rows of one job, up to 32 KiB each.


def get_tokens(connection: Reading, space: str, revisions: Sequence[int]) -> dict[int, bytes]:
    """Returns stored token vectors, as `protocol.Snapshot.get_tokens` says."""
    sql = f"SELECT revision, body FROM tokens WHERE space = ? AND revision {connection.AMONG}"
    return dict(connection.execute(sql, (space, connection.listed(revisions))).fetchall())


def lacking_tokens(
    connection: Reading, space: str, collection: str, after: int, limit: int
) -> dict[int, Unembedded]:
    """Returns the next documents without token vectors, as `protocol.Generations.lacking_tokens` says."""
    sql = (
        "SELECT revision FROM documents d WHERE collection = ? AND revision > ? AND NOT EXISTS "
        "(SELECT 1 FROM tokens t WHERE t.revision = d.revision AND space = ?) ORDER BY revision LIMIT ?"
    )
    return unembedded(connection, fetch_column(connection, sql, collection, after, space, limit))


def insert(connection: Connection, space: str, rows: Mapping[int, bytes]) -> None:
    """Stores token vectors of documents that exist, and keeps those that are stored."""
    sql = "INSERT INTO tokens (revision, space, body) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
    connection.executemany(sql, [(revision, space, body) for revision, body in rows.items()])


def remove(connection: Connection, revisions: Iterable[int]) -> None:
    connection.executemany("DELETE FROM tokens WHERE revision = ?", [(each,) for each in revisions])


def forget_tokens(connection: Connection, kept: Sequence[str]) -> bool:
    """Deletes some token vectors, as `protocol.Generations.forget_tokens` says."""
    marks = ", ".join("?" * len(kept)) or "''"
    found = connection.execute(
        f"SELECT revision, space FROM tokens WHERE space NOT IN ({marks}) LIMIT ?", (*kept, FORGOTTEN)
    ).fetchall()
    connection.executemany("DELETE FROM tokens WHERE revision = ? AND space = ?", found)
    return len(found) == FORGOTTEN

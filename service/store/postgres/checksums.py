"""Checksums of documents in PostgreSQL, which computes them: sql/checksums.py says what they are."""

from service.store.postgres.connection import Connection
from service.store.sql.checksums import FILL_DOCUMENTS, SIZE
from service.store.values import DEFAULT_COLLECTION


def computed(collection: str, id: str, title: str, text: str, metadata: str) -> str:
    """SQL of the column `checksums` for SQL of a document's parts."""
    parts = (f"{collection} || '/' || {id}", title, text, f"({metadata})::text")
    sums = (f"left(md5(convert_to({part}, 'UTF8')), {2 * SIZE})" for part in parts)
    return f"decode({' || '.join(sums)}, 'hex')"


# `sent` is what is answered; filters read `metadata`.
STORED = computed("collection", "id", "title", "text", "coalesce(sent, metadata::text)")


def fill(connection: Connection) -> int:
    """Compute the checksums of some documents that have none. Returns how many, 0 at the end."""
    return connection.execute(
        f"UPDATE documents SET checksums = {STORED} WHERE revision IN (SELECT revision FROM documents "
        "WHERE checksums IS NULL ORDER BY revision LIMIT ? FOR UPDATE SKIP LOCKED)",
        (FILL_DOCUMENTS,),
    ).rowcount


def damaged_documents(connection: Connection) -> list[str]:
    """The ids of documents that are not what was stored, as sqlite/checksums.py returns them."""
    rows = connection.execute(
        f"SELECT collection || '/' || id FROM documents WHERE CASE WHEN checksums <> {STORED} THEN TRUE "
        "ELSE coalesce(sent::jsonb <> metadata, FALSE) END ORDER BY collection, id"
    )
    return [name.removeprefix(f"{DEFAULT_COLLECTION}/") for (name,) in rows]

"""Queries of documents and collections in PostgreSQL, and checksums of documents.

The database computes the checksums; sql/records.py explains them.
"""

from collections.abc import Sequence

from service.store.filters.grammar import Predicate, scoped
from service.store.postgres.connection import Connection
from service.store.sql.connection import fetch_column, fetch_value
from service.store.sql.records import CHECKSUM_BYTES, FILL_DOCUMENTS
from service.store.values import DEFAULT_COLLECTION, Document


def checksums_sql(collection: str, id: str, title: str, text: str, metadata: str) -> str:
    """Returns SQL that computes the column `checksums`. The arguments are SQL of a document's parts."""
    parts = (f"{collection} || '/' || {id}", title, text, f"({metadata})::text")
    sums = (f"left(md5(convert_to({part}, 'UTF8')), {2 * CHECKSUM_BYTES})" for part in parts)
    return f"decode({' || '.join(sums)}, 'hex')"


# `sent` is the metadata as text, as it was received, for answers. Filters read `metadata` (jsonb).
_STORED = checksums_sql("collection", "id", "title", "text", "coalesce(sent, metadata::text)")


def fill_checksums(connection: Connection) -> int:
    """Computes the checksums of some documents that have none.

    Returns the number of documents of this call. 0 if none is left.
    """
    return connection.execute(
        f"UPDATE documents SET checksums = {_STORED} WHERE revision IN (SELECT revision FROM documents "
        "WHERE checksums IS NULL ORDER BY revision LIMIT ? FOR UPDATE SKIP LOCKED)",
        (FILL_DOCUMENTS,),
    ).rowcount


def damaged_documents(connection: Connection) -> list[str]:
    """Returns the ids of damaged documents, in the same form as `sqlite.documents.damaged_documents`."""
    rows = connection.execute(
        f"SELECT collection || '/' || id FROM documents WHERE CASE WHEN checksums <> {_STORED} THEN TRUE "
        "ELSE coalesce(sent::jsonb <> metadata, FALSE) END ORDER BY collection, id"
    )
    return [name.removeprefix(f"{DEFAULT_COLLECTION}/") for (name,) in rows]


def counts(connection: Connection) -> list[tuple[str, int]]:
    """Returns the collections by name, each with its number of documents."""
    rows = connection.execute(
        "SELECT name, coalesce(sum(documents), 0)::bigint FROM collections "
        "LEFT JOIN tally ON collection = name GROUP BY name ORDER BY name"
    )
    return [(name, count) for name, count in rows]


def count_all(connection: Connection) -> int:
    return int(fetch_value(connection, "SELECT coalesce(sum(documents), 0)::bigint FROM tally"))


def count(
    connection: Connection, where: Predicate | None = None, collection: str = DEFAULT_COLLECTION
) -> int:
    if where is None:
        sql = "SELECT coalesce(sum(documents), 0)::bigint FROM tally WHERE collection = ?"
        return int(fetch_value(connection, sql, collection))
    sql, parameters = scoped(where, collection)
    return int(fetch_value(connection, f"SELECT count(*) FROM documents WHERE {sql}", *parameters))


def matching_revisions(
    connection: Connection, where: Predicate | None, collection: str
) -> tuple[list[int], int]:
    """Returns the matching revisions in ascending order, and the operation number of this state."""
    sql, parameters = scoped(where, collection)
    sql = f"SELECT revision FROM documents WHERE {sql} ORDER BY revision"
    return fetch_column(connection, sql, *parameters), sequence(connection)


def unchanged(
    connection: Connection, documents: Sequence[Document], collection: str = DEFAULT_COLLECTION
) -> set[int]:
    """Returns the positions of documents whose title and text are stored under their ids."""
    rows = connection.execute(
        "SELECT at FROM unnest(?::text[], ?::text[], ?::text[]) WITH ORDINALITY "
        "AS given (id, title, text, at) JOIN documents d ON d.collection = ? AND d.id = given.id "
        "AND d.title = given.title AND d.text = given.text",
        (
            [document.id for document in documents],
            [document.title for document in documents],
            [document.text for document in documents],
            collection,
        ),
    )
    return {at - 1 for (at,) in rows}


def sequence(connection: Connection) -> int:
    """Returns the number of the latest operation, or 0 before the first one.

    An operation that is not committed yet may be included.
    """
    sql = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM operations"
    return int(fetch_value(connection, sql))

"""Queries of documents and collections in PostgreSQL."""

from collections.abc import Sequence

from service.store.filters.predicate import Predicate, scoped
from service.store.postgres.connection import Connection
from service.store.values import DEFAULT_COLLECTION, Document


def counts(connection: Connection) -> list[tuple[str, int]]:
    """Every collection and how many documents it has, by name."""
    rows = connection.execute(
        "SELECT name, coalesce(sum(documents), 0)::bigint FROM collections "
        "LEFT JOIN tally ON collection = name GROUP BY name ORDER BY name"
    )
    return [(name, count) for name, count in rows]


def count_all(connection: Connection) -> int:
    """Documents of every collection."""
    return _number(connection, "SELECT coalesce(sum(documents), 0)::bigint FROM tally")


def count(
    connection: Connection, where: Predicate | None = None, collection: str = DEFAULT_COLLECTION
) -> int:
    if where is None:
        sql = "SELECT coalesce(sum(documents), 0)::bigint FROM tally WHERE collection = ?"
        return _number(connection, sql, collection)
    sql, parameters = scoped(where, collection)
    return _number(connection, f"SELECT count(*) FROM documents WHERE {sql}", *parameters)


def matching_revisions(
    connection: Connection, where: Predicate | None, collection: str
) -> tuple[list[int], int]:
    """The revisions that pass a filter, rising, and the operation number of the same moment."""
    sql, parameters = scoped(where, collection)
    rows = connection.execute(f"SELECT revision FROM documents WHERE {sql} ORDER BY revision", parameters)
    return [revision for (revision,) in rows], sequence(connection)


def unchanged(
    connection: Connection, documents: Sequence[Document], collection: str = DEFAULT_COLLECTION
) -> set[int]:
    """The positions of those of `documents` whose title and text are stored under their ids."""
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
    """The number of the latest operation, 0 before the first; one that is not committed yet may count."""
    return _number(connection, "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM operations")


def _number(connection: Connection, sql: str, *parameters: object) -> int:
    row = connection.execute(sql, parameters).fetchone()
    return 0 if row is None else int(row[0])

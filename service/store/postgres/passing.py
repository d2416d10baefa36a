"""Documents that pass a filter, for a search: their revisions where they are few, else the condition."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from service.store.filters.predicate import Predicate
from service.store.postgres.connection import Connection

FEW = 10_000  # documents whose vectors are all compared; of more an index finds the nearest


@dataclass(frozen=True)
class Passing:
    """What passes a filter in a collection."""

    where: Predicate
    collection: str
    revisions: list[int] | None  # None: there are more than FEW

    def condition(self, column: str) -> tuple[str, list[Any]]:
        """SQL on a column of revisions, and what fills its question marks."""
        if self.revisions is not None:
            return f"{column} = ANY(?)", [self.revisions]
        sql = f"EXISTS (SELECT 1 FROM documents d WHERE d.revision = {column} AND ({self.where.sql}))"
        return sql, [*self.where.parameters]

    def among(self, connection: Connection, revisions: Sequence[int]) -> list[int]:
        """Those of some revisions that pass."""
        rows = connection.execute(
            f"SELECT revision FROM documents WHERE revision = ANY(?) AND ({self.where.sql})",
            ([*revisions], *self.where.parameters),
        )
        return [revision for (revision,) in rows]


def passing(connection: Connection, where: Predicate, collection: str) -> Passing:
    rows = connection.execute(
        f"SELECT revision FROM documents WHERE collection = ? AND ({where.sql}) LIMIT ?",
        (collection, *where.parameters, FEW + 1),
    ).fetchall()
    few = [row[0] for row in rows] if len(rows) <= FEW else None
    return Passing(where, collection, few)

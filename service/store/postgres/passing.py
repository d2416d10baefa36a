"""Documents that pass a filter, for a search: their revisions where they are few, else the condition."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from service.store.filters.predicate import Predicate
from service.store.ids import Revisions
from service.store.postgres.connection import Connection

FEW = 10_000  # documents whose vectors are all compared; of more an index finds the nearest
# A filter that more pass is not looked up again for so long: to find that out costs more than the search.
WIDE_SECONDS = 30.0
WIDE_FILTERS = 1000  # that a connection remembers


@dataclass(frozen=True)
class Passing:
    """What passes a filter in a collection."""

    where: Predicate
    collection: str
    revisions: Revisions | None  # None: there are more than FEW

    def condition(self, column: str) -> tuple[str, list[Any]]:
        """SQL on a column of revisions, and what fills its question marks."""
        if self.revisions is not None:
            return f"{column} IN (SELECT unnest(?::bigint[]))", [self.revisions]
        sql = f"EXISTS (SELECT 1 FROM documents d WHERE d.revision = {column} AND ({self.where.sql}))"
        return sql, [*self.where.parameters]

    def among(self, connection: Connection, revisions: Revisions) -> Revisions:
        """Those of some revisions that pass."""
        sql = f"documents WHERE revision IN (SELECT unnest(?::bigint[])) AND ({self.where.sql})"
        return revisions_in(connection, sql, (revisions, *self.where.parameters))


def passing(connection: Connection, where: Predicate, collection: str) -> Passing:
    """Where a filter was wide a moment ago, it is taken to be: a search by the index finds few as well."""
    wide, name = connection.raw.wide, hash((collection, where.sql, repr(where.parameters)))
    if time.monotonic() < wide.get(name, 0.0):
        return Passing(where, collection, None)
    sql = f"documents WHERE collection = ? AND ({where.sql}) LIMIT ?"
    found = revisions_in(connection, sql, (collection, *where.parameters, FEW + 1))
    if len(found) <= FEW:
        return Passing(where, collection, found)
    if len(wide) >= WIDE_FILTERS:
        wide.clear()
    wide[name] = time.monotonic() + WIDE_SECONDS
    return Passing(where, collection, None)


def revisions_in(connection: Connection, source: str, parameters: Sequence[Any]) -> Revisions:
    """The revisions of a query's rows, as one value: a row for each would take ten times as long."""
    row = connection.execute(
        f"SELECT string_agg(int8send(revision), NULL) FROM (SELECT revision FROM {source}) AS found",
        parameters,
    ).fetchone()
    sent = b"" if row is None or row[0] is None else row[0]
    return np.frombuffer(sent, ">i8").astype(np.int64)

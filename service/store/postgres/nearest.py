"""The nearest vectors in the database: by comparing all that pass, or by the index.

Whichever way finds them, a score is computed from the whole vector; only the index looks at 16 bits a number.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.store.filters.predicate import Predicate
from service.store.postgres.connection import Connection
from service.store.postgres.vectors import HALF_DIMENSIONS, table
from service.store.values import Revisions, RowNames, row_of

FEW = 10_000  # documents whose vectors are all compared; of more an index finds the nearest
# A filter that more pass is not looked up again for so long: to find that out costs more than the search.
WIDE_SECONDS = 30.0
WIDE_FILTERS = 1000  # that a connection remembers


@dataclass(frozen=True)
class FilterMatches:
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


def matching(connection: Connection, where: Predicate, collection: str) -> FilterMatches:
    """Where a filter was wide a moment ago, it is taken to be: a search by the index finds few as well."""
    wide, name = connection.raw.wide, hash((collection, where.sql, repr(where.parameters)))
    if time.monotonic() < wide.get(name, 0.0):
        return FilterMatches(where, collection, None)
    sql = f"documents WHERE collection = ? AND ({where.sql}) LIMIT ?"
    found = revisions_in(connection, sql, (collection, *where.parameters, FEW + 1))
    if len(found) <= FEW:
        return FilterMatches(where, collection, found)
    if len(wide) >= WIDE_FILTERS:
        wide.clear()
    wide[name] = time.monotonic() + WIDE_SECONDS
    return FilterMatches(where, collection, None)


def revisions_in(connection: Connection, source: str, parameters: Sequence[Any]) -> Revisions:
    """The revisions of a query's rows, as one value: a row for each would take ten times as long."""
    row = connection.execute(
        f"SELECT string_agg(int8send(revision), NULL) FROM (SELECT revision FROM {source}) AS found",
        parameters,
    ).fetchone()
    sent = b"" if row is None or row[0] is None else row[0]
    return np.frombuffer(sent, ">i8").astype(np.int64)


SPARE = 16  # candidates more than are asked for
MOST_CANDIDATES = 1 << 17
SEARCHED = 100, 1000  # the least and the most of hnsw.ef_search; connection.py sets the least
# Rows that are compared in the time in which the index tries one against a filter.
RATIO = 5

Nearest = tuple[NDArray[np.float32], RowNames]
_Row = tuple[int, int, float]  # revision, passage, score


def nearest(
    connection: Connection,
    generation: int,
    vectors: NDArray[np.float32],
    depth: int,
    allowed: FilterMatches | None,
    collection: str,
    *,
    heads_only: bool,
) -> list[Nearest]:
    """For each vector the `depth` nearest documents: their scores, best first, and their nearest rows.

    Where few documents pass, all of them are compared, and those that tie with the last come along.
    """
    where, bound = ("TRUE", []) if allowed is None else allowed.condition("v.revision")
    where += " AND passage = 0" if heads_only else ""
    search = _Search(connection, generation, depth, where, [collection, *bound])
    few = allowed is not None and allowed.revisions is not None
    if allowed is None:
        documents, all_rows = connection.execute(
            "SELECT (SELECT coalesce(sum(documents), 0) FROM tally WHERE collection = ?)::bigint, "
            "(SELECT coalesce(sum(rows), 0) FROM sizes WHERE generation = ?)::bigint",
            (collection, generation),
        ).fetchone() or (0, 0)
        # The index passes by the rows of other collections, one after another.
        few = documents <= FEW or documents < sqrt(RATIO * search.candidates * all_rows) < all_rows
    if few or vectors.shape[1] > HALF_DIMENSIONS:
        return [search.exact(vector) for vector in vectors]
    return [search.by_index(vector) for vector in vectors]


class _Search:
    """A search of one generation's rows that are in a collection and pass `where`."""

    def __init__(
        self, connection: Connection, generation: int, depth: int, where: str, bound: Sequence[Any]
    ) -> None:
        self._connection = connection
        self._depth = depth
        self._bound = bound
        self._of = f"{table(generation)} v WHERE collection = ? AND {where}"

    @property
    def candidates(self) -> int:
        return 2 * self._depth + SPARE

    def exact(self, vector: NDArray[np.float32]) -> Nearest:
        count = self.candidates
        while True:
            rows = self._connection.execute(
                "SELECT revision, passage, (-(vector <#> ?::vector))::float4 AS score "
                f"FROM {self._of} ORDER BY score DESC FETCH FIRST ? ROWS WITH TIES",
                (vector, *self._bound, count),
            ).fetchall()
            best = _best(rows)
            if len(best) >= self._depth or len(rows) < count:
                last = best[self._depth - 1][0] if len(best) >= self._depth else -np.inf
                return _arrays([each for each in best if each[0] >= last])
            count *= 4

    def by_index(self, vector: NDArray[np.float32]) -> Nearest:
        """As `exact`, when the index ends before it has found enough that pass."""
        least, most = SEARCHED
        count, dimension = self.candidates, len(vector)
        while True:
            if count > least:
                self._connection.execute(f"SET LOCAL hnsw.ef_search = {min(count, most):d}")
            rows = self._connection.execute(
                f"WITH near AS MATERIALIZED (SELECT revision, passage, vector FROM {self._of} "
                f"ORDER BY vector::halfvec({dimension}) <#> ?::vector::halfvec({dimension}) LIMIT ?) "
                "SELECT revision, passage, (-(vector <#> ?::vector))::float4 AS score FROM near",
                (*self._bound, vector, count, vector),
            ).fetchall()
            best = _best(rows)
            if len(best) >= self._depth:
                return _arrays(best[: self._depth])
            if len(rows) < count or count >= MOST_CANDIDATES:
                return self.exact(vector)
            count *= 2


def _best(rows: Sequence[_Row]) -> list[tuple[float, int]]:
    """Each document with its best row: score and name, best first, equal scores by name."""
    best: dict[int, tuple[float, int]] = {}
    for revision, passage, score in rows:
        row = (-score, row_of(revision, passage))
        best[revision] = min(best.get(revision, row), row)
    return [(-score, name) for score, name in sorted(best.values())]


def _arrays(found: Sequence[tuple[float, int]]) -> Nearest:
    return np.array([score for score, _ in found], np.float32), np.array(
        [name for _, name in found], np.int64
    )

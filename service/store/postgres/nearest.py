"""The nearest vectors in the database: by comparing all that pass, or by the index.

Whichever way finds them, a score is computed from the whole vector; only the index looks at 16 bits a number.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.store.ids import RowNames, row_of
from service.store.postgres.connection import Connection
from service.store.postgres.passing import FEW, Passing
from service.store.postgres.vectors import HALF_DIMENSIONS, table

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
    allowed: Passing | None,
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

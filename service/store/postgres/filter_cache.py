"""Caches the documents that match filters while no document changes. Start at `FilterCache.of`.

Each write of documents adds a row to `sizes`, or to the `tally` of their collection (writes.py). So the
transactions that added the rows of these small tables identify the state of the documents.
"""

from typing import NamedTuple

from service.store.filters.grammar import Predicate
from service.store.postgres.connection import Connection
from service.store.postgres.vectors import list_matching
from service.store.sql.bounded_cache import BoundedCache
from service.store.sql.connection import fetch_value
from service.store.values import Revisions

MAX_BYTES = 64 * 2**20  # Eight lists of a million documents.
MAX_FILTERS = 1000


class _Result(NamedTuple):
    """The documents that matched a filter in a state of the documents."""

    state: str
    revisions: Revisions
    key_bytes: int  # Of the filter's parameters.

    @property
    def nbytes(self) -> int:
        return max(self.revisions.nbytes + self.key_bytes, MAX_BYTES // MAX_FILTERS)


class FilterCache:
    """The latest result of each filter. All reading threads share it, each with its own connection."""

    def __init__(self) -> None:
        self._results = BoundedCache[_Result](MAX_BYTES)

    def of(self, connection: Connection, where: Predicate | None, collection: str) -> Revisions:
        """Returns the documents that match a filter, as `protocol.Snapshot.list_matching` says."""
        key = collection, "" if where is None else where.sql, "" if where is None else repr(where.parameters)
        state = _read_state(connection, collection)
        if (known := self._results.get(key)) is not None and known.state == state:
            return known.revisions
        found = list_matching(connection, where, collection)
        found.flags.writeable = False
        self._results.keep(key, _Result(state, found, len(key[2])))
        return found


def _read_state(connection: Connection, collection: str) -> str:
    """Returns a text that differs between states with different documents of a collection."""
    sql = (
        "SELECT md5(concat_ws('/', (SELECT string_agg(xmin::text, ' ') FROM sizes), "
        "(SELECT string_agg(xmin::text, ' ') FROM tally WHERE collection = ?)))"
    )
    return str(fetch_value(connection, sql, collection))

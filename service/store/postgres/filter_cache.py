"""Caches the documents that match filters while no document changes. Start at `FilterCache.of`.

Each write of documents adds a row to `sizes`, or to the `tally` of their collection (writes.py). So the
transactions that added the rows of these small tables identify the state of the documents.
"""

import threading
from collections import OrderedDict

from service.store.filters.grammar import Predicate
from service.store.postgres.connection import Connection
from service.store.postgres.vectors import list_matching
from service.store.sql.connection import fetch_value
from service.store.values import Revisions

MAX_BYTES = 64 * 2**20  # Eight lists of a million documents.
MAX_FILTERS = 1000

_Key = tuple[str, str, str]


class FilterCache:
    """The latest result of each filter. All reading threads share it, each with its own connection."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: OrderedDict[_Key, tuple[str, Revisions]] = OrderedDict()  # By last use.

    def of(self, connection: Connection, where: Predicate | None, collection: str) -> Revisions:
        """Returns the documents that match a filter, as `protocol.Snapshot.list_matching` says."""
        key = collection, "" if where is None else where.sql, "" if where is None else repr(where.parameters)
        state = _read_state(connection, collection)
        with self._lock:
            if (known := self._results.get(key)) is not None and known[0] == state:
                self._results.move_to_end(key)
                return known[1]
        found = list_matching(connection, where, collection)
        found.flags.writeable = False
        with self._lock:
            self._results.pop(key, None)
            self._results[key] = state, found
            while len(self._results) > MAX_FILTERS or self._count_bytes() > MAX_BYTES:
                self._results.popitem(last=False)
        return found

    def _count_bytes(self) -> int:
        return sum(revisions.nbytes + len(key[2]) for key, (_, revisions) in self._results.items())


def _read_state(connection: Connection, collection: str) -> str:
    """Returns a text that differs between states with different documents of a collection."""
    sql = (
        "SELECT md5(concat_ws('/', (SELECT string_agg(xmin::text, ' ') FROM sizes), "
        "(SELECT string_agg(xmin::text, ' ') FROM tally WHERE collection = ?)))"
    )
    return str(fetch_value(connection, sql, collection))

"""Documents that pass a filter at a moment: of some revisions at once, or all, when they are asked for."""

import sqlite3
from functools import cached_property

from service.store.filters.predicate import Predicate
from service.store.ids import Revisions
from service.store.sqlite.filter_cache import FilterCache
from service.store.sqlite.filter_plan import is_narrow, of_these


class Passing:
    """The documents that a search may find. The connection has begun the transaction of the moment."""

    def __init__(
        self, connection: sqlite3.Connection, filters: FilterCache, where: Predicate, collection: str
    ) -> None:
        self._connection = connection
        self._filters = filters
        self._where = where
        self._collection = collection

    def is_narrow(self, most: int) -> bool:
        """True when lookups show that at most `most` pass: all are found sooner than some are tried."""
        return is_narrow(self._connection, self._where, self._collection, most)

    @cached_property
    def all(self) -> Revisions:
        """All revisions that pass, rising; not to be changed.

        Raises:
            Abandoned: its caller has left.

        """
        return self._filters.of(self._connection, self._where, self._collection)

    def among(self, revisions: Revisions) -> Revisions:
        """The ones of a few revisions that pass, rising."""
        return of_these(self._connection, self._where, self._collection, revisions)

"""Caches the results of filters between searches, because applications send the same filters again and again.

    a filter ─▶ the revisions that matched earlier ─▶ updated by the operation log ─▶ the revisions that match
        └─────▶ no cached result, or too old ─▶ a new search; its result is cached if it took long

Start reading at `FilterCache.of`. The text and the metadata of a revision never change. So a cached result is
updated by removing deleted revisions and adding new revisions that match. The operation log lists both.
Searches read different states of the store, so the results of the two latest states of each filter are
cached.
"""

import sqlite3
import time
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from service.store.filters.grammar import Predicate
from service.store.sqlite.documents import INLINE_REVISIONS, sequence
from service.store.sqlite.filters import Lookups, matching
from service.store.sqlite.state_cache import STEP, StateCache
from service.store.values import Revisions

ALL = Predicate("TRUE", [], kind="and")
MAX_BYTES = 64 * 2**20  # Sixteen filters that half of a million documents match.
STATE_BYTES = 1024  # Bytes of a state in addition to its revisions, at most.
SLOW_SECONDS = 0.005  # Results of faster searches are not cached.


class _State(NamedTuple):
    """The revisions that matched a filter after the operation `sequence`. Immutable."""

    sequence: int
    revisions: Revisions

    @property
    def nbytes(self) -> int:
        return self.revisions.nbytes + STATE_BYTES


class FilterCache:
    """Caches the results of filters. All reading threads share it, each with its own connection."""

    def __init__(self) -> None:
        self.states = StateCache[_State](MAX_BYTES)

    def of(self, connection: sqlite3.Connection, where: Predicate, collection: str) -> Revisions:
        """Returns the revisions that match a filter in the caller's transaction, in ascending order.

        Do not change the array.
        """
        now, key = sequence(connection), _key(where, collection)
        state = self.states.find(key, now)
        found = None if state is None else _brought(connection, where, collection, state, now)
        if state is None or found is None:
            started = time.perf_counter()
            found = matching(connection, where, collection)
            is_kept = time.perf_counter() - started >= SLOW_SECONDS
        else:
            is_kept = now - state.sequence >= STEP
        if is_kept:
            found.flags.writeable = False
            self.states.keep(key, _State(now, found))
        return found


def _key(where: Predicate, collection: str) -> bytes:
    return blake2b(repr((collection, where.sql, where.parameters)).encode(), digest_size=32).digest()


def _brought(
    connection: sqlite3.Connection, where: Predicate, collection: str, state: _State, now: int
) -> Revisions | None:
    """Updates a cached result. Returns the revisions that match after the operation `now`.

    Returns None if the operation log does not go back to the cached result.
    """
    before, behind = state.revisions, now - state.sequence
    if not behind:
        return before
    rows = connection.execute(
        "SELECT revision FROM operations WHERE sequence > ? AND sequence <= ?", (state.sequence, now)
    ).fetchall()
    if len(rows) < behind:
        return None
    touched = np.unique(np.array(rows, np.int64))
    first, last = np.searchsorted(before, touched), np.searchsorted(before, touched, side="right")
    gone = first[first < last]
    # New revisions are larger than all before.
    came = Lookups(connection, collection).scan(where, touched)
    if not len(gone) and not len(came):
        return before
    return np.concatenate([np.delete(before, gone), came])


@dataclass(eq=False)
class FilterMatches:
    """The documents that match a filter, in the state of the connection's transaction."""

    _connection: sqlite3.Connection
    _filters: FilterCache
    _where: Predicate
    _collection: str

    def is_narrow(self, most: int) -> bool:
        """Returns whether lookups show that at most `most` documents match."""
        return Lookups(self._connection, self._collection).bound(self._where, most) <= most

    @cached_property
    def all(self) -> Revisions:
        """All matching revisions in ascending order. Do not change the array."""
        return self._filters.of(self._connection, self._where, self._collection)

    def among(self, revisions: Revisions) -> Revisions:
        """Returns the given revisions that match, in ascending order. Meant for few revisions."""
        return Lookups(self._connection, self._collection).scan(self._where, revisions)


@dataclass(eq=False)
class Listed:
    """Documents in a list of revisions, with the interface of `FilterMatches`."""

    all: Revisions  # Ascending.

    def is_narrow(self, most: int) -> bool:
        return len(self.all) <= most

    def among(self, revisions: Revisions) -> Revisions:
        return np.intersect1d(revisions, self.all)


def restricted(
    connection: sqlite3.Connection,
    allowed: FilterMatches | None,
    required: Revisions | None,
    excluded: Revisions,
    collection: str,
) -> Listed:
    """Returns documents as an argument for searches, as `protocol.Snapshot.restricted` says."""
    if required is None:
        found = Lookups(connection, collection).matching(ALL, None) if allowed is None else allowed.all
    elif allowed is None:
        found = required
    elif len(required) <= INLINE_REVISIONS:
        found = allowed.among(required)
    else:
        found = np.intersect1d(required, allowed.all, assume_unique=True)
    return Listed(np.setdiff1d(found, excluded, assume_unique=True))

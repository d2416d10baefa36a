"""Results of filters, kept between searches, because applications send the same wide filters again and again.

    a filter ─▶ the revisions that matched at a moment ─▶ updated by the operation log ─▶ this moment
        └─────▶ none are kept, or they are too old ─▶ a new search; its result is kept if it took long

Start reading at `FilterCache.of`. The text and the metadata of a revision never change. So matches of a later
moment are the earlier ones, without deleted revisions and with new ones that match. The operation log names
both. Searches read at different moments, so the two latest states of each filter are kept.
"""

import sqlite3
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from service.store.filters.grammar import Predicate
from service.store.scheduling import pause, resting
from service.store.sqlite.documents import sequence
from service.store.sqlite.filters import is_narrow, matching, of_these
from service.store.values import Revisions

MAX_BYTES = 64 * 2**20  # Sixteen filters that half of a million documents match.
STATE_BYTES = 1024  # Bytes of a state in addition to its revisions, at most.
SLOW_SECONDS = 0.005  # Quicker results are not kept.
FAR = 4096  # Operations that a state is updated over, in 4 ms.
STEP = 64  # Operations after which an updated state is kept.
STATES = 2
LOOK_SECONDS = 0.05  # How often a waiting read checks whether it was abandoned.


class _State(NamedTuple):
    """Revisions that matched after an operation. Immutable."""

    sequence: int
    revisions: Revisions

    @property
    def nbytes(self) -> int:
        return self.revisions.nbytes + STATE_BYTES


class _Search:
    """A running search at a moment. `done` is set when it ends, also by an exception."""

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.done = threading.Event()


class FilterCache:
    """The results of filters. All reading threads use it, each with a connection of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: OrderedDict[bytes, tuple[_State, ...]] = OrderedDict()  # By last use.
        self._searches: dict[bytes, _Search] = {}
        self._nbytes = 0

    def of(self, connection: sqlite3.Connection, where: Predicate, collection: str) -> Revisions:
        """Returns the rising revisions that match a filter, at the moment of the caller's transaction.

        Equal searches at the same time run once. Do not change the array.

        Raises:
            Abandoned: The read was abandoned.
        """
        now, key = sequence(connection), _key(where, collection)
        state, other = self._find(key, now)
        if other is not None:
            with resting():
                while not other.done.wait(LOOK_SECONDS):
                    pause()
            state, _ = self._find(key, now)
        brought = None if state is None else _brought(connection, where, collection, state, now)
        if state is None or brought is None:
            return self._searched(connection, where, collection, key, now)
        if now - state.sequence >= STEP:
            self._keep(key, _State(now, brought))
        return brought

    def _find(self, key: bytes, now: int) -> tuple[_State | None, _Search | None]:
        """Returns the latest usable state, or else a running search whose result will be usable."""
        with self._lock:
            for state in self._states.get(key, ()):
                if now - FAR <= state.sequence <= now:
                    self._states.move_to_end(key)
                    return state, None
            search = self._searches.get(key)
            return None, search if search is not None and search.sequence <= now else None

    def _searched(
        self, connection: sqlite3.Connection, where: Predicate, collection: str, key: bytes, now: int
    ) -> Revisions:
        mine = _Search(now)
        with self._lock:
            self._searches[key] = mine
        try:
            started = time.perf_counter()
            found = matching(connection, where, collection)
            if time.perf_counter() - started >= SLOW_SECONDS:
                self._keep(key, _State(now, found))
            return found
        finally:
            with self._lock:
                if self._searches.get(key) is mine:
                    del self._searches[key]
            mine.done.set()

    def _keep(self, key: bytes, state: _State) -> None:
        state.revisions.flags.writeable = False
        with self._lock:
            before = self._states.pop(key, ())
            states = sorted({state.sequence: state for state in (*before, state)}.values(), reverse=True)
            self._states[key] = tuple(states[:STATES])
            self._nbytes += _size(self._states[key]) - _size(before)
            while self._nbytes > MAX_BYTES:
                self._nbytes -= _size(self._states.popitem(last=False)[1])


def _size(states: tuple[_State, ...]) -> int:
    return sum(state.nbytes for state in states)


def _key(where: Predicate, collection: str) -> bytes:
    return blake2b(repr((collection, where.sql, where.parameters)).encode(), digest_size=32).digest()


def _brought(
    connection: sqlite3.Connection, where: Predicate, collection: str, state: _State, now: int
) -> Revisions | None:
    """Returns the revisions that match at `now`, or None if the operation log does not reach back to the
    state.
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
    came = of_these(connection, where, collection, touched)  # New revisions are larger than all before.
    if not len(gone) and not len(came):
        return before
    return np.concatenate([np.delete(before, gone), came])


@dataclass(eq=False)
class FilterMatches:
    """The documents that match a filter, at the moment of the connection's transaction."""

    _connection: sqlite3.Connection
    _filters: FilterCache
    _where: Predicate
    _collection: str

    def is_narrow(self, most: int) -> bool:
        """Returns whether lookups show that at most `most` documents match."""
        return is_narrow(self._connection, self._where, self._collection, most)

    @cached_property
    def all(self) -> Revisions:
        """All matching revisions, rising. Do not change the array. Raises Abandoned."""
        return self._filters.of(self._connection, self._where, self._collection)

    def among(self, revisions: Revisions) -> Revisions:
        """Returns the matching ones of a few revisions, rising."""
        return of_these(self._connection, self._where, self._collection, revisions)

"""Results of filters, kept between searches: an application sends the same wide filters again and again.

    a filter ─▶ the revisions that passed at a moment ─▶ brought forward by the operation log ─▶ this moment
        └─────▶ none are kept, or they are too far behind ─▶ looked for anew; kept when that took long

The text and the metadata of a revision never change. So between two moments what passes loses the revisions
that were deleted and gains those that were put and pass, and the operation log names both: what is kept is
never stale, and a write does not make it worthless. Searches read at moments of their own, some a little
older than others, so of each filter the two latest states are kept.

Of a filter itself only a hash is kept. filter_plan.py finds the revisions.
"""

import sqlite3
import threading
import time
from collections import OrderedDict
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from service.store.filters.predicate import Predicate
from service.store.sqlite.documents import sequence
from service.store.sqlite.filter_plan import is_narrow, matching, of_these
from service.store.turns import pause, resting
from service.store.values import Revisions

MOST_BYTES = 64 * 2**20  # sixteen filters that pass half of a million documents, a twentieth of their index
STATE_BYTES = 1024  # of a state beside its revisions, at most
SLOW_SECONDS = 0.005  # what is found sooner is not kept: it is narrow, and soon found again
FAR = 4096  # operations: to bring a state forward over so many takes 4 ms
STEP = 64  # operations: a state that was brought forward so far takes the place of the older one
STATES = 2
LOOK_SECONDS = 0.05  # between two looks at whether anybody still waits


class _State(NamedTuple):
    """Revisions that passed at the moment of an operation's number. Immutable."""

    sequence: int
    revisions: Revisions

    @property
    def nbytes(self) -> int:
        return self.revisions.nbytes + STATE_BYTES


class _Search:
    """A search that is under way, at a moment; `done` is set when it ended, however it did."""

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.done = threading.Event()


class FilterCache:
    """Used by all reading threads, each with a connection of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: OrderedDict[bytes, tuple[_State, ...]] = OrderedDict()  # the latest used is last
        self._searches: dict[bytes, _Search] = {}
        self._nbytes = 0

    def of(self, connection: sqlite3.Connection, where: Predicate, collection: str) -> Revisions:
        """The revisions of a collection's documents that pass a filter, rising; not to be changed.

        At the moment of the transaction that the caller has begun. Equal searches that come together are
        made once.

        Raises:
            Abandoned: its caller has left.

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
        """The latest state that is of use at `now`; else a search that will give one."""
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
            while self._nbytes > MOST_BYTES:
                self._nbytes -= _size(self._states.popitem(last=False)[1])


def _size(states: tuple[_State, ...]) -> int:
    return sum(state.nbytes for state in states)


def _key(where: Predicate, collection: str) -> bytes:
    return blake2b(repr((collection, where.sql, where.parameters)).encode(), digest_size=32).digest()


def _brought(
    connection: sqlite3.Connection, where: Predicate, collection: str, state: _State, now: int
) -> Revisions | None:
    """Revisions that pass at `now`; None when the operation log does not reach back to the state's moment."""
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
    came = of_these(connection, where, collection, touched)  # all larger: a revision is put once
    if not len(gone) and not len(came):
        return before
    return np.concatenate([np.delete(before, gone), came])


class FilterMatches:
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

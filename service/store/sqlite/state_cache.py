"""Caches what was read from the store, with the operation after which it was true. Start at `StateCache`."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

FAR = 4096  # A state is updated over at most this many operations, which takes 4 ms.
STEP = 64  # Operations after which an updated state is cached.
STATES = 2


class State(Protocol):
    """What was true after the operation `sequence`, with its size in bytes. Immutable."""

    @property
    def sequence(self) -> int: ...
    @property
    def nbytes(self) -> int: ...


S = TypeVar("S", bound=State)


class StateCache(Generic[S]):
    """Keeps the two latest states of each name, because searches read different states of the store.

    All reading threads share it. It forgets the names that were used least recently.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._states: OrderedDict[Hashable, tuple[S, ...]] = OrderedDict()  # By last use.
        self._nbytes = 0

    def find(self, name: Hashable, now: int) -> S | None:
        """Returns the latest state that can be updated to the operation `now`, or None."""
        with self._lock:
            for state in self._states.get(name, ()):
                if now - FAR <= state.sequence <= now:
                    self._states.move_to_end(name)
                    return state
        return None

    def keep(self, name: Hashable, state: S) -> None:
        with self._lock:
            before = self._states.pop(name, ())
            states = sorted(
                {each.sequence: each for each in (*before, state)}.values(),
                key=lambda each: each.sequence,
                reverse=True,
            )
            self._states[name] = tuple(states[:STATES])
            self._nbytes += _size(self._states[name]) - _size(before)
            while self._nbytes > self._max_bytes:
                self._nbytes -= _size(self._states.popitem(last=False)[1])


def _size(states: tuple[State, ...]) -> int:
    return sum(state.nbytes for state in states)

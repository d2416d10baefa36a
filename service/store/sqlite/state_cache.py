"""Caches what was read from the store, with the operation after which it was true. Start at `StateCache`."""

from collections.abc import Hashable
from typing import Generic, NamedTuple, Protocol, TypeVar

from service.store.sql.bounded_cache import BoundedCache

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


class _States(NamedTuple, Generic[S]):
    states: tuple[S, ...]  # Latest first.

    @property
    def nbytes(self) -> int:
        return sum(state.nbytes for state in self.states)


class StateCache(Generic[S]):
    """Keeps the two latest states of each name, because searches read different states of the store.

    If both are too large together, keeps the latest. All reading threads share it.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.kept = BoundedCache[_States[S]](max_bytes)

    def find(self, name: Hashable, now: int) -> S | None:
        """Returns the latest state that can be updated to the operation `now`, or None."""
        kept = self.kept.get(name)
        usable = (state for state in kept.states if now - FAR <= state.sequence <= now) if kept else ()
        return next(iter(usable), None)

    def keep(self, name: Hashable, state: S) -> None:
        kept = self.kept.get(name)
        every = {each.sequence: each for each in (*(kept.states if kept else ()), state)}
        states = _States(tuple(every[at] for at in sorted(every, reverse=True)[:STATES]))
        self.kept.keep(name, states if states.nbytes <= self._max_bytes else _States(states.states[:1]))

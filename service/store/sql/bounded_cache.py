"""Keeps values in memory up to a number of bytes."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """A value that nothing changes, with its size in bytes."""

    @property
    def nbytes(self) -> int: ...


V = TypeVar("V", bound=Sized)


class BoundedCache(Generic[V]):
    """Forgets the values that were used least recently. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, V] = OrderedDict()  # By last use.
        self.nbytes = 0

    def get(self, name: Hashable) -> V | None:
        with self._lock:
            if (value := self._values.get(name)) is not None:
                self._values.move_to_end(name)
            return value

    def keep(self, name: Hashable, value: V) -> None:
        """Keeps a value instead of an earlier one of this name, unless it alone has too many bytes."""
        with self._lock:
            if (before := self._values.pop(name, None)) is not None:
                self.nbytes -= before.nbytes
            if value.nbytes > self._max_bytes:
                return
            self._values[name] = value
            self.nbytes += value.nbytes
            while self.nbytes > self._max_bytes:
                self.nbytes -= self._values.popitem(last=False)[1].nbytes

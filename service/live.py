"""The generation in service, and who is using it.

A generation is one model version together with the index that it made. A request borrows it once and uses
it for everything, so a query's vector and the vectors it is compared with always come from one model. Who
uses a generation does not own its life: the last borrower of a retired one closes it.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from models.encoder import Encoder
from models.manifest import Manifest
from service.index import Index


class Generation:
    """One model version and its index. `number` names its vectors in the document store."""

    def __init__(self, number: int, encoder: Encoder) -> None:
        self.number = number
        self.encoder = encoder
        self.index: Index = Index(encoder.dimension)
        self.whole = False  # the index holds every stored document
        self._borrowers = 0
        self._retired = False
        self._lock = threading.Lock()

    @property
    def manifest(self) -> Manifest:
        return self.encoder.manifest

    @property
    def version(self) -> str:
        return self.encoder.manifest.version

    def _enter(self) -> bool:
        with self._lock:
            if self._retired:
                return False
            self._borrowers += 1
            return True

    def _leave(self) -> None:
        with self._lock:
            self._borrowers -= 1
            last = self._retired and not self._borrowers
        if last:
            self.close()

    def retire(self) -> None:
        """No new borrower from now on; closes at once when nobody uses it."""
        with self._lock:
            self._retired = True
            idle = not self._borrowers
        if idle:
            self.close()

    def close(self) -> None:
        """Free the index and the session. For a generation that nobody uses, or a service that stops."""
        self.index.close()
        self.encoder.close()


class Live:
    """The one reference that a swap replaces."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    @property
    def generation(self) -> Generation:
        """The generation in service, for reading its name and numbers; to use it, borrow it."""
        return self._generation

    @contextmanager
    def borrow(self) -> Iterator[Generation]:
        """The generation in service, kept open until the block ends, also across a swap."""
        while not (generation := self._generation)._enter():  # noqa: SLF001  retired between the two: look again
            pass
        try:
            yield generation
        finally:
            generation._leave()  # noqa: SLF001

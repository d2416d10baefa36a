"""The generation in service, those that follow it, and who is using them.

    live ──▶ followers: the one being built, the one kept for a rollback     both follow every write
      ▲          │
      └─ swap ◀──┘   one assignment on the writer's thread

A generation is one model version together with the index that it made. A request borrows the live one once
and uses it for everything, so a query's vector and the vectors it is compared with always come from one
model. Who uses a generation does not own its life: the last borrower of a retired one closes it.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeAlias

import numpy as np

from models.encoder import Encoder
from service import memory
from service.errors import Conflict, Unhealthy
from service.index.gpu import GpuThread
from service.index.index_set import Indexes
from service.index.ivf_snapshots import Origin
from service.index.stored import Size, StoredIndexes
from service.store.values import Changes

FOLLOW_SECONDS, LOOK_SECONDS = 5.0, 0.005  # that a version which went live elsewhere takes to go live here


AnyIndexes: TypeAlias = Indexes | StoredIndexes
IndexesOf: TypeAlias = Callable[[int, Encoder], AnyIndexes]


def in_memory(snapshots: Path | None = None, owner: GpuThread | None = None) -> IndexesOf:
    """Indexes in this process.

    snapshots: the folder where what takes long to make of them is kept. owner: of the GPU where they are
    searched when they are large.
    """

    def made(number: int, encoder: Encoder) -> Indexes:
        origin = Origin(number, encoder.fingerprint, encoder.dimension)
        return Indexes(encoder.dimension, snapshots, origin, owner)

    return made


def in_store(size: Size) -> IndexesOf:
    """Vectors that are searched in the store. size: documents and rows of a generation."""
    return lambda number, encoder: StoredIndexes(number, encoder.dimension, size)


class Retired(Exception):
    """A generation that follows no longer."""


class Generation:
    """A model version and its index. `number` names its vectors in the document store."""

    def __init__(self, number: int, encoder: Encoder, made: IndexesOf) -> None:
        """made: makes its indexes."""
        self.number = number
        self.encoder = encoder
        self.manifest = encoder.manifest
        self.version = encoder.manifest.version
        self._made = made
        self.indexes = made(number, encoder)
        self.is_loaded = False  # the indexes hold every stored vector of it, and nothing else
        self.is_complete = False  # the indexes hold every stored document
        self.missing = 0  # stored documents that they do not hold, as far as known
        self.skipped = 0  # of these, the ones that the model fails on
        self.is_rollback_target = False  # it is the one that a rollback goes to
        self.complete_through = 0  # no living revision up to this one lacks a vector
        self.fault: str | None = None  # why nothing more is to be computed by it
        self.on_close: Callable[[Encoder], None] = lambda _: None  # told once the session is closed
        self._borrowers = 0
        self.retired = False  # it takes no borrower any more
        self._lock = threading.Lock()

    def another(self, number: int, encoder: Encoder) -> "Generation":
        """A generation whose indexes are kept and searched where those of this one are."""
        return Generation(number, encoder, self._made)

    @property
    def encoders(self) -> tuple[Encoder, ...]:
        """The encoder; of a pair its query encoder, too."""
        queries = self.encoder.queries
        return (self.encoder,) if queries is None else (self.encoder, queries)

    def _enter(self) -> bool:
        with self._lock:
            if self.retired:
                return False
            self._borrowers += 1
            return True

    def _leave(self) -> None:
        with self._lock:
            self._borrowers -= 1
            last = self.retired and not self._borrowers
        if last:
            self.close()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Kept open until the block ends, for who builds it.

        Raises:
            Retired: it takes no borrower any more.

        """
        if not self._enter():
            raise Retired(self.version)
        try:
            yield
        finally:
            self._leave()

    def retire(self) -> None:
        """No new borrower from now on; closes at once when it has no borrower."""
        with self._lock:
            if self.retired:
                return
            self.retired = True
            idle = not self._borrowers
        if idle:
            self.close()

    def close(self) -> None:
        """Free the session and stop the indexes' merging; their memory goes with the last reference to it.

        For a generation without borrowers, or a service that stops.
        """
        self.indexes.close()
        self.encoder.close()
        for encoder in self.encoders:
            self.on_close(encoder)
        memory.give_back()


class Live:
    """The one reference that a swap replaces: the live generation, and behind it those that follow."""

    def __init__(self, generation: Generation, on_close: Callable[[Encoder], None] = lambda _: None) -> None:
        """on_close: told of each encoder of a generation that has closed."""
        generation.on_close = self._on_close = on_close
        # The live one and its followers: every commit is brought into their indexes.
        self.generations: tuple[Generation, ...] = (generation,)
        self._changing = threading.Lock()
        self.lost: Callable[[], str | None] = lambda: None  # why another version may be live, elsewhere

    @property
    def generation(self) -> Generation:
        """The generation in service, for reading its name and numbers; to use it, borrow it."""
        return self.generations[0]

    @property
    def followers(self) -> tuple[Generation, ...]:
        return self.generations[1:]

    @property
    def encoding(self) -> set[str]:
        """The versions whose models are in memory, those that encode a pair's queries among them."""
        return {
            encoder.manifest.version for generation in self.generations for encoder in generation.encoders
        }

    def follow(self, generation: Generation) -> None:
        """From now on every write is brought into this generation, too."""
        generation.on_close = self._on_close
        with self._changing:
            if generation not in self.generations:
                self.generations = (*self.generations, generation)

    def replace(self, generation: Generation) -> None:
        """The swap: `generation` is live, with its index; the one that was live follows it."""
        generation.fault = None
        with self._changing:
            others = [other for other in self.generations if other is not generation]
            self.generations = (generation, *others)

    def leave(self, generation: Generation) -> None:
        """A follower follows no longer; it closes when its last borrower leaves."""
        with self._changing:
            self.generations = tuple(other for other in self.generations if other is not generation)
        generation.retire()

    def leave_unless_live(self, generation: Generation) -> None:
        if self.generation is not generation:
            self.leave(generation)

    @contextmanager
    def borrow(self, version: str | None = None) -> Iterator[Generation]:
        """The generation in service, kept open until the block ends, also across a swap.

        version: that one instead, while it is kept warm: the one a rollback goes to, or one in the making.

        Raises:
            Conflict: `version` is neither in service nor kept.
            Unhealthy: what is in service is not known here.

        """
        if version is None and (reason := self.lost()):
            raise Unhealthy(reason, retry_after_seconds=2)
        generation = self._enter_live() if version is None else self._enter_version(version)
        try:
            yield generation
        finally:
            generation._leave()  # noqa: SLF001

    async def left(self, generation: Generation) -> None:
        """Wait until another generation is in service here, as it is elsewhere already.

        Raises:
            Unhealthy: that takes too long.

        """
        deadline = time.monotonic() + FOLLOW_SECONDS
        while self.generation is generation:
            if time.monotonic() > deadline:
                raise Unhealthy(
                    "Another version went live, and this replica does not have it yet. Send again.",
                    retry_after_seconds=1,
                )
            await asyncio.sleep(LOOK_SECONDS)

    def _enter_live(self) -> Generation:
        while not (generation := self.generation)._enter():  # noqa: SLF001  retired between the two: look again
            pass
        return generation

    def _enter_version(self, version: str) -> Generation:
        generations = self.generations
        # Of two of one version, as when it is made anew while the one before still lingers, the whole one.
        for generation in sorted(generations, key=lambda generation: not generation.is_complete):
            if generation.version == version and generation._enter():  # noqa: SLF001
                return generation
        warm = " and ".join(dict.fromkeys(generation.version for generation in generations))
        raise Conflict(
            f"{version[:100]} is not kept warm; {warm} can be asked. GET /models lists the versions."
        )

    @contextmanager
    def borrow_all(self) -> Iterator[list[Generation]]:
        """For a write: the generation in service and its followers, all kept open until the block ends."""
        with self.borrow() as live, ExitStack() as leaving:
            borrowed = [live]
            for other in self.generations:
                if other is not live and other._enter():  # noqa: SLF001
                    leaving.callback(other._leave)  # noqa: SLF001
                    borrowed.append(other)
            yield borrowed

    def close(self) -> None:
        """Close every generation: the service has stopped."""
        for generation in self.generations:
            generation.close()


def apply(generation: Generation, changes: Changes) -> None:
    """Bring a generation's indexes up to date with a commit; runs on the writer's thread."""
    added = {
        collection: (np.array([*rows], np.int64), np.array([*rows.values()], np.float32))
        for (number, collection), rows in changes.added.items()
        if number == generation.number and rows
    }
    if added or changes.removed or changes.sequence > generation.indexes.sequence:
        generation.indexes.apply(added, changes.removed, changes.sequence)

"""The active generation and its followers. Start reading at `ActiveGeneration.borrow`.

    active ──▶ followers: the candidate and the previous version     every write reaches all of them
      ▲            │
      └── swap ◀───┘   one assignment on the writer thread

A generation is a model version with its index. A request borrows the active generation once and uses it for
all its work, so query vectors and document vectors always come from the same model. A retired generation gets
no new borrowers, and is closed after its last borrower has finished.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import copy
from pathlib import Path
from typing import TypeAlias

import numpy as np

from models.encoder import Encoder, TokenEncoder
from models.manifest import Manifest
from models.reranker import Reranker
from service import memory
from service.errors import Conflict, Unhealthy
from service.index.gpu import GpuThread
from service.index.index_set import AnyIndexes, Indexes, Size, StoredIndexes
from service.index.ivf_snapshots import IvfSnapshots, Origin
from service.ranking import Rankings, read_rankings
from service.store.values import Changes

IndexesOf: TypeAlias = Callable[[int, Encoder], AnyIndexes]


def in_memory(snapshots: Path | None = None, owner: GpuThread | None = None) -> IndexesOf:
    """Returns a factory of indexes that are in the memory of this process.

    Args:
        snapshots: Folder for snapshots of the indexes. None means no snapshots.
        owner: Thread that searches on a GPU, which needs `snapshots`. None means search on the CPU.

    """

    def made(number: int, encoder: Encoder) -> Indexes:
        if snapshots is None:
            return Indexes(encoder.dimension)
        origin = Origin(number, encoder.fingerprint, encoder.dimension)
        return Indexes(encoder.dimension, lambda name: IvfSnapshots(snapshots / name, origin, owner))

    return made


def in_store(size: Size) -> IndexesOf:
    """Returns a factory of indexes that the document store searches.

    Args:
        size: Returns the number of documents and the number of vectors of a generation.

    """
    return lambda number, encoder: StoredIndexes(number, encoder.dimension, size)


class Retired(Exception):
    """Raised if a generation is retired and therefore receives no more writes."""


class Borrowed:
    """An open model that is closed after its last borrower has finished. Subclasses implement `close`."""

    def __init__(self) -> None:
        self._borrowers = 0
        self.retired = False  # New borrowers are rejected.
        self._lock = threading.Lock()

    def enter(self) -> bool:
        """Adds a borrower, who must call `leave`. Returns False if the model is retired."""
        with self._lock:
            if self.retired:
                return False
            self._borrowers += 1
            return True

    def leave(self) -> None:
        with self._lock:
            self._borrowers -= 1
            last = self.retired and not self._borrowers
        if last:
            self.close()

    def retire(self) -> None:
        """Rejects new borrowers. Closes the model now, or after the last borrower has finished."""
        with self._lock:
            if self.retired:
                return
            self.retired = True
            idle = not self._borrowers
        if idle:
            self.close()

    def close(self) -> None:
        raise NotImplementedError


class Generation(Borrowed):
    """A model version and its indexes. `number` identifies its vectors in the document store."""

    def __init__(self, number: int, encoder: Encoder, made: IndexesOf) -> None:
        super().__init__()
        self.number = number
        self.encoder = encoder
        self.manifest = encoder.manifest
        self.version = encoder.manifest.version
        self._made = made
        self.indexes = made(number, encoder)
        self.judged: dict[str, object] = {}  # Judged queries by collection (corpus/judged.py).
        self.token_encoders: dict[str, TokenEncoder] = {}  # By space (corpus/tokens.py).
        self.rankings = read_rankings(encoder.folder, encoder.manifest)
        self.is_loaded = False  # The indexes contain exactly the stored vectors of this generation.
        self.is_complete = False  # The indexes contain every stored document.
        self.missing = 0  # Stored documents without a vector, at the last count.
        self.skipped = 0  # Missing documents on which the model fails.
        self.is_rollback_target = False
        self.complete_through = 0  # Every current document up to this revision has a vector.
        self.fault: str | None = None  # The reason why the model must not be used any more.
        self.on_close: Callable[[Encoder], None] = lambda _: None  # Called after the session is closed.

    def another(self, number: int, encoder: Encoder) -> "Generation":
        """Returns a new generation that creates its indexes with the same factory as this one."""
        return Generation(number, encoder, self._made)

    def replace_search(self, manifest: Manifest, rankings: Rankings) -> "Generation":
        """Returns this generation with the search settings and rankings of another version.

        It shares everything else. So only a borrower of this generation may use it.
        """
        other = copy(self)
        other.manifest, other.version, other.rankings = manifest, manifest.version, rankings
        return other

    @property
    def encoders(self) -> tuple[Encoder, ...]:
        queries = self.encoder.queries
        return (self.encoder,) if queries is None else (self.encoder, queries)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps the generation open until the block ends. Used while the generation is being built.

        Raises:
            Retired: The generation is retired.

        """
        if not self.enter():
            raise Retired(self.version)
        try:
            yield
        finally:
            self.leave()

    def close(self) -> None:
        """Closes the model, and stops background merges of the indexes.

        Call this only if the generation has no borrowers, or when the service stops.
        """
        self.indexes.close()
        self.encoder.close()
        for encoder in self.encoders:
            self.on_close(encoder)
        memory.give_back()


class ActiveGeneration:
    """The active generation and its followers.

    Followers receive every write, so that a swap only has to replace a reference.

    Args:
        on_close: Called with each encoder after its generation is closed.

    """

    def __init__(self, generation: Generation, on_close: Callable[[Encoder], None] = lambda _: None) -> None:
        generation.on_close = self._on_close = on_close
        # The active generation comes first. Every commit updates the indexes of all.
        self.generations: tuple[Generation, ...] = (generation,)
        self._changing = threading.Lock()
        self.reranker = ActiveReranker()
        # Returns the reason why another replica may have activated another version, or None.
        self.lost: Callable[[], str | None] = lambda: None

    @property
    def generation(self) -> Generation:
        """The active generation, for its name and numbers. To use the model or the index, call `borrow`."""
        return self.generations[0]

    @property
    def followers(self) -> tuple[Generation, ...]:
        return self.generations[1:]

    @property
    def encoding(self) -> set[str]:
        """The versions whose models are in memory, including query encoders and the reranker."""
        encoders = (each for generation in self.generations for each in generation.encoders)
        reranker = self.reranker.version
        return {each.manifest.version for each in encoders} | ({reranker} if reranker else set())

    def follow(self, generation: Generation) -> None:
        generation.on_close = self._on_close
        with self._changing:
            if generation not in self.generations:
                self.generations = (*self.generations, generation)

    def replace(self, generation: Generation) -> None:
        """Makes `generation` active and clears its fault. The previously active one becomes a follower."""
        generation.fault = None
        with self._changing:
            others = [other for other in self.generations if other is not generation]
            self.generations = (generation, *others)

    def leave(self, generation: Generation) -> None:
        with self._changing:
            self.generations = tuple(other for other in self.generations if other is not generation)
        generation.retire()

    def leave_unless_active(self, generation: Generation) -> None:
        if self.generation is not generation:
            self.leave(generation)

    @contextmanager
    def borrow(self, version: str | None = None) -> Iterator[Generation]:
        """Keeps a generation open until the block ends, even if a swap happens meanwhile.

        Args:
            version: A version in memory: active, previous or candidate. None means the active version.

        Raises:
            Conflict: `version` is not in memory.
            Unhealthy: This replica does not know which version is active.

        """
        if version is None and (reason := self.lost()):
            raise Unhealthy(reason, retry_after_seconds=2)
        generation = self._enter_active() if version is None else self._enter_version(version)
        try:
            yield generation
        finally:
            generation.leave()

    def _enter_active(self) -> Generation:
        # A swap may retire the generation between the two calls.
        while not (generation := self.generation).enter():
            pass
        return generation

    def _enter_version(self, version: str) -> Generation:
        generations = self.generations
        # During a rebuild two generations may have the same version. The complete one comes first.
        for generation in sorted(generations, key=lambda generation: not generation.is_complete):
            if generation.version == version and generation.enter():
                return generation
        usable = " and ".join(dict.fromkeys(generation.version for generation in generations))
        raise Conflict(
            f"{version[:100]} is not loaded; {usable} can be used. GET /models lists the versions."
        )

    @contextmanager
    def borrow_all(self) -> Iterator[list[Generation]]:
        """Keeps the active generation and all followers open until the block ends. Used for writes."""
        with self.borrow() as active, ExitStack() as leaving:
            borrowed = [active]
            for other in self.generations:
                if other is not active and other.enter():
                    leaving.callback(other.leave)
                    borrowed.append(other)
            yield borrowed

    def close(self) -> None:
        for generation in self.generations:
            generation.close()
        if self.reranker.current is not None:
            self.reranker.current.close()


class OpenReranker(Borrowed):
    """An open reranker."""

    def __init__(self, reranker: Reranker, on_close: Callable[[Reranker], None]) -> None:
        super().__init__()
        self.reranker = reranker
        self.version = reranker.manifest.version
        self._on_close = on_close

    def close(self) -> None:
        self.reranker.close()
        self._on_close(self.reranker)
        memory.give_back()


class ActiveReranker:
    """The reranker that requests borrow, if one is active. lifecycle/rerankers.py replaces it.

    Attributes:
        current: The active reranker, or None.
        opening: The version that is being opened, or None.
        opening_bytes: Bytes of memory that it needs, from the check of memory until it is open.
        trouble: Why a requested reranker is not active, as a sentence. Empty: none was requested.
    """

    def __init__(self) -> None:
        self.current: OpenReranker | None = None
        self.opening: str | None = None
        self.opening_bytes = 0
        self.trouble = ""

    @property
    def version(self) -> str | None:
        current = self.current
        return None if current is None else current.version

    @contextmanager
    def borrow(self) -> Iterator[Reranker]:
        """Keeps the reranker open until the block ends, even if it is replaced meanwhile.

        Raises:
            Unhealthy: A reranker is being opened.
            Conflict: No reranker is active.

        """
        while (current := self.current) is not None and not current.enter():
            pass  # It was replaced between the two calls.
        if current is None:
            raise self._absent()
        try:
            yield current.reranker
        finally:
            current.leave()

    def _absent(self) -> Conflict | Unhealthy:
        if self.opening is not None:
            message = f"The reranker {self.opening} is being opened. Send again. {self.trouble}".rstrip()
            return Unhealthy(message, retry_after_seconds=2)
        return Conflict(
            f"No reranker is active. {self.trouble}{' ' if self.trouble else ''}To use one, import it with "
            "`simile models import FOLDER_OR_HUB_ID`, then send POST /models/VERSION/activate "
            "(docs/MODELS.md). SIMILE_RERANKER names the first one."
        )

    def replace(self, other: OpenReranker | None) -> None:
        """Makes `other` active, or none. Requests that have borrowed the previous reranker keep it."""
        previous, self.current = self.current, other
        if previous is not None:
            previous.retire()


def apply(generation: Generation, changes: Changes) -> None:
    """Applies committed changes to the indexes of a generation. Runs on the writer thread."""
    added = {
        collection: (np.array([*rows], np.int64), np.array([*rows.values()], np.float32))
        for (number, collection), rows in changes.added.items()
        if number == generation.number and rows
    }
    if added or changes.removed or changes.sequence > generation.indexes.sequence:
        generation.indexes.apply(added, changes.removed, changes.sequence)

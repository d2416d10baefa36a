"""Builds a version and makes it active. Start reading at `Swap._build`.

    memory? ──▶ opening ──▶ building ──▶ canary queries ──▶ ready ──▶ active

In the state `building`, the candidate may wait for memory. In the state `ready`, it waits for a decision if
SIMILE_ACTIVATE=manual, or if its answers differ too much (SIMILE_CANARY_MIN_OVERLAP). A version that must
only be kept loaded, or that a live test compares, also stays in the state `ready`.

While documents are embedded for the candidate, it also receives every write. Writes do not wait for the
candidate: the builder embeds documents whose writes it missed. The database transaction of the swap checks
that every document has a vector. The swap itself updates a row in the database and then assigns a reference
in memory. With SQLite, both happen on the writer thread, between two commits. Requests that borrowed the old
generation continue with its model and its index. Later requests use the new generation.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from models.encoder import Encoder
from models.errors import ModelError
from models.manifest import Manifest, read_manifest
from models.messages import amount
from models.store import RequestedVersion
from service.active import Generation, Retired
from service.batching.request import Lane
from service.corpus.corpus import Corpus
from service.errors import Backend, Overloaded, ServiceError, Storage, Timeout, Unhealthy, machine_error
from service.lifecycle import canary, capacity
from service.lifecycle.builder import Builder, Progress
from service.lifecycle.capacity import expected_rows
from service.lifecycle.model_loader import ModelLoader, read_when_there, stored_form
from service.observability.logs import safe_message
from service.observability.metrics import Metrics
from service.settings import Settings
from service.store.values import FAILED, Activation, Embedding, Last, Unembedded, Verdict

log = logging.getLogger(__name__)

T = TypeVar("T")
BUILDING, READY = "building", "ready"
# Transient errors: a full queue or disk, or a database that is slow or cannot be reached.
TRANSIENT_ERRORS = (Overloaded, Storage, Timeout, Unhealthy)
RETRY_SECONDS, MEMORY_LOOK_SECONDS = 2.0, 5.0
# Writes wait at most this long for the last documents: at the first attempt, and at later attempts.
LAST_SECONDS, MAX_LAST_SECONDS = 0.5, 2.0
MACHINE = Path("/")  # folder that contains `proc` and `sys`
ATTEMPTS = 5  # attempts to build an index that missed writes
SKIPPED_SHARE = 0.01  # A model that fails on a larger share of the documents is rejected.


@dataclass(eq=False)
class Swap:
    """One attempt to activate a version.

    Attributes:
        state: State of the version.
        done: Number of documents in the new index.
        total: Number of documents in the store.
        reason: Why the swap waits or failed, or None.
        kept: Whether the version must only be kept loaded, without activation.

    """

    requested: RequestedVersion
    _loader: ModelLoader
    _corpus: Corpus
    _settings: Settings
    _metrics: Metrics
    kept: bool = False
    state = BUILDING
    done, total = 0, 0
    # Estimated memory of the index, and of the model until it is open. 0 until both fit into memory.
    reserved_bytes = 0
    reason: str | None = None
    swapped = False  # The version is active. The task may still run for a moment.
    generation: Generation | None = None
    _progress: Progress | None = None
    _model_bytes = 0
    _compared = False
    _too_different: str | None = None

    def __post_init__(self) -> None:
        self._decided, self._wanted = asyncio.Event(), asyncio.Event()
        self.renew(self.requested, kept=self.kept)

    @property
    def version(self) -> str:
        return self.requested.version

    @property
    def eta_seconds(self) -> float | None:
        """Estimated remaining seconds of the build.

        None while the build waits, or if no estimate is known yet.
        """
        if self.state != BUILDING or self.reason is not None or self._progress is None:
            return None
        eta = self._progress.eta_seconds
        return None if eta is None else round(eta, 1)

    @property
    def coming_bytes(self) -> int:
        """Estimated memory that the build will still take.

        0 while it waits for memory, which it does not hold, and when the version is ready.
        """
        left = 1 - self.done / self.total if self.total else 1.0
        return int(self.reserved_bytes * left) if self.state == BUILDING else 0

    def renew(self, requested: RequestedVersion, *, kept: bool = False) -> None:
        """Records another request for the same version.

        The first decision (kind `activate` or `rollback`) is not replaced by later requests.

        Args:
            requested: The request.
            kept: Whether the request is only to keep the version loaded.

        """
        if not kept:
            self.kept = False
            self._wanted.set()
        if self.requested.kind == "want":
            self.requested = requested
        if requested.kind != "want":
            self._decided.set()

    async def run(self) -> None:
        """Runs until the version is active or has failed.

        A failure is stored, so that the version is not chosen automatically again.
        """
        self._metrics.canary.set(math.nan)  # The last value belongs to another version.
        try:
            await self._attempts()
        except (ModelError, Backend) as error:
            await self._fail(getattr(error, "message", None) or str(error))
        except Exception as error:
            log.exception("The swap to %s failed", self.version)
            await self._fail(safe_message(error))
        finally:
            self._metrics.build(0, 0)
            if not self.swapped:
                self._metrics.canary.set(math.nan)
                self._give_up()

    async def _attempts(self) -> None:
        """Activates the version. If its index misses a write, starts again, up to ATTEMPTS times in all.

        Raises:
            ModelError: The version cannot be used, or its index missed writes at every attempt.

        """
        for _ in range(ATTEMPTS):
            try:
                generation = self.generation = await self._open()
                with generation.held():
                    return await self._build(generation)
            except Retired:
                log.warning("The index of %s has a gap. It is loaded again", self.version)
            await asyncio.sleep(RETRY_SECONDS)
        raise ModelError(self.reason or "Its index missed writes at every attempt.")

    async def _build(self, generation: Generation) -> None:
        """Completes the index, compares answers, waits for a decision if needed, and swaps."""
        builder = Builder(self._corpus, generation, self._tell, self._settings.build_rate)
        self.state, self._progress = BUILDING, builder.progress
        swap = partial(self._swap, generation, _embedding_last(self._corpus, generation))
        await self._patiently(builder.warm)
        if generation.is_complete and self.requested.kind == "rollback" and await self._patiently(swap):
            return
        if not generation.is_loaded:
            await self._patiently(builder.load)
            generation.is_loaded = True
        while True:
            await self._patiently(builder.embed)
            skipped = generation.skipped
            if skipped > SKIPPED_SHARE * generation.indexes.documents:
                raise ModelError(f"It fails on {skipped} of the documents; the log names them.")
            generation.is_complete = True
            await self._compare(generation)
            notes = [f"{amount(skipped, 'document')} left out" if skipped else None, self._too_different]
            self.state, self.reason = READY, "; ".join(filter(None, notes)) or None
            if self._settings.activate != "auto" or self._too_different:
                await self._decided.wait()
            await self._wanted.wait()
            if await self._patiently(swap):
                return

    async def _compare(self, generation: Generation) -> None:
        """Runs the canary queries, but only once for each swap. A rollback skips them to save time."""
        if self._compared or self.requested.kind == "rollback":
            return
        self._compared = True
        compared = partial(canary.compared, self._corpus, generation, self._settings)
        overlap, self._too_different = await self._patiently(compared)
        if overlap is not None:
            self._metrics.canary.set(overlap)
        if self._too_different:
            log.warning("%s waits: %s", self.version, self._too_different)

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Runs `work` until it succeeds.

        Waits after transient errors, disk errors and missing file descriptors.
        """
        while True:
            try:
                return await work()
            except (*TRANSIENT_ERRORS, OSError) as error:
                fault = machine_error(error) if isinstance(error, OSError) else error
                if fault is None:
                    raise
                await self._wait(fault.message, RETRY_SECONDS)

    async def _read(self, work: Callable[[], T]) -> T:
        """Runs `work`, which reads the folder of the version. Waits while the folder cannot be read."""
        found = await read_when_there(self._loader.store, self.version, work, self._wait)
        self.reason = None
        return found

    async def _wait(self, reason: str, seconds: float, *, said: bool = False) -> None:
        """Stores and logs why the swap waits, and then sleeps. `GET /models` shows the reason.

        Args:
            reason: Why the swap waits.
            seconds: How long to sleep.
            said: Whether the reason was logged before.

        """
        if not said and reason != self.reason:
            log.warning("%s waits: %s", self.version, reason)
        self.reason = reason
        self._metrics.build(self.done, self.total)
        await asyncio.sleep(seconds)

    async def _wait_for_memory(self) -> None:
        """Waits until the generation fits into memory."""
        manifest = await self._read(lambda: read_manifest(self._loader.store.folder(self.version)))
        said = False  # Log the reason once, because the numbers in it change with each check.
        while self._settings.memory_check:
            documents = await self._patiently(self._corpus.store.count_all)
            rows, size = _estimate(manifest, documents, self._loader, self._corpus)
            shortage = await self._read(partial(_find_shortage, documents, rows, size, self._corpus))
            if shortage is None:
                need = partial(capacity.needed, **size)
                self._model_bytes = await self._read(partial(need, []))
                self.reserved_bytes = await self._read(partial(need, rows))
                break
            reason = f"{shortage} It is built when enough memory is free."
            await self._wait(reason, MEMORY_LOOK_SECONDS, said=said)
            said = True
        self.reason = None

    async def _open(self) -> Generation:
        """Returns a generation of the version that receives every write from now on.

        If a loaded generation of the version is already in memory, it is used.
        """
        active = self._corpus.active
        for follower in active.followers:
            if follower.version == self.version and not follower.is_loaded:  # Its index may have a gap.
                active.leave(follower)
            elif follower.version == self.version and follower.number == await self._begin(follower.encoder):
                return follower
        self.reserved_bytes = 0
        await self._patiently(self._wait_for_memory)
        opened = partial(self._read, partial(self._loader.open_verified, self.version))
        encoder = await self._patiently(opened)
        self.reserved_bytes -= self._model_bytes
        number = await self._begin(encoder)
        active.follow(generation := active.generation.another(number, encoder))
        self._metrics.by_version.keep(active.encoding)
        return generation

    async def _begin(self, encoder: Encoder) -> int:
        """Registers the version in the store, and returns the number of its generation."""
        form = stored_form(encoder.form, encoder.manifest)
        begin = partial(self._corpus.store.begin, encoder.manifest, form)
        return await self._patiently(begin)

    async def _swap(self, generation: Generation, last: Last) -> bool:
        """Makes the generation active.

        Returns:
            False if documents have no vector, if the index has missed a write, or if a forward pass hung.
            Then nothing was changed.

        """
        started, active = math.nan, self._corpus.active

        def may() -> bool:
            nonlocal started
            started = time.monotonic()
            return not generation.retired and generation.fault is None

        def replace(last: int) -> None:
            left = active.generation
            left.complete_through = last  # Only newer documents can be missing after a rollback.
            active.replace(generation)
            self.mark_activated(generation)
            self._metrics.swap_pause_seconds.observe(time.monotonic() - started)

        swap = Activation(
            generation=generation.number,
            complete_through=generation.complete_through,
            requested=self.requested.id,
            rollback=self.requested.kind == "rollback",
            may=may,
            last=last,
            then=replace,
        )
        return await self._corpus.store.make_active(swap)

    def mark_activated(self, generation: Generation) -> None:
        """Records that this process serves the version now.

        Another process may have activated the version.
        """
        if not self.swapped:
            self.swapped = True
            log.info("%s is active", self.version)
            self._metrics.swaps.labels("rollback" if self.requested.kind == "rollback" else "done").inc()
            self._metrics.serve(generation.manifest, generation.encoder.form)

    def _tell(self, done: int, total: int) -> None:
        self.done, self.total, self.reason = done, total, None
        self._metrics.build(done, total, self.eta_seconds)

    async def _fail(self, reason: str) -> None:
        log.error("%s cannot be activated: %s", self.version, reason)
        self.state, self.reason = FAILED, reason
        self._metrics.swaps.labels("failed").inc()
        if self.version == self._corpus.active.generation.version:  # It stays active in its old form.
            return
        while True:
            try:
                verdict = Verdict(FAILED, reason)
                await self._corpus.store.keep_verdict(self.version, verdict, self.requested.id)
            except TRANSIENT_ERRORS:
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    def _give_up(self) -> None:
        """Lets the writer thread close the generation, unless it is active or needed for a rollback.

        So a swap that is already in progress ends first.
        """
        active, generation = self._corpus.active, self.generation
        if generation is None or generation.is_rollback_target:
            return
        with contextlib.suppress(Unhealthy):  # The writer has stopped, because the service stops.
            self._corpus.store.after_writes(partial(active.leave_unless_active, generation))


async def find_shortage(manifest: Manifest, loader: ModelLoader, corpus: Corpus) -> str | None:
    """Returns why there is too little memory for a version now, with advice, or None."""
    documents = await corpus.store.count_all()
    rows, size = _estimate(manifest, documents, loader, corpus)
    return await asyncio.to_thread(_find_shortage, documents, rows, size, corpus)


def _find_shortage(documents: int, rows: list[int], size: dict[str, Any], corpus: Corpus) -> str | None:
    opening = corpus.active.reranker.opening_bytes
    return capacity.shortage(documents, rows, machine=MACHINE, opening=opening, **size)


def _estimate(
    manifest: Manifest, documents: int, loader: ModelLoader, corpus: Corpus
) -> tuple[list[int], dict[str, Any]]:
    """Returns what `capacity` must know of a version: the rows of each collection, and arguments by name."""
    alone = corpus.single_text_threads > 1 and loader.opens_single_text
    folder = loader.store.root / manifest.version
    rows = expected_rows(corpus.active.generation, documents, manifest)
    return rows, {"dimension": manifest.dimension, "folder": folder, "alone": alone}


def _embedding_last(corpus: Corpus, generation: Generation) -> Last:
    """Returns a function that embeds the few documents that were written just before a swap.

    Call `_embedding_last` on the event loop. The store calls the returned function on another thread while
    writes wait, so the documents are embedded in the interactive lane. The function returns embeddings by
    revision, or None if this failed or took too long.
    """
    loop, seconds = asyncio.get_running_loop(), LAST_SECONDS

    def embed(lacking: Mapping[int, Unembedded]) -> Mapping[int, Embedding] | None:
        nonlocal seconds
        work = corpus.embed_stored(generation, lacking, Lane.INTERACTIVE)
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result(seconds)
        except (TimeoutError, ServiceError) as error:  # The builder tries again.
            future.cancel()
            log.info("%s is not active yet: %s", generation.version, safe_message(error))
            seconds = min(2 * seconds, MAX_LAST_SECONDS)
            return None

    return embed

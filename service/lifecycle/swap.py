"""A version on its way to live: open, verify, warm, build its index, swap.

    memory? ──▶ opening ──▶ building ──▶ canary queries ──▶ ready ──▶ live

It waits in `building` while there is no memory for it, and in `ready` for a decision when
SIMILE_ACTIVATE=manual, when it answers too differently (SIMILE_CANARY_MIN_OVERLAP), or when it is only kept.

While its documents are embedded it follows every write, and no write waits for it: what it does not have in
time its builder finds. A last look inside the swap's own transaction makes sure that no document lacks a
vector. The swap itself is a row in the database, then one assignment, both on the writer's thread between two
commits: a request that borrowed before keeps the old model with the old index, a later one gets the new ones.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from models.encoder import Encoder
from models.errors import ModelError
from models.manifest import read_manifest
from models.store import DesiredVersion
from service.corpus.corpus import Corpus
from service.errors import Backend, Overloaded, ServiceError, Storage, Timeout, Unhealthy, machine_error
from service.lifecycle import canary, capacity
from service.lifecycle.builder import Builder, Progress
from service.lifecycle.capacity import expected_rows
from service.lifecycle.model_loader import ModelLoader, read_when_there, stored_form
from service.live import Generation, Retired
from service.observability.logs import safe_message
from service.observability.metrics import Metrics
from service.settings import Settings
from service.store.values import FAILED, Embedding, Unembedded, Verdict

log = logging.getLogger(__name__)

T = TypeVar("T")
BUILDING, READY = "building", "ready"
PASSING = (Overloaded, Storage, Timeout, Unhealthy)  # a full queue or disk, a database that is slow or away
RETRY_SECONDS, MEMORY_LOOK_SECONDS = 2.0, 5.0
LAST_SECONDS, MOST_LAST_SECONDS = (
    0.5,
    2.0,
)  # Writes wait so long for the last documents, longer with each attempt.
MACHINE = Path("/")  # where `proc` and `sys` tell how much memory there is
ATTEMPTS = 5  # at an index that cannot follow the writes
SKIPPED_SHARE = 0.01  # a model that fails on more of the documents than this does not come to live


class Swap:
    """An attempt. `state`, `done`, `total` and `reason` tell how far it is."""

    def __init__(
        self,
        desired: DesiredVersion,
        loader: ModelLoader,
        corpus: Corpus,
        settings: Settings,
        metrics: Metrics,
        *,
        kept: bool = False,
    ) -> None:
        self.desired = desired
        self.kept = kept  # to be asked, and nobody wants it to go live
        self.state = BUILDING
        self.done, self.total = 0, 0
        self.reason: str | None = None
        self.swapped = False  # it is live; its task may have a moment to go
        self.generation: Generation | None = None
        self._loader = loader
        self._corpus = corpus
        self._settings = settings
        self._metrics = metrics
        self._progress: Progress | None = None
        self._compared = False
        self._too_different: str | None = None
        self._decided, self._wanted = asyncio.Event(), asyncio.Event()
        self.renew(desired, kept=kept)

    @property
    def version(self) -> str:
        return self.desired.version

    @property
    def eta_seconds(self) -> float | None:
        """Seconds that the rest of the build takes, None while it waits or that is not known."""
        if self.state != BUILDING or self.reason is not None or self._progress is None:
            return None
        eta = self._progress.eta_seconds
        return None if eta is None else round(eta, 1)

    def renew(self, desired: DesiredVersion, *, kept: bool = False) -> None:
        """The same version, perhaps asked for more firmly; never less."""
        if not kept:
            self.kept = False
            self._wanted.set()
        if self.desired.kind == "want":
            self.desired = desired
        if desired.kind != "want":
            self._decided.set()

    async def run(self) -> None:
        """Run until the version is live or has failed; the reason is stored then, and not tried again."""
        self._metrics.canary.set(math.nan)  # what was compared before says nothing of this one
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
        """Try until it is live. Raise ModelError when no attempt came to an end."""
        for _ in range(ATTEMPTS):
            try:
                generation = self.generation = await self._open()
                with generation.held():
                    return await self._build(generation)
            except Retired:
                log.warning("The index of %s has a gap; it is loaded again", self.version)
            await asyncio.sleep(RETRY_SECONDS)
        raise ModelError(self.reason or "Its index could not follow the writes.")

    async def _build(self, generation: Generation) -> None:
        """Fill the index, compare, and swap."""
        builder = Builder(self._corpus, generation, self._tell, self._settings.build_rate)
        self.state, self._progress = BUILDING, builder.progress
        swap = partial(self._swap, generation, _LastDocuments(self._corpus, generation))
        await self._patiently(builder.warm)
        if generation.is_complete and self.desired.kind == "rollback" and await self._patiently(swap):
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
            notes = [f"{skipped} documents left out" if skipped else None, self._too_different]
            self.state, self.reason = READY, "; ".join(filter(None, notes)) or None
            if self._settings.activate == "manual" or self._too_different:
                await self._decided.wait()
            await self._wanted.wait()
            if await self._patiently(swap):
                return

    async def _compare(self, generation: Generation) -> None:
        """Ask the canary queries, once; a way back must be quick, and was compared on its way here."""
        if self._compared or self.desired.kind == "rollback":
            return
        self._compared = True
        compared = partial(canary.compared, self._corpus, generation, self._settings)
        overlap, self._too_different = await self._patiently(compared)
        if overlap is not None:
            self._metrics.canary.set(overlap)
        if self._too_different:
            log.warning("%s waits: %s", self.version, self._too_different)

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do it, waiting for what may pass, and for file descriptors."""
        while True:
            try:
                return await work()
            except (*PASSING, OSError) as error:
                fault = machine_error(error) if isinstance(error, OSError) else error
                if fault is None:
                    raise
                await self._wait(fault.message, RETRY_SECONDS)

    async def _read(self, work: Callable[[], T]) -> T:
        """`work` on the version's folder, as soon as that can be read."""
        found = await read_when_there(self._loader.store, self.version, work, self._wait)
        self.reason = None
        return found

    async def _wait(self, reason: str, seconds: float, *, said: bool = False) -> None:
        """Sleep, and say why: this may pass."""
        if not said and reason != self.reason:
            log.warning("%s waits: %s", self.version, reason)
        self.reason = reason
        self._metrics.build(self.done, self.total)
        await asyncio.sleep(seconds)

    async def _wait_for_memory(self) -> None:
        """Wait for room for the generation; documents may go meanwhile, and other generations."""
        store, live = self._loader.store, self._corpus.live.generation
        manifest = await self._read(lambda: read_manifest(store.folder(self.version)))
        folder, dimension = store.root / self.version, manifest.dimension
        alone = self._corpus.alone_threads > 1 and self._loader.opens_alone
        said = False  # its numbers change from look to look
        while self._settings.memory_check:
            documents = await self._patiently(self._corpus.store.count_all)
            rows = expected_rows(live, documents, manifest)
            look = partial(capacity.shortage, documents, rows, dimension, folder, MACHINE, alone=alone)
            shortage = await self._read(look)
            if shortage is None:
                break
            await self._wait(shortage, MEMORY_LOOK_SECONDS, said=said)
            said = True
        self.reason = None

    async def _open(self) -> Generation:
        """The generation, following every write from now on: the one still kept warm, or opened anew."""
        live = self._corpus.live
        for follower in live.followers:
            if follower.version == self.version and not follower.is_loaded:  # its index may have a gap
                live.leave(follower)
            elif follower.version == self.version and follower.number == await self._begin(follower.encoder):
                return follower
        await self._patiently(self._wait_for_memory)
        opened = partial(self._read, partial(self._loader.open_proved, self.version))
        encoder = await self._patiently(opened)
        number = await self._begin(encoder)
        live.follow(generation := live.generation.another(number, encoder))
        self._metrics.by_version.keep(live.encoding)
        return generation

    async def _begin(self, encoder: Encoder) -> int:
        """The number of the version's generation in the store."""
        return await self._patiently(
            partial(self._corpus.store.begin, encoder.manifest, stored_form(encoder))
        )

    async def _swap(self, generation: Generation, last: "_LastDocuments") -> bool:
        """The swap. False when there is more to embed, or its index has a gap."""
        started, live = math.nan, self._corpus.live
        rollback = self.desired.kind == "rollback"

        def may() -> bool:
            nonlocal started
            started = time.monotonic()
            return not generation.retired and generation.fault is None

        def replace(last: int) -> None:
            left = live.generation
            left.complete_through = last  # what it lacks after a rollback can only be newer
            live.replace(generation)
            self.went_live(generation)
            self._metrics.swap_pause_seconds.observe(time.monotonic() - started)

        return await self._corpus.store.go_live(
            generation.number,
            generation.complete_through,
            self.desired.id,
            rollback=rollback,
            may=may,
            last=last,
            then=replace,
        )

    def went_live(self, generation: Generation) -> None:
        """Note that this process serves the version now, by its own doing or by another process's."""
        if not self.swapped:
            self.swapped = True
            log.info("%s is live", self.version)
            self._metrics.swaps.labels("rollback" if self.desired.kind == "rollback" else "done").inc()
            self._metrics.serve(generation.manifest, generation.encoder.form)

    def _tell(self, done: int, total: int) -> None:
        self.done, self.total, self.reason = done, total, None
        self._metrics.build(done, total, self.eta_seconds)

    async def _fail(self, reason: str) -> None:
        log.error("%s does not come to live: %s", self.version, reason)
        self.state, self.reason = FAILED, reason
        self._metrics.swaps.labels("failed").inc()
        if self.version == self._corpus.live.generation.version:  # in another form: it stays as it is
            return
        while True:
            try:
                await self._corpus.store.keep_verdict(self.version, Verdict(FAILED, reason), self.desired.id)
            except PASSING:
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    def _give_up(self) -> None:
        """Follow writes no longer, unless it is kept for a rollback anyway.

        On the writer's thread, behind a swap that may have begun in the moment when it was dropped.
        """
        live, generation = self._corpus.live, self.generation
        if generation is None or generation.is_rollback_target:
            return

        with contextlib.suppress(Unhealthy):  # the writer has stopped, and the service closes everything
            self._corpus.store.after_writes(partial(live.leave_unless_live, generation))


class _LastDocuments:
    """Embeds the few documents that a version lacks at the moment of its swap, because they were just
    written.

    Created on the event loop, and called on a thread of the store while writes wait.
    """

    def __init__(self, corpus: Corpus, generation: Generation) -> None:
        self._corpus = corpus
        self._generation = generation
        self._loop = asyncio.get_running_loop()
        self._seconds = LAST_SECONDS

    def __call__(self, lacking: Mapping[int, Unembedded]) -> Mapping[int, Embedding] | None:
        """Returns embeddings of documents, by revision. None: it took too long or failed."""
        work = self._corpus.embed_last(self._generation, lacking)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(self._seconds)
        except (TimeoutError, ServiceError) as error:  # Its builder meets the error again.
            future.cancel()
            log.info("%s is not live yet: %s", self._generation.version, safe_message(error))
            self._seconds = min(2 * self._seconds, MOST_LAST_SECONDS)
            return None

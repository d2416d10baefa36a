"""One version on its way to live: open, verify, warm, build its index, swap.

    opening ──▶ building ──▶ ready ──▶ live            ready waits for a request when SIMILE_ACTIVATE=manual

While its documents are embedded it follows every write, and a last look inside the swap's own transaction
makes sure that no document lacks a vector. The swap itself is a row in the database, then one assignment,
both on the writer's thread between two commits: whoever borrowed before keeps the old model with the old
index, whoever comes after gets the new ones.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial

from models.encoder import Encoder
from models.errors import ModelError
from models.proof import check_golden
from models.store import Store, Wish
from service.build import Builder
from service.documents import last_revision
from service.errors import Backend, Overloaded, Storage, Unhealthy
from service.form import form
from service.generations import FAILED, Verdict, begin, go_live, judge
from service.library import Library
from service.live import Generation, Retired
from service.metrics import Metrics
from service.revisions import lacking
from service.settings import Settings
from service.writer import Transaction

log = logging.getLogger(__name__)

BUILDING, READY = "building", "ready"
RETRY_SECONDS = 2.0
ATTEMPTS = 5  # at what may pass but did not: a disk that fails, an index that cannot follow
LEFT_OUT_SHARE = 0.01  # a model that fails on more of the documents than this does not come to live


class Swap:
    """One attempt. `state`, `done`, `total` and `reason` tell how far it is."""

    def __init__(
        self, wish: Wish, store: Store, library: Library, settings: Settings, metrics: Metrics
    ) -> None:
        self.wish = wish
        self.state = BUILDING
        self.done, self.total = 0, 0
        self.reason: str | None = None
        self.swapped = False  # it is live; its task may have a moment to go
        self.generation: Generation | None = None
        self._store = store
        self._library = library
        self._settings = settings
        self._metrics = metrics
        self._approved = asyncio.Event()
        self.renew(wish)

    @property
    def version(self) -> str:
        return self.wish.version

    def renew(self, wish: Wish) -> None:
        """The same version, perhaps asked for more firmly; never less."""
        if self.wish.kind == "want":
            self.wish = wish
        if self._settings.activate == "auto" or wish.kind != "want":
            self._approved.set()

    async def run(self) -> None:
        """Until the version is live, or has failed; the reason is stored then, and it is not tried again."""
        try:
            await self._attempts()
        except (ModelError, Backend) as error:
            await self._fail(getattr(error, "message", None) or str(error))
        except Exception as error:
            log.exception("The swap to %s failed", self.version)
            await self._fail(f"{type(error).__name__}: {error}")
        finally:
            self._metrics.build(0, 0)
            if not self.swapped:
                self._give_up()

    async def _attempts(self) -> None:
        """Until it is live, or a ModelError when none of some attempts came to an end."""
        for _ in range(ATTEMPTS):
            if await self._attempt():
                return
            await asyncio.sleep(RETRY_SECONDS)
        raise ModelError(self.reason or "Its index could not follow the writes.")

    async def _attempt(self) -> bool:
        """Open, build and swap. False when it must begin anew with what is stored."""
        try:
            generation = self.generation = await self._open()
            with generation.held():
                await self._build(generation)
        except Retired:
            log.warning("The index of %s has a gap; it is loaded again", self.version)
        except OSError as error:
            log.warning("Opening %s failed: %s", self.version, error)
            self.reason = str(error)
        else:
            return True
        return False

    async def _build(self, generation: Generation) -> None:
        """Until it is live."""
        builder = Builder(self._library, generation, self._tell, self._settings.build_rate)
        self.state = BUILDING
        await self._patiently(builder.warm)
        if not generation.loaded:
            await self._patiently(builder.load)
            generation.loaded = True
        while True:
            await self._patiently(builder.embed)
            left_out = generation.left_out
            if left_out > LEFT_OUT_SHARE * len(generation.index):
                raise ModelError(f"It fails on {left_out} of the documents; the log names them.")
            generation.whole = True
            self.state = READY
            self.reason = f"{left_out} documents left out" if left_out else None
            await self._approved.wait()
            if await self._library.writer.run(partial(self._swap, generation)):
                return

    async def _patiently(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do it, waiting for what may pass: a full queue, a full disk."""
        while True:
            try:
                await work()
            except (Overloaded, Storage, Unhealthy) as error:
                log.warning("Building %s waits %g s: %s", self.version, RETRY_SECONDS, error.message)
                self.reason = error.message
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _open(self) -> Generation:
        """The generation, following every write from now on: the one still kept warm, or opened anew."""
        live, writer = self._library.live, self._library.writer
        for follower in live.followers:
            if follower.version == self.version:
                number = await writer.run(
                    partial(begin, manifest=follower.manifest, form=form(follower.manifest))
                )
                if follower.number == number:
                    return follower
        encoder = await asyncio.to_thread(self._open_encoder)
        manifest = encoder.manifest
        number = await writer.run(partial(begin, manifest=manifest, form=form(manifest)))
        generation = Generation(number, encoder)
        live.follow(generation)
        return generation

    def _open_encoder(self) -> Encoder:
        """Every byte verified, and the first forward passes give the vectors it was published with."""
        encoder = self._store.open(self.version)
        check_golden(encoder, self._store.folder(self.version))
        return encoder

    def _swap(self, generation: Generation, transaction: Transaction) -> bool:
        """The swap, on the writer's thread. False when there is more to embed, or its index has a gap."""
        started = time.monotonic()
        connection, live = transaction.connection, self._library.live
        if generation.retired or lacking(connection, generation.number, generation.complete_to, 1):
            return False
        rollback = self.wish.kind == "rollback"
        go_live(transaction, generation.number, self.wish.id, rollback=rollback)
        left, last = live.generation, last_revision(connection)

        def replace() -> None:
            left.complete_to = last  # what it lacks after a rollback can only be newer
            live.replace(generation)
            self.swapped = True
            log.info("%s is live", self.version)
            self._metrics.swaps.labels("rollback" if rollback else "done").inc()
            self._metrics.serve(generation.version, generation.manifest.fingerprint)
            self._metrics.swap_pause_seconds.observe(time.monotonic() - started)

        transaction.then.append(replace)
        return True

    def _tell(self, done: int, total: int) -> None:
        self.done, self.total, self.reason = done, total, None
        self._metrics.build(done, total)

    async def _fail(self, reason: str) -> None:
        log.error("%s does not come to live: %s", self.version, reason)
        self.state, self.reason = FAILED, reason
        self._metrics.swaps.labels("failed").inc()
        verdict = partial(judge, version=self.version, verdict=Verdict(FAILED, reason), wish=self.wish.id)
        while True:
            try:
                await self._library.writer.run(verdict)
            except Storage:
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    def _give_up(self) -> None:
        """Follow writes no longer, unless it is kept for a rollback anyway.

        On the writer's thread, behind a swap that may have begun in the moment when it was dropped.
        """
        live, generation = self._library.live, self.generation
        if generation is None or generation.kept:
            return

        def leave(_: object) -> None:
            if live.generation is not generation:
                live.leave(generation)

        with contextlib.suppress(Unhealthy):  # the writer has stopped, and the service closes everything
            self._library.writer.submit(_nothing).add_done_callback(leave)


def _nothing(transaction: Transaction) -> None:
    """A job that only has its turn."""

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
from functools import partial

from models.encoder import Encoder
from models.errors import ModelError
from models.proof import check_golden
from models.store import Store, Wish
from service.build import Builder
from service.documents import last_revision
from service.errors import Backend, ServiceError, Storage, Unhealthy
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
        """The same version, perhaps asked for more firmly."""
        self.wish = wish
        if self._settings.activate == "auto" or wish.kind != "want":
            self._approved.set()

    async def run(self) -> None:
        """Until the version is live, or has failed; the reason is stored then, and it is not tried again."""
        swapped = False
        try:
            while not (swapped := await self._attempt()):
                pass
            log.info("%s is live", self.version)
            self._metrics.swaps.labels("rollback" if self.wish.kind == "rollback" else "done").inc()
        except (ModelError, OSError, Backend) as error:
            await self._fail(getattr(error, "message", None) or str(error))
        except Exception as error:
            log.exception("The swap to %s failed", self.version)
            await self._fail(f"{type(error).__name__}: {error}")
        finally:
            self._metrics.build(0, 0)
            if not swapped:
                self._give_up()

    async def _attempt(self) -> bool:
        """Build and swap. False when it must be tried again, from where it is: what hindered it may pass."""
        try:
            generation = self.generation = await self._open()
            with generation.held():
                return await self._build(generation)
        except Retired:
            log.warning("The index of %s has a gap; it is loaded again", self.version)
        except Backend:
            raise
        except ServiceError as error:  # a full queue, a full disk
            log.warning("Building %s waits %g s: %s", self.version, RETRY_SECONDS, error.message)
            self.reason = error.message
            await asyncio.sleep(RETRY_SECONDS)
        return False

    async def _build(self, generation: Generation) -> bool:
        builder = Builder(self._library, generation, self._tell, self._settings.build_rate)
        if not generation.whole:
            await builder.load()
        while True:
            await builder.embed()
            if builder.left_out > LEFT_OUT_SHARE * len(generation.index):
                raise ModelError(f"It fails on {builder.left_out} of the documents; the log names them.")
            generation.whole = True
            self.state = READY
            self.reason = f"{builder.left_out} documents left out" if builder.left_out else None
            await self._approved.wait()
            if await self._library.writer.run(partial(self._swap, generation)):
                return True

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
        go_live(transaction, generation.number, self.wish.id, rollback=self.wish.kind == "rollback")
        left, last = live.generation, last_revision(connection)

        def replace() -> None:
            left.complete_to = last  # what it lacks after a rollback can only be newer
            live.replace(generation)
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

        def leave() -> None:
            if live.generation is not generation:
                live.leave(generation)

        with contextlib.suppress(Unhealthy):  # the writer has stopped, and the service closes everything
            self._library.writer.submit(lambda transaction: transaction.then.append(leave))

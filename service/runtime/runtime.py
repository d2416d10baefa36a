"""Everything that the routes use, opened and closed together.

open()   own the data directory, publish the first model, open the active one       (blocking)
start()  workers, writer, index from the store; behind the open port, what the index lacks
stop()   finish what was accepted, close
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from models import cpus
from models.encoder import ONNX
from models.engines.form import FP32
from models.store import Store
from service import outages
from service.batching import tuning
from service.batching.batcher import Batcher
from service.batching.cache import Cache
from service.batching.single_text import threads_alone
from service.batching.sizes import sizes_on
from service.corpus.corpus import Library, apply
from service.corpus.examples import load_examples
from service.errors import ServiceError
from service.http.body_budget import MEGABYTE
from service.index.gpu import Owner, owner_of
from service.index.snapshots import tidy
from service.lifecycle.builder import Builder, load_all
from service.lifecycle.catch_up import CatchUp
from service.lifecycle.controller import Watcher
from service.lifecycle.model_loader import Opener, require_device, wanted_form
from service.lifecycle.startup import active_generation
from service.live import Generation, Live, Retired
from service.observability import logs
from service.observability.metrics import Metrics
from service.observability.tracing import Tracing
from service.runtime import gauges
from service.runtime.data_lock import Ownership
from service.runtime.health import Health
from service.runtime.scheduled import show_schedule
from service.runtime.watchdog import Heartbeat, Supervisor, lasting
from service.settings import Settings
from service.store import last_known
from service.store.documents import collections
from service.store.filters.grammar import indexed_fields
from service.store.generations import kept_numbers
from service.store.reader import Documents
from service.store.schema import DATABASE, connect, migrate
from service.store.secondary_indexes import bring_up_to_date
from service.store.writer import Changes, Transaction, Writer

log = logging.getLogger(__name__)

RETRY_SECONDS, MOST_SECONDS = 2, 60
LARGE_BYTES = 512 * MEGABYTE
WARM_BATCHES = 3
WARM_TEXTS = ["The first forward passes say how fast this machine is with such a model."] * 25


class Runtime:
    """One service. `create_app` starts and stops it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.tracing = Tracing() if settings.otel else None
        self.leaving = False  # a stop signal came: not ready, and still serving
        self.stopping = False  # nothing new is taken any more
        self.declared = indexed_fields(settings.indexed_fields)
        self.ready = threading.Event()  # set once, when the start is complete
        self.tuning = tuning.known(settings)
        self.large_bodies = asyncio.Lock()  # one is parsed at a time
        self.beat: Callable[[], None] = lambda: None  # for whoever watches the supervisor
        self.store = Store(settings.models_dir)
        cache_bytes = settings.cache_mb * MEGABYTE
        self.batcher = Batcher(
            self.metrics,
            workers=self.tuning.layout.workers,
            max_queue_tokens=settings.max_queue_tokens,
            max_queue_seconds=settings.max_queue_seconds,
            hang_seconds=settings.hang_seconds,
            cache=Cache(cache_bytes, self.metrics) if cache_bytes else None,
            sizes=sizes_on(settings.place),
            alone_threads=self._alone_threads(self.tuning.layout),
        )
        self.supervisor: Supervisor
        self.health: Health
        self.live: Live
        self.library: Library
        self.watcher: Watcher
        self._progress = "starting"
        self._opener: Opener
        self._catch_up: CatchUp
        self._ownership: Ownership | None = None
        self._owner: Owner | None = None  # of the GPU where large indexes are searched
        self._loop: asyncio.AbstractEventLoop
        self._torn = asyncio.Event()  # the index in service could not follow a write
        self._tears = 0  # how often that was
        self._follows = False  # what is wanted is followed
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def database(self) -> Path:
        return self.settings.data_dir / DATABASE

    def open(self) -> None:
        """Own the data directory and open the active model. Does nothing when it is open already.

        Raises:
            StartupError: somebody else has the directory, there is no model to serve, or not on this machine.

        """
        if self._ownership is not None:
            return
        form = wanted_form(self.settings)
        require_device(self.settings)  # before anything is written, or published for minutes
        self._opener = opener = Opener(
            self.store,
            form,
            self.tuning.layout,
            deterministic=self.settings.deterministic,
            place=self.settings.place,
        )
        with contextlib.ExitStack() as undo:
            if self.tracing is not None:
                self.tracing.start()
                undo.callback(self.tracing.stop)
            self._owner = owner_of(self.settings.index_device)
            if self._owner is not None:
                undo.callback(self._owner.close)
            ownership = Ownership(self.settings.data_dir)
            undo.callback(ownership.release)
            last_known.refuse_loss(self.settings.data_dir)
            migrate(self.database)
            self._connection = connect(self.database)
            undo.callback(self._connection.close)
            bring_up_to_date(self._connection, self.declared)
            tidy(self.settings.snapshots_dir, collections(self._connection), kept_numbers(self._connection))
            generation = active_generation(self._connection, opener, self.settings, self._owner)
            last_known.note(self.settings.data_dir)
            self.live = Live(generation, on_close=self.batcher.forget)
            undo.pop_all()
        self._ownership = ownership

    def tune(self) -> None:
        """Between `open` and `start`: measure how many workers there should be, unless that is known."""
        generation = self.live.generation
        size = (self.store.folder(generation.version) / ONNX).stat().st_size
        if self.tuning.settled or size > LARGE_BYTES:  # as much memory once more would be needed
            return
        if generation.encoder.form != FP32:  # OpenVINO has a stream of one thread for each worker
            return
        reopen = partial(self.store.open, generation.version, deterministic=self.settings.deterministic)
        try:
            tuned = tuning.tune(self.settings, reopen)
            layout, before = tuned.layout, generation.encoder
            if layout.threads != before.threads:
                generation.encoder = reopen(layout.threads)  # where that fails, the one before is still open
                before.close()
            self.tuning = tuned
            self._opener.layout = layout
            self.batcher.resize(layout.workers, self._alone_threads(layout))
        except Exception:  # it would have been faster perhaps, and runs as well without
            log.exception("How many workers are best could not be measured")

    async def start(self) -> None:
        """Everything that must stand before the port opens; the rest goes on behind it."""
        await asyncio.to_thread(self.open)
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(logs.on_loop)
        generation = self.live.generation
        self.batcher.start()
        writer = Writer(self._connection, self._on_commit, self.metrics.write_seconds.observe)
        self.library = Library(
            self.live,
            self.batcher,
            Documents(self.database),
            writer,
            passages=self.settings.passages,
            max_collections=self.settings.max_collections,
        )
        self._catch_up = CatchUp(self.library)
        self.library.on_gap = self._catch_up.note
        hang_seconds = self.settings.hang_seconds
        heartbeat = Heartbeat(asyncio.get_running_loop(), hang_seconds)
        self.supervisor = Supervisor([self.batcher, writer, heartbeat], hang_seconds, self.beat)
        self.supervisor.start()
        self.health = Health(self.live, self.batcher, self.supervisor)
        self.watcher = Watcher(self._opener, self.library, self.settings, self.metrics)
        self.batcher.alone.has_room = lambda: not self.watcher.builds
        self.watcher.published = await asyncio.to_thread(self.store.names)
        gauges.show(self.metrics, self.live, self.health, self.not_ready)
        gauges.show_machine(self.metrics, {"data": self.settings.data_dir, "models": self.store.root})
        self.metrics.swap_waiting.set_function(lambda: self.watcher.waits)
        show_schedule(self.metrics, self.store.root)
        self._tasks.append(asyncio.create_task(gauges.sample(self.metrics)))
        try:
            for _ in range(WARM_BATCHES):  # the first is slow; the others teach the pace
                await self.batcher.embed(generation.encoder, WARM_TEXTS, anew=True)
        except ServiceError as error:  # the port opens all the same, and /health says why
            log.warning("The model fails: %s", error.message)
        self._keep("Looking after the health", self.health.run)
        self._keep("Noting how far the store is", partial(last_known.keep_noting, self.settings.data_dir))
        self._keep("Making the index whole", self._keep_whole)

    async def stop(self) -> None:
        """Finish every accepted write and close, in the order of use."""
        self.stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._catch_up.stop()
        await asyncio.to_thread(self._close)

    def not_ready(self) -> str | None:
        """Why the service takes no new work, None when it does."""
        if self.leaving or self.stopping:
            return "The service is stopping."
        if self.supervisor.illness is not None:
            return f"Not well: {self.supervisor.illness}."
        return (
            None
            if self.ready.is_set() and self.live.generation.whole
            else f"Not ready yet: {self._progress}."
        )

    def scrape(self) -> bytes:
        """Every series as Prometheus text; blocks for some milliseconds."""
        swap = self.watcher.swap
        return gauges.scrape(self.metrics, self.live, None if swap is None else swap.generation)

    def _alone_threads(self, layout: tuning.Layout) -> int:
        return threads_alone(self.settings.lone_threads, layout, cpus.available())

    def _keep(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(lasting(name, work)))

    def _close(self) -> None:
        self.batcher.stop()
        self.library.close()
        self.library.writer.stop()
        self.library.documents.close()
        last_known.note(self.settings.data_dir)
        self.live.close()
        if self._owner is not None:
            self._owner.close()
        if self.tracing is not None:
            self.tracing.stop()
        self.supervisor.stop()  # last: what hangs until here ends the process
        if self._ownership is not None:
            self._ownership.release()
            self._ownership = None

    async def _keep_whole(self) -> None:
        """Make the index in service whole: at the start, and again when it could not follow a write.

        What is wanted is followed from the first try on, whatever came of it, because going back to the
        version before may be what makes the service ready.
        """
        pause = RETRY_SECONDS
        while True:
            self._torn.clear()
            try:
                await self._make_whole(self.live.generation)
            except Retired:  # another version took its place
                continue
            except ServiceError as error:  # a failing model, a full queue, a full disk: all may pass
                outages.warn(log, f"Not ready yet, trying again in {RETRY_SECONDS} s: {error.message}")
                self._progress = error.message
                await asyncio.sleep(RETRY_SECONDS)
            except Exception as error:
                log.exception("The index could not be made whole; it is tried again in %d s", pause)
                self._progress = f"the index could not be made whole ({logs.told(error)}); it is tried again"
                await asyncio.sleep(pause)
                pause = min(2 * pause, MOST_SECONDS)
            else:
                pause = RETRY_SECONDS
                await self._torn.wait()
            finally:
                self._follow()

    async def _make_whole(self, generation: Generation) -> None:
        """Load and embed what the index lacks; at the start load the examples, too."""
        tears = self._tears
        if not generation.whole:
            if not generation.loaded:
                await self.library.writer.run(partial(load_all, generation=generation))
                generation.complete_to, generation.loaded = 0, True
            self._follow()
            await Builder(self.library, generation, self._tell).embed()
            generation.whole = True
            if self._tears != tears:  # the writer's thread may have said so in between: once more
                generation.loaded = generation.whole = False
                self._torn.set()
                return
        if not self.ready.is_set() and self.live.generation.whole:
            self._progress = "loading the example documents"
            await load_examples(self.library)
            self.ready.set()

    def _follow(self) -> None:
        if not self._follows and not self.stopping:
            self._follows = True
            self._keep("Following what is wanted", self.watcher.run)

    def _tell(self, done: int, total: int) -> None:
        self._progress = f"{done} of {total} documents are in the index"

    def _on_commit(self, changes: Changes) -> None:
        """On the writer's thread, before the write is answered."""
        committed = time.monotonic()
        for generation in self.live.generations:
            try:
                apply(generation, changes)
            except Exception:  # the write is on disk all the same, and an index can be made anew from there
                log.exception("The index of %s could not follow a write", generation.version)
                if generation is self.live.generation:
                    self._reload(generation)
                else:
                    self.live.leave(generation)
        self.metrics.index_lag_seconds.observe(time.monotonic() - committed)

    def _reload(self, generation: Generation) -> None:
        """For the version in service, on the writer's thread; what this cannot mend is mended behind it."""
        try:
            if load_all(Transaction(self._connection), generation):
                return
            log.error("The store has damaged vectors; their texts are embedded again")
        except Exception:  # the write is kept, but what the index lacks must not be searched around
            log.exception("The index could not be loaded; it is tried again")
        self._tears += 1
        generation.loaded = generation.whole = False
        self._progress = "the index could not follow a write, and is loaded again"
        self._loop.call_soon_threadsafe(self._torn.set)

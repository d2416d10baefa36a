"""Creates, opens and closes all parts of the service.

- `Runtime.open` locks the data directory, publishes the first model, and opens the active version. It blocks.
- `Runtime.start` starts the workers, the writer and the background tasks. These tasks complete the index
  after the port opens.
- `Runtime.stop` finishes accepted requests and closes all parts.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated

from fastapi import Depends, Request

from models import cpus
from models.errors import install_command
from models.store import ModelStore
from service.active import ActiveGeneration, IndexesOf, in_memory, in_store
from service.auth.access import hash_filter, hash_visitor
from service.batching.batcher import Batcher
from service.batching.cache import Cache
from service.batching.planner import sizes_on
from service.batching.single_text import threads_for_single_text
from service.batching.workers import layout_for
from service.corpus.corpus import Corpus
from service.corpus.recent_searches import RecentSearches
from service.corpus.suggestions import Suggestions
from service.corpus.warming import keep_warm
from service.errors import ServiceError, StartupError, Unhealthy
from service.http.bodies import MEGABYTE
from service.index.gpu import GpuThread, open_gpu
from service.index.ivf_snapshots import tidy
from service.lifecycle.builder import CatchUp
from service.lifecycle.controller import Controller
from service.lifecycle.live_tests import LiveTests
from service.lifecycle.model_loader import ModelLoader, active_generation, require_device
from service.lifecycle.rerankers import Rerankers
from service.observability import logs
from service.observability.metrics import Metrics
from service.observability.tracing import Tracing
from service.runtime import gauges
from service.runtime.data_lock import locked
from service.runtime.health import Health, Readiness
from service.runtime.housekeeping import MapMaker, keep_expiring, keep_filling
from service.runtime.index_keeper import IndexKeeper
from service.runtime.watchdog import Heartbeat, Watchdog, lasting
from service.settings import Settings
from service.store.filters.grammar import indexed_fields
from service.store.protocol import DocumentStore
from service.store.scheduling import QueuedRows
from service.store.sqlite.store import SqliteStore

log = logging.getLogger(__name__)

WARM_BATCHES = 3
WARM_TEXTS = ["The first forward passes say how fast this machine is with such a model."] * 25


class Runtime:
    """All parts of the service that routes use. The lifespan of the app calls `start` and `stop`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.tracing = Tracing() if settings.otel else None
        self.leaving = False  # A stop signal arrived: `/ready` is red, and requests are still served.
        self.stopping = False  # New requests are rejected.
        self.ready = threading.Event()  # Set once, when the start is complete.
        self.layout = layout_for(settings)
        self.large_bodies = asyncio.Lock()  # Held while a large body is parsed.
        self.beat: Callable[[], None] = lambda: None  # The watchdog calls it after each check.
        self.store = ModelStore(settings.models_dir)
        self.searches = RecentSearches() if settings.events else None
        self.queued_rows = QueuedRows(settings.max_queue_events)
        cache_bytes = settings.cache_mb * MEGABYTE
        self.batcher = Batcher(
            self.metrics,
            workers=self.layout.workers,
            max_queue_tokens=settings.max_queue_tokens,
            max_queue_seconds=settings.max_queue_seconds,
            hang_seconds=settings.hang_seconds,
            cache=Cache(cache_bytes, self.metrics) if cache_bytes else None,
            sizes=sizes_on(settings.place),
            single_text_threads=threads_for_single_text(
                settings.single_text_threads, self.layout, cpus.available()
            ),
        )
        self.trusts: Callable[[str], bool] = lambda _: True  # Whether a key is trusted, by its name.
        self._documents: DocumentStore  # `open` and `start` create the other parts.
        self._opened: contextlib.ExitStack | None = None  # Closes what `open` has opened.
        self._follows = False  # The controller works towards requested versions.
        self._tasks: list[asyncio.Task[None]] = []

    def open(self) -> None:
        """Locks the data directory or opens the database, then opens the active version.

        A second call does nothing.

        Raises:
            StartupError: Another process owns the data directory, or no model can be served.

        """
        if self._opened is not None:
            return
        self._loader = loader = ModelLoader(self.store, self.settings, self.layout)
        require_device(self.settings)  # Fails before files are written or a model is published.
        with contextlib.ExitStack() as opened:
            if self.tracing is not None:
                self.tracing.start()
                opened.callback(self.tracing.stop)
            gpu = open_gpu(self.settings.index_device)
            if gpu is not None:
                opened.callback(gpu.close)
            if self.settings.database is None:
                opened.enter_context(locked(self.settings.data_dir))
            after = opened.enter_context(contextlib.ExitStack())
            indexes = self._open_store(gpu)
            opened.callback(self._documents.close)
            generation = active_generation(self._documents, loader, self.settings, indexes)
            self._renew_id()
            secret = self._documents.visitor_secret().encode()
            self.hash_visitor, self.hash_filter = partial(hash_visitor, secret), partial(hash_filter, secret)
            self.active = ActiveGeneration(generation, on_close=self.batcher.forget)
            after.callback(self.active.close)  # After the store: its last jobs may still load an index.
            self._opened = opened.pop_all()

    def _renew_id(self) -> None:
        """Writes a new id into the models folder. If the folder is read-only, the old id stays."""
        try:
            self.store.renew_id()
        except OSError as error:
            if self.store.id() is None:
                log.warning(
                    "The models folder %s gets no id, because it cannot be written (%s). A retraining that "
                    "reads this service cannot tell whether it publishes into this folder.",
                    self.store.root,
                    error.strerror,
                )

    def _open_store(self, gpu: GpuThread | None) -> IndexesOf:
        """Opens the document store. Returns a factory of indexes for it, which may use a GPU.

        Raises:
            StartupError: The store cannot be used.

        """
        settings = self.settings
        if settings.database is None:
            store = self._documents = SqliteStore(settings.data_dir, settings.indexed_fields)
            tidy(settings.snapshots_dir, *store.indexed())
            return in_memory(settings.snapshots_dir, gpu)
        try:  # The extra is optional.
            from service.store.postgres.store import PostgresStore  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise StartupError(
                f"SIMILE_DATABASE needs the extra postgres: {install_command('postgres')}"
            ) from error

        shared = self._documents = PostgresStore(
            settings.database.get_secret_value(),
            indexed_fields(settings.indexed_fields),
            connections=settings.database_connections,
            answer_seconds=settings.hang_seconds,
        )
        gauges.show_database(self.metrics, shared)
        return in_store(shared.size)

    async def start(self) -> None:
        """Starts everything that must run before the port opens. Background tasks complete the rest later."""
        await asyncio.to_thread(self.open)
        asyncio.get_running_loop().set_exception_handler(logs.on_loop)
        self.batcher.start()
        self.corpus = Corpus(self.active, self.batcher, self._documents, self.settings)
        self.corpus.judged.trusts = self.trusts
        self.suggestions = Suggestions(self._documents, self.settings.suggest_visitors, self.trusts)
        self._index = IndexKeeper(self.corpus, self.metrics, self.ready, self._follow)
        self._documents.start(self._index.on_commit, self.metrics.write_seconds.observe)
        self._catch_up = CatchUp(self.corpus)
        self.corpus.on_gap = self._catch_up.note
        hang_seconds = self.settings.hang_seconds
        heartbeat = Heartbeat(asyncio.get_running_loop(), hang_seconds)
        self.watchdog = Watchdog([self.batcher, self._documents, heartbeat], hang_seconds, self.beat)
        self.watchdog.start()
        self.health = Health(self.active, self.batcher, self.watchdog)
        self.controller = Controller(self._loader, self.corpus, self.settings, self.metrics)
        self._serve_reranker()
        self.live_tests = LiveTests(
            self.store, self.corpus, self.controller, self.settings, self.metrics, self.trusts
        )
        self.readiness = Readiness(
            lambda: self.leaving or self.stopping,
            self.watchdog,
            self._documents,
            self.controller.following,
            self._index,
        )
        self.batcher.single_text.has_room = lambda: not self.controller.builds
        self.controller.published = await asyncio.to_thread(self.store.names)
        alone = self.settings.database is None
        folders = ({"data": self.settings.data_dir} if alone else {}) | {"models": self.store.root}
        gauges.show(self.metrics, self.active, self.health, self.readiness, folders)
        self.metrics.replicas.set_function(lambda: 1 + self._documents.others)
        self.metrics.swap_waiting.set_function(lambda: self.controller.waits)
        self._tasks.append(asyncio.create_task(gauges.sample(self.metrics)))
        try:
            for _ in range(WARM_BATCHES):  # The first is slow. The others measure the throughput.
                for encoder in self.active.generation.encoders:
                    await self.batcher.embed(encoder, WARM_TEXTS, bypass_cache=True)
        except ServiceError as error:  # The port opens anyway, and `/health` shows the reason.
            log.warning("The model fails: %s", error.message)
        self._keep("The task of /health", self.health.run)
        self.active.lost = lambda: self._documents.lost or self.controller.following.behind
        follow = self.controller.following.follow
        in_touch = partial(self._documents.keep_in_touch, lambda: self.active.generation.number, follow)
        self._keep("The lease of the replica", in_touch)
        await self._documents.joined()
        self._keep("The position of the store", self._documents.keep_noting)
        self._keep_store()
        if self.settings.ranking:
            self._keep("Reading judged queries", self.corpus.judged.keep)
            self._keep("Making token vectors", self.corpus.tokens.keep)
        self._keep("Completing the index", self._index.keep_whole)
        if self.settings.live_test:
            self._keep("The live test", self.live_tests.run)
        if self.settings.map_documents and alone:
            self._keep("Making maps", MapMaker(self.corpus, self.settings).run)

    async def stop(self) -> None:
        """Finishes accepted writes and closes all parts."""
        self.stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._catch_up.stop()
        await asyncio.to_thread(self._close)

    def scrape(self) -> bytes:
        """Returns all metrics in Prometheus' text format. Blocks for some milliseconds."""
        swap = self.controller.swap
        return gauges.scrape(self.metrics, self.active, None if swap is None else swap.generation)

    def _keep(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(lasting(name, work)))

    def _keep_store(self) -> None:
        """Starts the tasks that need only the store."""
        expire = partial(keep_expiring, self._documents, self.settings.events_seconds)
        self._keep("Deleting old events", expire)
        self._keep("Reading candidates of suggestions", self.suggestions.keep)
        fields = indexed_fields(self.settings.indexed_fields)
        warm = partial(keep_warm, self._documents, fields, self.settings.corrects)
        self._keep("Reading terms and values", warm)
        self._keep("Computing checksums", partial(keep_filling, self._documents))

    def _serve_reranker(self) -> None:
        self.rerankers = Rerankers(
            self._loader, self.active, self.batcher, self.controller, self.settings, self.metrics
        )
        self._keep("The reranker", self.rerankers.run)

    def _follow(self) -> None:
        if not self._follows and not self.stopping:
            self._follows = True
            self._keep("The controller of versions", self.controller.run)

    def _close(self) -> None:
        self.batcher.stop()
        self.corpus.close()
        if self._opened is not None:
            self._opened.close()
        self.watchdog.stop()  # Last, so that it still ends a process that hangs while it closes.
        self._opened = None


def get_runtime(request: Request) -> Runtime:
    """Returns the runtime of the app that handles a request.

    Raises:
        Unhealthy: The service is stopping.

    """
    runtime: Runtime = request.app.state.runtime
    if runtime.stopping:
        raise Unhealthy("The service is stopping. Send again to the next one.", retry_after_seconds=1)
    return runtime


Service = Annotated[Runtime, Depends(get_runtime)]  # parameter of an endpoint

"""Everything that the routes use, opened and closed together.

open()   own the data directory, publish the first model, open the active one       (blocking)
start()  workers, writer, index from the store; behind the open port, what the index lacks
stop()   finish what was accepted, close
"""

import asyncio
import contextlib
import logging
import threading
from pathlib import Path

from models.store import Store
from service import cpus
from service.activation import active_generation
from service.batcher import Batcher
from service.build import Builder, load_all
from service.documents import Documents
from service.errors import ServiceError
from service.examples import load_examples
from service.library import Library, apply
from service.live import Generation, Live, Retired
from service.metrics import Metrics
from service.ownership import Ownership
from service.scheduled import show_schedule
from service.schema import connect, migrate
from service.settings import Settings
from service.watch import Watcher
from service.writer import Changes, Transaction, Writer

log = logging.getLogger(__name__)

DATABASE = "simile.db"
RETRY_SECONDS = 2


class Runtime:
    """One service. `create_app` starts and stops it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.stopping = False
        self.ready = threading.Event()  # set once, when the start is complete
        self.workers = settings.workers or cpus.available()
        self.store = Store(settings.models_dir)
        self.batcher = Batcher(self.metrics, workers=self.workers, max_queue_tokens=settings.max_queue_tokens)
        self.live: Live
        self.library: Library
        self.watcher: Watcher
        self._progress = "starting"
        self._ownership: Ownership | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def database(self) -> Path:
        return self.settings.data_dir / DATABASE

    def open(self) -> None:
        """Own the data directory and open the active model. Does nothing when it is open already.

        Raises:
            StartupError: somebody else has the directory, or there is no model to serve.

        """
        if self._ownership is not None:
            return
        with contextlib.ExitStack() as undo:
            ownership = Ownership(self.settings.data_dir)
            undo.callback(ownership.release)
            migrate(self.database)
            self._connection = connect(self.database)
            undo.callback(self._connection.close)
            self.live = Live(active_generation(self._connection, self.store, self.settings))
            undo.pop_all()
        self._ownership = ownership

    async def start(self) -> None:
        """Everything that must stand before the port opens; the rest goes on behind it."""
        await asyncio.to_thread(self.open)
        generation = self.live.generation
        self.batcher.start()
        writer = Writer(self._connection, self._on_commit, self.metrics.write_seconds.observe)
        self.library = Library(self.live, self.batcher, Documents(self.database), writer)
        self.watcher = Watcher(self.store, self.library, self.settings, self.metrics)
        self.watcher.published = await asyncio.to_thread(self.store.names)
        self._show()
        try:
            await self.batcher.embed(generation.encoder, ["The first forward pass."])
        except ServiceError as error:  # the port opens all the same, and /health says why
            log.warning("The model fails: %s", error.message)
        self._tasks.append(asyncio.create_task(self._become_ready()))

    async def stop(self) -> None:
        """Finish every accepted write and close, in the order of use."""
        self.stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._close)

    def not_ready(self) -> str | None:
        """Why the service takes no new work, None when it does."""
        if self.stopping:
            return "The service is stopping."
        return (
            None
            if self.ready.is_set() and self.live.generation.whole
            else f"Not ready yet: {self._progress}."
        )

    def _close(self) -> None:
        self.batcher.stop()
        self.library.writer.stop()
        self.library.documents.close()
        self.live.close()
        if self._ownership is not None:
            self._ownership.release()
            self._ownership = None

    async def _become_ready(self) -> None:
        """Load the index, then make it whole, and follow what is wanted meanwhile and from then on.

        Meanwhile too, because going back to the version before may be what makes it ready.
        """
        try:
            await self.library.writer.run(lambda transaction: load_all(transaction, self.live.generation))
            self._tasks.append(asyncio.create_task(self.watcher.run()))
            await self._make_whole(self.live.generation)
        except Exception as error:
            log.exception("The index could not be made whole; start the service again")
            self._progress = f"the index could not be made whole ({type(error).__name__}: {error})"

    async def _make_whole(self, generation: Generation) -> None:
        """Embed what the index lacks, load the examples; after a failure, again until it is done."""
        generation.loaded = True
        builder = Builder(self.library, generation, self._tell)
        while not self.ready.is_set():
            try:
                if generation is self.live.generation:
                    await builder.embed()
                    generation.whole = True
                self._progress = "loading the example documents"
                await load_examples(self.library)
                self.ready.set()
            except Retired:  # another version took its place
                continue
            except ServiceError as error:  # a failing model, a full queue, a full disk: all may pass
                log.warning("Not ready yet, trying again in %d s: %s", RETRY_SECONDS, error.message)
                self._progress = error.message
                await asyncio.sleep(RETRY_SECONDS)

    def _tell(self, done: int, total: int) -> None:
        self._progress = f"{done} of {total} documents are in the index"

    def _on_commit(self, changes: Changes) -> None:
        """On the writer's thread, before the write is answered."""
        for generation in self.live.generations:
            try:
                apply(generation, changes)
            except Exception:  # the write is on disk all the same, and an index can be made anew from there
                log.exception("The index of %s could not follow a write", generation.version)
                if generation is self.live.generation:
                    self._reload(generation)
                else:
                    self.live.leave(generation)

    def _reload(self, generation: Generation) -> None:
        try:
            load_all(Transaction(self._connection), generation)
        except Exception:  # the write is kept, but what the index lacks must not be searched around
            log.exception("The index could not be loaded; start the service again")
            self._progress = "the index could not follow a write nor be loaded again; start the service again"
            generation.whole = False

    def _show(self) -> None:
        """Point the gauges at what they show."""
        generation = self.live.generation
        self.metrics.serve(generation.version, generation.manifest.fingerprint)
        self.metrics.documents.set_function(
            lambda: len(self.live.generation.index) + self.live.generation.missing
        )
        self.metrics.index_missing.set_function(lambda: self.live.generation.missing)
        self.metrics.index_bytes.set_function(lambda: self.live.generation.index.nbytes)
        self.metrics.healthy.set_function(lambda: self.batcher.failure(self.live.generation.encoder) is None)
        self.metrics.ready.set_function(lambda: self.not_ready() is None)
        show_schedule(self.metrics, self.store.root)

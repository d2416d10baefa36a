"""What a worker does with a job: rows of text become rows of ids, or a batch becomes vectors.

A failure belongs to the rows that cause it, and to those that joined them: a batch that fails is halved until
it is known which. Not here: which job is next (queue.py), the thread that it runs on (workers.py).
"""

import asyncio
import logging
import threading
import time
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from service.batching.batch_stats import BatchStats
from service.batching.cache import Cache, Computed, Entry
from service.batching.pace import ThroughputEstimate
from service.batching.planner import cost_of
from service.batching.queue import Queue
from service.batching.request import EmbedCall, Item, Job, Lane
from service.batching.scheduler import Scheduler
from service.batching.single_text import SingleTextSession
from service.batching.sizes import Sizes
from service.batching.tokenizing import tokenise
from service.batching.workers import Worker
from service.errors import Backend, ServiceError, Tokenizer
from service.observability.logs import safe_message

log = logging.getLogger(__name__)


class Jobs:
    """`do` runs on a worker's thread, `fail` on any; calls are answered on `loop`."""

    def __init__(
        self,
        queue: Queue,
        pace: ThroughputEstimate,
        outcomes: BatchStats,
        cache: Cache | None,
        sizes: Sizes,
        alone: SingleTextSession,
    ) -> None:
        self.alone = alone
        self.loop: asyncio.AbstractEventLoop
        self._queue = queue
        self._throughput = pace
        self._stats = outcomes
        self._cache = cache
        self._sizes = sizes
        self._adding = threading.Lock()  # two workers may tokenise rows of one call

    def do(self, worker: Worker, job: Job, scheduler: Scheduler) -> None:
        """Carry out `job`, which was taken from `scheduler`."""
        worker.job = job
        try:
            if job.embed:
                self._embed(worker, job.rows)
            else:
                self._tokenise(worker, job.rows)
        except BaseException as error:  # a bug of ours: it belongs to these rows, and the worker lives on
            log.exception("A batch of %d rows failed outside the model", len(job.rows))
            self._stats.all_failed(job.rows, f"a batch failed: {type(error).__name__}")
            self.fail(job.rows, Backend(f"The batch failed: {type(error).__name__}."))
        worker.job = None
        if not job.embed:
            self._stats.joined(job.rows, self._queue.tokenised(job.rows, scheduler))

    def fail(self, rows: list[Item], error: ServiceError) -> None:
        """Fail the calls of `rows` and of those that joined them; `embed` drops their other rows."""
        everyone = chain.from_iterable(self._queue.release(rows))
        self.on_loop(refuse, [row.call for row in everyone], error)

    def on_loop(self, callback: object, *arguments: object) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(callback, *arguments)  # type: ignore[arg-type]

    def _tokenise(self, worker: Worker, rows: list[Item]) -> None:
        """Give each row its `ids`; one that is refused stays without, and so does one that the cache has."""
        worker.begin(self._throughput.tokenising_may_take(sum(len(row.source) for row in rows)))
        started = time.monotonic()
        refused = tokenise(rows)
        found = self._look_up(rows)
        seconds = time.monotonic() - started
        self._stats.tokenised(rows, seconds)
        self._stats.found(len(found))
        with self._adding:
            for row in rows:
                row.call.tokenise_seconds += seconds / len(rows)
        for row, error in refused:
            if isinstance(error, Tokenizer):
                self._stats.failed(row.call.encoder, "the tokenizer failed; the log says how")
            self.fail([row], error)
        if found:
            self.on_loop(_settle, found, started, 0.0)

    def _look_up(self, rows: list[Item]) -> list[Item]:
        """Name what may be shared. Those that the cache has get their vectors, and lose their `ids`."""
        found: list[Item] = []
        if self._cache is None:
            return found
        for row in rows:
            call = row.call
            if not (call.shares and row.ids):
                continue
            row.name = self._cache.name_of_ids(call.encoder, row.ids, call.normalize)
            if row.name is None or not call.remembers:
                continue
            if call.truncated[row.position]:
                row.spelling = None  # what follows may differ from what another text was cut to
            if entry := self._cache.find_ids(row.name, row.spelling):
                fill(row.call, row.position, entry)
                row.ids = ()
                found.append(row)
        return found

    def _embed(self, worker: Worker, rows: list[Item]) -> None:
        if any(row.call.future.done() for row in rows):
            rows = self._queue.awaited(rows)
        if not rows:
            return
        call = rows[0].call
        lengths = [len(row.ids) for row in rows]
        cost = cost_of(lengths, self._sizes.costs(call.encoder))
        worker.begin(self._throughput.batch_may_take(cost))
        together = {"alone": True} if self.alone.takes(rows) else {}
        started = time.monotonic()
        failure: Exception | None = None
        try:
            vectors = call.encoder.forward([row.ids for row in rows], normalize=call.normalize, **together)
        except Exception as error:  # noqa: BLE001  the model's, whatever it is: answered below
            failure = error
        if failure is not None and together:
            self.alone.failed(call.encoder, failure)
            self._embed(worker, rows)  # once more, by this worker
            return
        if failure is not None:
            left = self._queue.awaited(rows)
            if len(left) < len(rows):  # for one of those who left, or under a session that closed with them
                self._embed(worker, left)
            else:
                self._split(worker, rows, failure)
            return
        seconds = time.monotonic() - started
        self._computed(rows, vectors, started, seconds)
        # Else it is no pace of one worker's, or none of the version in service.
        if not together and call.lane is not Lane.CANDIDATE:
            self._throughput.measured(cost, seconds)
        self._stats.computed(rows, len(rows) * max(lengths), started, seconds)

    def _computed(
        self, rows: list[Item], vectors: NDArray[np.float32], started: float, seconds: float
    ) -> None:
        """`rows` have their vectors: they and those that joined them are answered."""
        finite = np.isfinite(vectors)
        if finite.all():
            self._stats.pass_succeeded(rows[0].call.encoder)
        else:
            self._stats.pass_failed(rows[0].call, "the model gave a vector that is not finite")
            whole = finite.all(axis=1)
            bad = [rows[at] for at in np.flatnonzero(~whole)]
            self.fail(bad, Backend("The model gave a vector with a NaN or an infinity for this input."))
            rows, vectors = [rows[at] for at in np.flatnonzero(whole)], vectors[whole]
        if self._cache is not None:
            self._keep(self._cache, rows, vectors)  # first: whoever comes joins these rows, or finds it kept
        groups = self._queue.release(rows)
        for group, vector in zip(groups, vectors, strict=True):
            for row in group:
                row.call.vectors[row.position] = vector
                row.call.tokens[row.position] = len(row.ids)
        self.on_loop(_settle, list(chain.from_iterable(groups)), started, seconds)

    @staticmethod
    def _keep(cache: Cache, rows: list[Item], vectors: NDArray[np.float32]) -> None:
        """What somebody waits for is kept; a document's vector is kept by the store."""
        kept: list[Computed] = []
        for leader, vector in zip(rows, vectors, strict=True):
            asked = [row for row in (leader, *leader.joined) if row.call.remembers]
            if asked and leader.name is not None:
                spellings = tuple(dict.fromkeys(row.spelling for row in asked if row.spelling is not None))
                kept.append(Computed(leader.name, vector.tobytes(), len(leader.ids), spellings))
        if kept:
            cache.keep(rows[0].call.encoder, kept)

    def _split(self, worker: Worker, rows: list[Item], failure: Exception) -> None:
        """A batch failed: its halves are tried alone, until the rows are known that it belongs to."""
        self._stats.pass_failed(rows[0].call, f"the model failed: {safe_message(failure)}")
        if len(rows) == 1:
            log.error("The model failed on one input", exc_info=failure)
            self.fail(rows, Backend(f"The model failed on this input: {type(failure).__name__}: {failure}"))
            return
        log.warning(
            "A forward pass over %d rows failed (%s) and is tried in halves", len(rows), safe_message(failure)
        )
        middle = len(rows) // 2
        self._embed(worker, rows[:middle])
        self._embed(worker, rows[middle:])


def fill(call: EmbedCall, position: int, entry: Entry) -> None:
    """What the cache has, into the answer of `call`."""
    call.vectors[position] = np.frombuffer(entry.vector, np.float32)
    call.tokens[position] = entry.tokens


def refuse(calls: list[EmbedCall], error: ServiceError) -> None:
    """On the event loop."""
    for call in calls:
        call.refuse(error)


def _settle(rows: list[Item], started: float, seconds: float) -> None:
    for row in rows:
        row.call.settle(started, seconds)

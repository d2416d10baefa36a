"""Turn many small concurrent requests into few large encoder calls.

    embed() ── cache ── rows ──▶ queue ──▶ tokenise ──▶ queue ──▶ one forward pass ──▶ the call's future
          event loop                 └──── worker threads, one per processor ────┘

Workers take what waits as soon as they are free: an idle service adds no latency, a loaded one batches by
itself, and there is no timer to tune. Each worker runs forward passes on the session that all of them share.
A row carries its encoder, so one batcher serves every generation, and a batch never mixes two.

A batch that hangs is given up, and a worker that died is replaced (`check`, called by the supervisor).
Not here: who goes next (scheduler.py), what shares a batch (planner.py), what a worker does (executor.py),
how long a batch may take (pace.py), the threads (workers.py), documents, search.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from models.encoder import Encoder
from service.batching.admission import Admission
from service.batching.batch_stats import BatchStats
from service.batching.cache import Cache
from service.batching.executor import Jobs, fill, refuse
from service.batching.pace import ThroughputEstimate
from service.batching.queue import Queue
from service.batching.request import Answer, EmbedCall, Item, Lane, Source, Timing
from service.batching.scheduler import Scheduler
from service.batching.single_text import SingleTextSession
from service.batching.sizes import PROCESSOR, Sizes
from service.batching.tokenizing import estimate, refuse_long_texts
from service.batching.workers import Worker, Workers
from service.errors import Backend, Hung, Overloaded, ServiceError, Unhealthy
from service.observability.metrics import Metrics
from service.observability.request_log import MAX_STEPS, Step, steps

log = logging.getLogger(__name__)

_STOPPED = "The service is stopping. Send again to the next one."
_ALL_HANG = "Every worker hangs; the service is about to start anew."


class Batcher:
    """`workers` threads around the encoders, and a spare. `start()` and `embed()` belong to one event loop.

    hang_seconds: a step that takes longer, and 20 times as long as it should, is given up; 0: none is.
    cache: where vectors are kept that may be asked for again. None: each text is computed, equal ones that
    are in flight too.
    sizes: of batches.
    alone_threads: threads that compute a single text together (single_text.py); 1: like any other text.
    """

    def __init__(
        self,
        metrics: Metrics,
        *,
        workers: int,
        max_queue_tokens: int,
        max_queue_seconds: float = 0,
        hang_seconds: float = 0,
        cache: Cache | None = None,
        sizes: Sizes = PROCESSOR,
        alone_threads: int = 1,
    ) -> None:
        self.sizes = sizes
        self.cache = cache
        self._metrics = metrics
        self._queue = Queue(sizes, lambda: self._workers.all_on_candidates)
        overhead = sizes.overhead_tokens
        self._throughput = ThroughputEstimate(
            workers=workers, hang_seconds=hang_seconds, overhead_tokens=overhead
        )
        self._admission = Admission(
            self._throughput, max_tokens=max_queue_tokens, max_seconds=max_queue_seconds
        )
        self._stats = BatchStats(metrics)
        self.alone = SingleTextSession(alone_threads, self._rests)
        self._jobs = Jobs(self._queue, self._throughput, self._stats, cache, sizes, self.alone)
        self._workers = Workers(workers, self._work)
        self._calls: set[EmbedCall] = set()  # not answered yet
        self._loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        """Start the workers; call from the event loop that will call `embed`."""
        self._loop = self._jobs.loop = asyncio.get_running_loop()
        for lane in Lane:
            self._metrics.queue_tokens.labels(lane).set_function(
                partial(self._waiting, Scheduler.tokens, lane)
            )
            self._metrics.queue_texts.labels(lane).set_function(partial(self._waiting, Scheduler.texts, lane))
        self._metrics.queue_wait.set_function(lambda: self._admission.wait_seconds(self._queue.scheduler))
        self._metrics.queue_limit_tokens.set(self._admission.max_tokens)
        self._metrics.queue_limit_seconds.set(self._admission.max_seconds or math.inf)
        self._workers.start()

    def _waiting(self, what: Callable[[Scheduler, Lane], int], lane: Lane) -> int:
        return what(self._queue.scheduler, lane)

    def overloaded(self) -> Overloaded | None:
        """The refusal of any interactive call that comes now, None when one may join.

        Without the lock: two counts are read, and a call that joins is looked at again under it.
        """
        try:
            self._admission.check(self._queue.scheduler, Lane.INTERACTIVE, 0)
        except Overloaded as error:
            # Without the frames it passed: one of them is about to name it, and such circles wait for the
            # collector of garbage, which under overload stopped everything for 0.1 s every second and a half.
            return error.with_traceback(None)
        return None

    def failure(self, encoder: Encoder) -> str | None:
        """Why the last forward pass of `encoder` failed, None when it succeeded."""
        return self._stats.failure(encoder)

    def forget(self, encoder: Encoder) -> None:
        """`encoder` has closed: what the cache has of it goes."""
        if self.cache is not None:
            self.cache.forget(encoder)

    def stop(self) -> None:
        """Let running batches end, fail what still waits, join the workers."""
        rows = self._queue.stop()
        self._workers.join()
        self.alone.stop()
        self._jobs.fail(rows, Unhealthy(_STOPPED, retry_after_seconds=1))

    def check(self, seconds: float) -> str | None:
        """For the supervisor, on its thread: replace workers that died, give up what hangs."""
        if not self._queue.stopping and (died := self._workers.replace_dead()):
            self._stats.replaced(died)
            self._begin_anew()
            return "a worker died, and was replaced"
        for job in self._workers.overdue(seconds):
            self._stats.gave_up(job.rows, "a batch hangs")
            kind = Hung if job.rows[0].call.lane is Lane.CANDIDATE else Backend
            self._jobs.fail(job.rows, kind("The model did not finish in time (SIMILE_HANG_SECONDS)."))
        if replaced := self._workers.replace_hung_on_candidates():
            log.error(
                "%d threads hang on a version that is not in service; others took their place", replaced
            )
        hanging = self._workers.hanging
        if self._workers.all_hang:
            self._jobs.fail(self._queue.drain(), Unhealthy(_ALL_HANG, retry_after_seconds=5))
        return f"{hanging} of {self._workers.count} workers hang" if hanging else None

    def _begin_anew(self) -> None:
        """A worker died while it chose what to do next: nothing that the lanes hold can be relied on."""
        lost = list(self._calls)
        self._queue.renew(lost)
        for call in lost:
            self._stats.failed(call.encoder, "a worker died")
        error = Unhealthy("A worker died, by a bug of ours. Send again.", retry_after_seconds=1)
        self._jobs.on_loop(refuse, lost, error)

    async def embed(
        self,
        encoder: Encoder,
        inputs: Sequence[Source],
        *,
        lane: Lane = Lane.INTERACTIVE,
        truncate: bool = True,
        left: bool = False,
        normalize: bool = True,
        anew: bool = False,
    ) -> Answer:
        """Vectors of `inputs` (texts, or rows of token ids), in their order, all from `encoder`.

        A caller that is cancelled takes its rows with it: they are dropped before they cost a batch, unless
        others wait for equal ones.

        Work in the other lanes neither reads the cache nor fills it: documents come once, and would drive out
        what people ask for. Equal texts that are in flight are shared between the lanes.

        anew: a forward pass of its own, whatever the cache has and others compute.

        Raises:
            Validation: a text too long with `truncate=False`, or token ids that the model does not take.
            Overloaded: too much waits already. Nothing was queued.
            Backend: the model failed on one of these inputs.
            Unhealthy: the service is stopping, or every worker hangs.

        """
        shares = self.cache is not None and not anew
        call = EmbedCall(
            encoder=encoder,
            lane=lane,
            truncate=truncate,
            left=left,
            normalize=normalize,
            future=self._loop.create_future(),
            vectors=np.empty((len(inputs), encoder.dimension), dtype=np.float32),
            tokens=[0] * len(inputs),
            truncated=[False] * len(inputs),
            missing=len(inputs),
            arrived=time.monotonic(),
            shares=shares,
            remembers=shares and lane is Lane.INTERACTIVE,
        )
        rows = self._rows(call, inputs)
        try:
            answer = await self._wait(call, rows, inputs) if rows else call.answer()
        except ServiceError as error:
            # The call's future holds the error, and the error this frame: a cycle that keeps the inputs.
            del call, rows
            raise error.with_traceback(None)  # noqa: B904  it is the same error
        _note(call.arrived, answer.timing)
        return answer

    def _rows(self, call: EmbedCall, inputs: Sequence[Source]) -> list[Item]:
        """The rows that must wait; the others have their vectors from the cache."""
        encoder = call.encoder
        if self.cache is not None and call.shares:
            self.cache.open(encoder)
        if self.cache is None or not call.remembers:
            return [Item(call, at, source, estimate(source, encoder)) for at, source in enumerate(inputs)]
        names = self.cache.names_of_texts(encoder, inputs, call.normalize)
        rows: list[Item] = []
        for at, entry in enumerate(self.cache.find_texts(names)):
            if entry is None:
                rows.append(Item(call, at, inputs[at], estimate(inputs[at], encoder), spelling=names[at]))
            else:
                fill(call, at, entry)
        call.missing = len(rows)
        self._stats.found(len(inputs) - len(rows))
        return rows

    async def _wait(self, call: EmbedCall, rows: list[Item], inputs: Sequence[Source]) -> Answer:
        cost = sum(row.cost for row in rows)
        check = partial(self._admission.check, lane=call.lane, cost=cost)
        if not call.truncate:
            check(self._queue.scheduler)  # before anything is counted in vain
            await refuse_long_texts(call.encoder, inputs)
        if not self._queue.put(call, rows, check):
            raise Unhealthy(_STOPPED, retry_after_seconds=1)
        self._calls.add(call)
        try:
            return await call.future
        except BaseException:  # refused, out of time, or its client is gone: what still waits is dropped
            self._queue.discard(call)
            raise
        finally:
            self._calls.discard(call)

    def _work(self, worker: Worker) -> None:
        while (taken := self._queue.take(worker)) is not None:
            self._jobs.do(worker, *taken)
            taken = None  # else a worker that waits for the next job would hold the last one's texts

    def _rests(self) -> bool:
        """Whether nothing waits, and at most one worker has something in hand. Read without the lock."""
        scheduler = self._queue.scheduler
        return self._workers.busy <= 1 and not any(scheduler.texts(lane) for lane in Lane)


def _note(arrived: float, timing: Timing) -> None:
    """The request in hand had texts embedded, that came at `arrived`.

    `timing` is of the mean text, so its parts are laid one behind the other.
    """
    noted = steps.get()
    if noted is None or len(noted) >= MAX_STEPS:
        return
    started = arrived
    for name, seconds in (
        ("queue", timing.queue_seconds),
        ("tokenise", timing.tokenize_seconds),
        ("inference", timing.inference_seconds),
    ):
        noted.append(Step(name, started, seconds))
        started += seconds

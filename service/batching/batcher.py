"""Turn many small concurrent requests into few large encoder calls.

    embed() ── cache ── items ──▶ scheduler ──▶ tokenize ──▶ scheduler ──▶ forward pass ──▶ the call's future
          event loop                     └──── worker threads, one per processor ────┘         event loop

Workers take what waits as soon as they are free: an idle service adds no latency, a loaded one batches by
itself, and there is no timer to tune. Each worker runs forward passes on the session that all of them share.
An item carries its encoder, so one batcher serves every generation, and a batch never mixes two.

A batch that hangs is given up, and a worker that died is replaced (`check`, called by the watchdog).
Elsewhere: equal texts (cache.py), the next job (scheduler.py), what shares a batch (planner.py), a job's work
(executor.py), how long it may take (admission.py), the threads (workers.py).
"""

import asyncio
import logging
import math
import time
from collections.abc import Sequence

import numpy as np

from models.encoder import Encoder
from service.batching.admission import Admission, ThroughputEstimate
from service.batching.cache import Cache, InFlight
from service.batching.executor import Executor
from service.batching.planner import PROCESSOR, Sizes
from service.batching.request import Answer, EmbedCall, Item, Lane, Source, Timing
from service.batching.scheduler import Scheduler
from service.batching.single_text import SingleTextSession
from service.batching.tokenizing import LONG_CHARACTERS, estimate, refuse_long_texts
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
    cache: keeps vectors that may be asked for again. None: each text is computed, equal ones in flight too.
    single_text_threads: compute a single text together (single_text.py); 1: like any other text.
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
        single_text_threads: int = 1,
    ) -> None:
        self.sizes = sizes
        self.cache = cache
        self._metrics = metrics
        self._workers = Workers(workers, self._work)
        self._scheduler = Scheduler(sizes, self._workers.all)
        self._in_flight = InFlight(cache, self._scheduler)
        throughput = ThroughputEstimate(
            workers=workers, hang_seconds=hang_seconds, overhead_tokens=sizes.overhead_tokens
        )
        self._admission = Admission(
            self._scheduler, throughput, max_tokens=max_queue_tokens, max_seconds=max_queue_seconds
        )
        self.single_text = SingleTextSession(single_text_threads, self._scheduler.is_idle)
        self._executor = Executor(
            self._scheduler, self._in_flight, throughput, self.single_text, sizes, metrics
        )
        self._calls: set[EmbedCall] = set()  # not answered yet
        self._loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        """Start the workers; call from the event loop that will call `embed`."""
        self._loop = self._executor.loop = asyncio.get_running_loop()
        for lane in Lane:
            self._show_waiting(lane)
        self._metrics.queue_wait.set_function(self._admission.wait_seconds)
        self._metrics.queue_limit_tokens.set(self._admission.max_tokens)
        self._metrics.queue_limit_seconds.set(self._admission.max_seconds or math.inf)
        self._workers.start()

    def _show_waiting(self, lane: Lane) -> None:
        lanes = self._scheduler.lanes
        self._metrics.queue_tokens.labels(lane).set_function(lambda: lanes[lane].tokens)
        self._metrics.queue_texts.labels(lane).set_function(lambda: lanes[lane].texts)

    def overloaded(self) -> Overloaded | None:
        """The refusal of any interactive call that comes now, None when one may join."""
        try:
            self._admission.check(Lane.INTERACTIVE, 0)
        except Overloaded as error:
            # Without the frames it passed: one of them is about to name it, and such circles wait for the
            # collector of garbage, which under overload stopped everything for 0.1 s every second and a half.
            return error.with_traceback(None)
        return None

    def failure(self, encoder: Encoder) -> str | None:
        """Why the last forward pass of `encoder` failed, None when it succeeded.

        Each by itself: a model in the making may fail without the service being ill.
        """
        return self._executor.failures.get(encoder, "no forward pass has run yet")

    def forget(self, encoder: Encoder) -> None:
        """`encoder` has closed: the cache's entries of it go."""
        if self.cache is not None:
            self._executor.on_loop(self.cache.forget, encoder)

    def stop(self) -> None:
        """Let running batches end, fail what still waits, join the workers."""
        items = self._scheduler.stop()
        self._workers.join()
        self.single_text.stop()
        self._executor.fail(items, Unhealthy(_STOPPED, retry_after_seconds=1))

    def check(self, seconds: float) -> str | None:
        """Replace workers that died, give up what hangs; what is wrong. On the watchdog's thread."""
        if not self._scheduler.stopping and (died := self._workers.replace_dead()):
            self._metrics.worker_restarts.inc(died)
            self._executor.on_loop(self._fail_all)
            return "a worker died, and was replaced"
        for job in self._workers.overdue(seconds):
            self._metrics.batch_timeouts.inc()
            kind = Hung if job.items[0].call.lane is Lane.CANDIDATE else Backend
            error = kind("The model did not finish in time (SIMILE_HANG_SECONDS).")
            self._executor.fail(job.items, error, "a batch hangs")
        if replaced := self._workers.replace_hung_on_candidates():
            log.error(
                "%d threads hang on a version that is not in service; others took their place", replaced
            )
        hanging = self._workers.hanging
        if self._workers.all_hang:
            self._executor.fail(self._scheduler.drain(), Unhealthy(_ALL_HANG, retry_after_seconds=5))
        return f"{hanging} of {self._workers.count} workers hang" if hanging else None

    def _fail_all(self) -> None:
        """A worker died while it chose its next job: nothing that the lanes hold can be relied on."""
        items = [item for call in self._calls for item in call.items]
        self._scheduler.reset(items)
        error = Unhealthy("A worker died, by a bug of ours. Send again.", retry_after_seconds=1)
        self._executor.fail(items, error, "a worker died")

    async def embed(
        self,
        encoder: Encoder,
        inputs: Sequence[Source],
        *,
        lane: Lane = Lane.INTERACTIVE,
        truncate: bool = True,
        left: bool = False,
        normalize: bool = True,
        bypass_cache: bool = False,
    ) -> Answer:
        """Vectors of `inputs` (texts, or rows of token ids), in their order, all from `encoder`.

        A caller that is cancelled takes its texts with it: they are dropped before they cost a batch, unless
        other calls wait for equal ones.

        Work in the other lanes neither reads the cache nor fills it: documents come once, and would drive out
        what people ask for. Equal texts that are in flight are shared between the lanes.

        bypass_cache: a forward pass of its own, whatever the cache has and other calls wait for.

        Raises:
            Validation: a text too long with `truncate=False`, or token ids that the model does not take.
            Overloaded: too much waits already. Nothing was queued.
            Backend: the model failed on one of these inputs.
            Unhealthy: the service is stopping, or every worker hangs.

        """
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
        )
        try:
            await self._fill(call, inputs, bypass_cache=bypass_cache)
        except ServiceError as error:
            # The call's future holds the error, and the error this frame: a cycle that keeps the inputs.
            del call
            raise error.with_traceback(None)  # noqa: B904  it is the same error
        if cut := sum(call.truncated):
            self._count_truncated(call, cut)
        timing = _timing_of(call)
        _note(call.arrived, timing)
        return Answer(call.vectors, call.tokens, call.truncated, timing)

    async def _fill(self, call: EmbedCall, inputs: Sequence[Source], *, bypass_cache: bool) -> None:
        """Wait until `call` has every vector: of the cache, of items in flight, of new ones."""
        if not call.truncate:
            await self._refuse_long_texts(call, inputs)
        new, joined = self._in_flight.look_up(call, inputs, bypass_cache=bypass_cache)
        if new:
            self._admission.check(call.lane, sum(item.cost for item in new))
            if not self._scheduler.put(call, new):
                raise Unhealthy(_STOPPED, retry_after_seconds=1)
        self._count_looked_up(len(inputs) - call.missing, new, len(joined))
        if not call.missing:
            return
        self._in_flight.add(call, new, joined)
        self._calls.add(call)
        try:
            await call.future
        except BaseException:  # refused, out of time, or its client is gone: what still waits is dropped
            self._in_flight.leave(call)
            raise
        finally:
            self._calls.discard(call)
            call.items.clear()  # they name their call: a cycle

    async def _refuse_long_texts(self, call: EmbedCall, inputs: Sequence[Source]) -> None:
        if any(len(source) > LONG_CHARACTERS for source in inputs):
            cost = sum(estimate(source, call.encoder) for source in inputs)
            self._admission.check(call.lane, cost)  # before anything is counted in vain
            await refuse_long_texts(call.encoder, inputs)

    def _count_looked_up(self, hits: int, new: list[Item], shared: int) -> None:
        misses = sum(item.is_kept for item in new)
        for counter, texts in (
            (self._metrics.cache_hits, hits),
            (self._metrics.cache_misses, misses),
            (self._metrics.cache_shared, shared),
        ):
            if texts:
                counter.inc(texts)

    def _count_truncated(self, call: EmbedCall, texts: int) -> None:
        series = self._metrics.by_version.inference(call.encoder.manifest.version, call.lane)
        if series is not None:
            series.truncated.inc(texts)

    def _work(self, worker: Worker) -> None:
        while (job := self._scheduler.take(worker)) is not None:
            self._executor.do(worker, job)
            del job  # else a worker that waits for the next job would hold the last one's texts


def _timing_of(call: EmbedCall) -> Timing:
    """The means of a call that has every vector."""
    count = max(1, len(call.tokens))
    queued = max(0.0, call.wait_seconds - call.tokenize_seconds) / count
    return Timing(call.tokenize_seconds / count, queued, call.inference_seconds / count)


def _note(arrived: float, timing: Timing) -> None:
    """Add to the record of the request in hand: texts that came at `arrived` were embedded.

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

"""Batches many small concurrent requests into few encoder calls. Start reading at `Batcher.embed`.

    embed() ── cache ── items ──▶ scheduler ──▶ tokenize ──▶ scheduler ──▶ forward pass ──▶ the call's future
          event loop                     └──── worker threads, one per processor ────┘         event loop

A free worker takes pending items at once, without a timer. An idle service adds no latency, and a busy one
builds large batches by itself. One batcher serves all generations, but a batch has items of one encoder.

cache.py shares equal texts, scheduler.py chooses the next job, planner.py forms batches, executor.py runs
jobs, admission.py sets limits, and workers.py manages the threads.
"""

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from typing import TypedDict, Unpack
from weakref import WeakSet

import numpy as np

from models.open_version import OpenVersion
from service.batching.admission import Admission, ThroughputEstimate
from service.batching.cache import Cache, InFlight
from service.batching.executor import LONG_CHARACTERS, Executor, refuse_long_texts
from service.batching.planner import PROCESSOR, Sizes
from service.batching.request import ASIDE, Answer, EmbedCall, Lane, Source, Timing, estimate, measure
from service.batching.scheduler import Scheduler
from service.batching.single_text import SingleTextSession
from service.batching.workers import Worker, Workers
from service.errors import Backend, Hung, Overloaded, ServiceError, Timeout, Unhealthy
from service.observability.logs import MAX_STEPS, Step, steps
from service.observability.metrics import Metrics

log = logging.getLogger(__name__)

_STOPPED = "The service is stopping. Send again to the next one."
HANGS = "The model did not finish in time (SIMILE_HANG_SECONDS)."
_ALL_HANG = "Every worker hangs; the service is about to restart."


class Options(TypedDict):
    """Options of a call, as in `Batcher.embed`."""

    truncate: bool
    left: bool
    normalize: bool


class Batcher:
    """Embeds texts with worker threads. Call `start` and `embed` on one event loop.

    Args:
        workers: Number of threads, without the spare worker.
        max_queue_tokens: Limit of pending tokens in one lane.
        max_queue_seconds: Limit of an interactive call's expected wait. 0 means no limit.
        hang_seconds: A step is given up after this time, or 20 times its prediction if that is longer. 0
            means never.
        cache: Cache of vectors. Without it, equal texts are not shared at all.
        single_text_threads: Threads that compute a single text together (single_text.py). 1 turns this off.

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
            workers=int(min(workers, sizes.batches_at_once)),
            hang_seconds=hang_seconds,
            overhead_tokens=sizes.overhead_tokens,
        )
        self._admission = Admission(
            self._scheduler, throughput, max_tokens=max_queue_tokens, max_seconds=max_queue_seconds
        )
        self.single_text = SingleTextSession(single_text_threads, self._scheduler.is_idle)
        self._executor = Executor(
            self._scheduler, self._in_flight, throughput, self.single_text, sizes, metrics
        )
        self._calls: set[EmbedCall] = set()  # unanswered calls
        self.hung: WeakSet[OpenVersion] = WeakSet()  # candidates and rerankers that have hung
        self._loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        """Starts the workers. Call it on the event loop that calls `embed`."""
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

    def overloaded(self, lane: Lane = Lane.INTERACTIVE) -> Overloaded | None:
        """Returns the error for a new call of a lane, or None if the queue accepts new calls."""
        try:
            self._admission.check(lane, 0)
        except Overloaded as error:
            # The traceback would create a reference cycle. Under overload, garbage collection of such cycles
            # paused the service for 0.1 s every 1.5 s.
            return error.with_traceback(None)
        return None

    def failure(self, encoder: OpenVersion) -> str | None:
        """Returns why `encoder` last failed, or that no forward pass of it has run yet.

        Returns None if the last forward pass succeeded.
        """
        return self._executor.failures.get(encoder, "no forward pass has run yet")

    def forget(self, encoder: OpenVersion) -> None:
        if self.cache is not None:
            self._executor.on_loop(self.cache.forget, encoder)

    def stop(self) -> None:
        """Fails pending items, and waits for running batches and the workers."""
        items = self._scheduler.stop()
        self._workers.join()
        self.single_text.stop()
        self._executor.fail(items, Unhealthy(_STOPPED, retry_after_seconds=1))

    def check(self, seconds: float) -> str | None:
        """Replaces dead workers, fails hanging batches, and returns the problem or None.

        Runs on the watchdog's thread, `seconds` after the last check.
        """
        if not self._scheduler.stopping and (died := self._workers.replace_dead()):
            self._metrics.worker_restarts.inc(died)
            self._executor.on_loop(self._fail_all)
            return "a worker died, and was replaced"
        for job in self._workers.overdue(seconds):
            self._metrics.batch_timeouts.inc()
            call = job.items[0].call
            error: ServiceError = Backend(HANGS)
            if call.lane in ASIDE:
                self.hung.add(call.encoder)
                error = Hung(HANGS)
            if call.lane is Lane.RERANK:  # The pending pairs would hang other threads.
                self._executor.fail(self._scheduler.drain_like(call), error, "a batch hangs")
            self._executor.fail(job.items, error, "a batch hangs")
            self._scheduler.wake()
        if replaced := self._workers.replace_hung_aside():
            log.error("%d threads hang on a candidate or the reranker. New threads replaced them", replaced)
        hanging = sum(worker.hangs for worker in self._workers.all)
        if all(worker.hangs for worker in self._workers.all if not worker.spare):
            self._executor.fail(self._scheduler.drain(), Unhealthy(_ALL_HANG, retry_after_seconds=5))
        return f"{hanging} of {self._workers.count} workers hang" if hanging else None

    def _fail_all(self) -> None:
        """Fails every call and empties the lanes, because a dying worker may leave the lanes inconsistent."""
        items = [item for call in self._calls for item in call.items]
        self._scheduler.reset(items)
        error = Unhealthy("A worker died because of a bug in Simile. Send again.", retry_after_seconds=1)
        self._executor.fail(items, error, "a worker died")

    async def embed(
        self,
        encoder: OpenVersion,
        inputs: Sequence[Source],
        *,
        lane: Lane = Lane.INTERACTIVE,
        truncate: bool = True,
        left: bool = False,
        normalize: bool = True,
        bypass_cache: bool = False,
    ) -> Answer:
        """Returns the vectors of `inputs` in their order.

        A cancelled call removes its pending texts, unless other calls wait for equal texts.

        Args:
            encoder: A model that the caller keeps open (`ActiveGeneration.borrow`).
            inputs: Texts, pairs for a reranker, or rows of token ids for an encoder.
            lane: Priority of the call. Only the first lanes use the cache, because documents would displace
                queries. If a call in any lane already computes an equal text, this call waits for its
                vector. Texts that are too long for the cache are not shared.
            truncate: Shorten long texts instead of rejecting them.
            left: Shorten at the start of the text, not at the end.
            normalize: Scale vectors to length 1.
            bypass_cache: Compute each text, even if its vector is cached or being computed.

        Raises:
            Validation: A text is too long with `truncate=False`, or token ids are invalid.
            Overloaded: The queue is too full. Nothing was queued.
            Backend: The model failed on an input.
            Unhealthy: The service is stopping, or every worker hangs.

        """
        call = self._call(encoder, inputs, lane, truncate=truncate, left=left, normalize=normalize)
        try:
            await self._fill(call, inputs, bypass_cache=bypass_cache)
        except ServiceError as error:
            # The call's future refers to the error, and the error to this frame: a cycle with the inputs.
            del call
            raise error.with_traceback(None)  # noqa: B904  the same error is raised
        return self._answer(call)

    async def score(
        self,
        model: OpenVersion,
        inputs: Sequence[Source],
        seconds: float,
        *,
        lane: Lane = Lane.RERANK,
    ) -> tuple[Answer, ServiceError | None]:
        """Computes as many pairs or texts as possible in `seconds`. Never raises a ServiceError.

        Args:
            model: A model that the caller keeps open.
            inputs: Pairs for a reranker, or texts for an encoder. The first ones are computed first.
            seconds: Time limit. Inputs that are not computed by then are dropped.
            lane: Priority of the call.

        Returns:
            The answer, in which the rows of inputs that were not computed are NaN, and the last failure. It
            is a `Timeout` if the time was too short.

        """
        call = self._call(model, inputs, lane, truncate=True, left=False, normalize=True)
        call.partial = True
        try:
            async with asyncio.timeout(seconds):
                await self._fill(call, inputs, bypass_cache=False)
        except TimeoutError:
            call.fault = Timeout(f"It took longer than {seconds:g} s.")
        except ServiceError as error:
            call.fault = error.with_traceback(None)
        return self._answer(call), call.fault

    def _call(
        self, encoder: OpenVersion, inputs: Sequence[Source], lane: Lane, **options: Unpack[Options]
    ) -> EmbedCall:
        return EmbedCall(
            encoder=encoder,
            lane=lane,
            future=self._loop.create_future(),
            vectors=np.full((len(inputs), encoder.dimension), np.nan, dtype=np.float32),
            tokens=[0] * len(inputs),
            truncated=[False] * len(inputs),
            unknown=[0] * len(inputs),
            missing=len(inputs),
            arrived=time.monotonic(),
            **options,
        )

    def _answer(self, call: EmbedCall) -> Answer:
        series = self._metrics.by_version.inference(call.encoder.manifest.version, call.lane)
        if series is not None:
            series.truncated.inc(sum(call.truncated))
            series.unknown.inc(sum(map(bool, call.unknown)))
        count = max(1, len(call.tokens))
        queued = max(0.0, call.wait_seconds - call.tokenize_seconds) / count
        timing = Timing(call.tokenize_seconds / count, queued, call.inference_seconds / count)
        _note(call.arrived, timing)
        return Answer(call.vectors, call.tokens, call.truncated, timing, call.unknown)

    async def _fill(self, call: EmbedCall, inputs: Sequence[Source], *, bypass_cache: bool) -> None:
        if call.lane is Lane.RERANK and call.encoder in self.hung:
            raise Hung(HANGS)
        if not call.truncate and any(measure(source) > LONG_CHARACTERS for source in inputs):
            # Counting tokens would be wasted if the queue is full.
            self._admission.check(call.lane, sum(estimate(source, call.encoder) for source in inputs))
            await refuse_long_texts(call.encoder, inputs)
        new, joined = self._in_flight.look_up(call, inputs, bypass_cache=bypass_cache)
        if new:
            self._admission.check(call.lane, sum(item.cost for item in new))
            if not self._scheduler.put(call, new):
                raise Unhealthy(_STOPPED, retry_after_seconds=1)
        self._metrics.cache_hits.inc(len(inputs) - call.missing)
        self._metrics.cache_misses.inc(sum(item.is_kept for item in new))
        self._metrics.cache_shared.inc(len(joined))
        if not call.missing:
            return
        self._in_flight.add(call, new, joined)
        self._calls.add(call)
        try:
            await call.future
        except BaseException:  # an error, the deadline, or a disconnect
            self._in_flight.leave(call)
            raise
        finally:
            self._calls.discard(call)
            call.items.clear()  # Items refer to their call, which would be a cycle.

    def _work(self, worker: Worker) -> None:
        while (job := self._scheduler.take(worker)) is not None:
            self._executor.do(worker, job)
            del job  # A waiting worker must not keep the texts of its last job in memory.


def _note(arrived: float, timing: Timing) -> None:
    """Adds the steps of embedding to the record of the current request.

    `timing` has the means over all texts. The steps are recorded as if they ran one after the other.
    """
    noted = steps.get()
    if noted is None or len(noted) >= MAX_STEPS:
        return
    started = arrived
    for name, seconds in (
        ("queue", timing.queue_seconds),
        ("tokenize", timing.tokenize_seconds),
        ("inference", timing.inference_seconds),
    ):
        noted.append(Step(name, started, seconds))
        started += seconds

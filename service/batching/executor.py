"""Runs a worker's job: tokenizes texts, or embeds a batch. Start reading at `Executor.do`.

Only the items that cause a failure fail. A failed batch is halved until they are found.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from models.encoder import Encoder
from service.batching.admission import ThroughputEstimate
from service.batching.cache import InFlight
from service.batching.planner import Sizes, cost_of
from service.batching.request import EmbedCall, Item, Job
from service.batching.scheduler import Scheduler
from service.batching.single_text import SingleTextSession
from service.batching.tokenizing import tokenize
from service.batching.workers import Worker
from service.errors import Backend, ServiceError, Tokenizer
from service.observability.logs import safe_message
from service.observability.metrics import Metrics

log = logging.getLogger(__name__)


class Executor:
    """Runs jobs on worker threads and answers calls on the event loop `loop`."""

    def __init__(
        self,
        scheduler: Scheduler,
        in_flight: InFlight,
        throughput: ThroughputEstimate,
        single_text: SingleTextSession,
        sizes: Sizes,
        metrics: Metrics,
    ) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        # The reason why an encoder's last forward pass failed, or None. Writes are single assignments.
        self.failures: WeakKeyDictionary[Encoder, str | None] = WeakKeyDictionary()
        self._scheduler = scheduler
        self._in_flight = in_flight
        self._throughput = throughput
        self._single_text = single_text
        self._sizes = sizes
        self._metrics = metrics

    def do(self, worker: Worker, job: Job) -> None:
        worker.job = job
        try:
            if job.embed:
                self._embed(worker, job.items)
            else:
                self._tokenize(worker, job.items)
        except BaseException as error:  # A bug must fail only these items and not end the worker.
            log.exception("A batch of %d texts failed outside the model", len(job.items))
            reason = f"a batch failed: {type(error).__name__}"
            self.fail(job.items, Backend(f"The batch failed: {type(error).__name__}."), reason)
        worker.job = None
        if not job.embed:
            self._scheduler.tokenized(job)

    def fail(self, items: list[Item], error: ServiceError, reason: str | None = None) -> None:
        """Fails the calls that wait for `items`. Any thread may call it.

        `reason` is the problem of their encoders, if they have any.
        """
        if reason is not None:
            for item in items:
                self.failures[item.call.encoder] = reason
        self.on_loop(self._in_flight.fail, items, lambda _: error)

    def on_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(callback, *arguments)

    def _tokenize(self, worker: Worker, items: list[Item]) -> None:
        characters = sum(len(item.source) for item in items)
        begin_step(worker, self._throughput.tokenizing_may_take(characters))
        started = time.monotonic()
        refused = tokenize(items)
        seconds = time.monotonic() - started
        for item in items:
            item.tokenize_seconds = seconds / len(items)
        for item, refusal in refused:
            if refusal.kind is Tokenizer:
                self.failures[item.call.encoder] = "the tokenizer failed; the log says how"
            self.on_loop(self._in_flight.fail, [item], refusal.at)
        for (encoder, lane), count in Counter((item.call.encoder, item.call.lane) for item in items).items():
            if (series := self._metrics.by_version.inference(encoder.manifest.version, lane)) is not None:
                series.tokenise_seconds.observe(seconds * count / len(items))

    def _embed(self, worker: Worker, items: list[Item]) -> None:
        items = [item for item in items if not item.cancelled]
        if not items:
            return
        call = items[0].call
        lengths = [len(item.ids) for item in items]
        cost = cost_of(lengths, self._sizes.costs(call.encoder))
        begin_step(worker, self._throughput.batch_may_take(call.encoder, cost))
        together = {"alone": True} if self._single_text.takes(items) else {}
        started = time.monotonic()
        try:
            vectors = call.encoder.forward([item.ids for item in items], normalize=call.normalize, **together)
        except Exception as error:  # noqa: BLE001  a model may raise anything
            failure = error
        else:
            seconds = time.monotonic() - started
            self._answer(items, vectors, started, seconds)
            self._count(call, lengths, [started - item.call.arrived for item in items], seconds)
            if not together:  # A pass on all threads says nothing about one worker's pace.
                self._throughput.measured(call.encoder, call.lane, cost, seconds)
            return
        if together:
            self._single_text.failed(call.encoder, failure)
            self._embed(worker, items)  # Retries on this worker's thread.
        elif any(item.cancelled for item in items):
            # The cancelled items, or a session that closed with them, may have caused the failure.
            self._embed(worker, items)
        else:
            self._split(worker, items, failure)

    def _answer(
        self, items: list[Item], vectors: NDArray[np.float32], started: float, seconds: float
    ) -> None:
        finite = np.isfinite(vectors)
        if finite.all():
            self.failures[items[0].call.encoder] = None
        else:
            self._pass_failed(items[0].call, "the model gave a vector that is not finite")
            is_good = finite.all(axis=1)
            bad = [items[at] for at in np.flatnonzero(~is_good)]
            self.fail(bad, Backend("The model gave a vector with a NaN or an infinity for this input."))
            items, vectors = [items[at] for at in np.flatnonzero(is_good)], vectors[is_good]
        self.on_loop(self._in_flight.complete, items, vectors, started, seconds)

    def _split(self, worker: Worker, items: list[Item], failure: Exception) -> None:
        self._pass_failed(items[0].call, f"the model failed: {safe_message(failure)}")
        if len(items) == 1:
            log.error("The model failed on one input", exc_info=failure)
            self.fail(items, Backend(f"The model failed on this input: {type(failure).__name__}: {failure}"))
            return
        log.warning(
            "A forward pass over %d texts failed (%s) and is tried in halves",
            len(items),
            safe_message(failure),
        )
        middle = len(items) // 2
        self._embed(worker, items[:middle])
        self._embed(worker, items[middle:])

    def _pass_failed(self, call: EmbedCall, reason: str) -> None:
        self.failures[call.encoder] = reason
        if (
            series := self._metrics.by_version.inference(call.encoder.manifest.version, call.lane)
        ) is not None:
            series.failures.inc()

    def _count(self, call: EmbedCall, lengths: list[int], queued: list[float], seconds: float) -> None:
        series = self._metrics.by_version.inference(call.encoder.manifest.version, call.lane)
        if series is None:  # The version is not in memory any more.
            return
        padded, tokens = len(lengths) * max(lengths), sum(lengths)
        series.inference_seconds.observe(seconds)
        series.batch_texts.observe(len(lengths))
        series.batch_tokens.observe(padded)
        series.padding_tokens.inc(padded - tokens)
        series.tokens.inc(tokens)
        for waited in queued:
            series.queue_seconds.observe(waited)


def begin_step(worker: Worker, may_take_seconds: float) -> None:
    worker.may_take_seconds = may_take_seconds
    worker.step += 1

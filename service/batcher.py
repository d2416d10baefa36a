"""Turn many small concurrent requests into few large encoder calls.

    embed() ── rows ──▶ lanes ──▶ tokenise ──▶ lanes ──▶ one forward pass ──▶ the call's future
     event loop                └──── worker threads, one per processor ────┘

Workers take what waits as soon as they are free: an idle service adds no latency, a loaded one batches by
itself, and there is no timer to tune. Each worker runs single-threaded forward passes on the session that
all of them share. A row carries its encoder, so one batcher serves every generation, and a batch never
mixes two.

A failure belongs to the rows that cause it: a batch that fails is halved until it is known which.
Not here: who goes next (lanes.py), what shares a batch (grouping.py), what the tokenizer refuses
(tokenising.py), documents, search.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np

from models.encoder import Encoded, Encoder
from service.errors import Backend, Overloaded, ServiceError, Unhealthy
from service.lanes import Call, Lane, Lanes, Row, Source
from service.metrics import Metrics
from service.tokenising import estimate, refuse_long_texts, tokenise

log = logging.getLogger(__name__)


class Batcher:
    """`workers` threads around the encoders. `start()` and `embed()` belong to one event loop."""

    def __init__(self, metrics: Metrics, *, workers: int, max_queue_tokens: int) -> None:
        self._metrics = metrics
        self._max_queue_tokens = max_queue_tokens
        self._lanes = Lanes()
        self._wake = threading.Condition()  # guards _lanes, _stopping and _tokens_per_second
        self._stopping = False
        self._tokens_per_second = 1000.0 * workers  # a first guess; follows what is measured
        self._threads = [
            threading.Thread(target=self._work, name=f"encode-{number}", daemon=True)
            for number in range(workers)
        ]
        self._loop: asyncio.AbstractEventLoop
        self._outcomes: WeakKeyDictionary[Encoder, str | None] = WeakKeyDictionary()

    def start(self) -> None:
        """Start the workers; call from the event loop that will call `embed`."""
        self._loop = asyncio.get_running_loop()
        self._metrics.queue_tokens.set_function(lambda: sum(self._lanes.tokens(lane) for lane in Lane))
        for thread in self._threads:
            thread.start()

    def failure(self, encoder: Encoder) -> str | None:
        """Why the last forward pass of `encoder` failed, None when it succeeded.

        A model that is still in the making may fail without the service being ill.
        """
        return self._outcomes.get(encoder, "no forward pass has run yet")

    def stop(self) -> None:
        """Let running batches end, fail what still waits, join the workers."""
        with self._wake:
            self._stopping = True
            rows = self._lanes.drain()
            self._wake.notify_all()
        for thread in self._threads:
            thread.join()
        self._fail(rows, _stopped())

    async def embed(
        self,
        encoder: Encoder,
        inputs: Sequence[Source],
        *,
        lane: Lane = Lane.INTERACTIVE,
        truncate: bool = True,
        left: bool = False,
        normalize: bool = True,
    ) -> Encoded:
        """Vectors of `inputs` (texts, or rows of token ids), in their order, all from `encoder`.

        A caller that is cancelled takes its rows with it: they are dropped before they cost a batch.

        Raises:
            Validation: a text too long with `truncate=False`, or token ids that the model does not take.
            Overloaded: too many tokens wait in this lane already. Nothing was queued.
            Backend: the model failed on one of these inputs.
            Unhealthy: the service is stopping.

        """
        call = Call(
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
        if not inputs:
            return _answer(call)
        if not truncate:
            await refuse_long_texts(encoder, inputs)
        rows = [
            Row(call, position, source, estimate(source, encoder)) for position, source in enumerate(inputs)
        ]
        with self._wake:
            if self._stopping:
                raise _stopped()
            self._admit(lane, sum(row.cost for row in rows))
            self._lanes.put(call, rows)
            self._wake.notify(len(rows))
        try:
            return await call.future
        except BaseException:  # refused, out of time, or its client is gone: what still waits is dropped
            with self._wake:
                self._lanes.discard(call)
            raise

    def _admit(self, lane: Lane, cost: int) -> None:
        """A call larger than the whole limit is let in when nothing waits, or it could never be served."""
        waiting = self._lanes.tokens(lane)
        if waiting and waiting + cost > self._max_queue_tokens:
            raise Overloaded(
                f"{waiting} tokens wait already and this request adds about {cost}; the limit is "
                f"{self._max_queue_tokens} (SIMILE_MAX_QUEUE_TOKENS). Send again later, or less at once.",
                retry_after_seconds=waiting / self._tokens_per_second,
            )

    def _work(self) -> None:
        while True:
            with self._wake:
                while not (job := self._lanes.take()):
                    if self._stopping:
                        return
                    self._wake.wait()
            try:
                if job.embed:
                    self._embed(job.rows)
                else:
                    self._tokenise(job.rows)
            except Exception as error:  # a bug of ours: it belongs to these rows, and the worker lives on
                log.exception("A batch of %d rows failed outside the model", len(job.rows))
                self._fail(job.rows, Backend(f"The batch failed: {type(error).__name__}."))
                if not job.embed:
                    with self._wake:
                        self._lanes.dropped(job.rows)

    def _tokenise(self, rows: list[Row]) -> None:
        refused = tokenise(rows)
        for row, error in refused:
            self._fail([row], error)
        with self._wake:
            dropped = [row for row, _ in refused]
            self._lanes.dropped(dropped)
            without = set(map(id, dropped))
            self._lanes.tokenised([row for row in rows if id(row) not in without])
            self._wake.notify(len(rows))

    def _embed(self, rows: list[Row]) -> None:
        if not (rows := _awaited(rows)):
            return
        call = rows[0].call
        started = time.monotonic()
        failure: Exception | None = None
        try:
            vectors = call.encoder.forward([row.ids for row in rows], normalize=call.normalize)
        except Exception as error:  # noqa: BLE001  the model's, whatever it is: answered below
            failure = error
        if failure is not None:
            # When nobody waits any more, the encoder may have been closed under this batch.
            if rows := _awaited(rows):
                self._split(rows, failure)
            return
        seconds = time.monotonic() - started
        finite: list[bool] = np.isfinite(vectors).all(axis=1).tolist()  # type: ignore[assignment]
        if all(finite):
            self._outcomes[call.encoder] = None
        else:
            self._outcomes[call.encoder] = "the model gave a vector that is not finite"
            self._metrics.inference_failures.inc()
            bad = [row for row, good in zip(rows, finite, strict=True) if not good]
            self._fail(bad, Backend("The model gave a vector with a NaN or an infinity for this input."))
        for row, vector, good in zip(rows, vectors, finite, strict=True):
            if good:
                row.call.vectors[row.position] = vector
                row.call.tokens[row.position] = len(row.ids)
        self._on_loop(_settle, [row for row, good in zip(rows, finite, strict=True) if good])
        self._observe(rows, started, seconds)

    def _split(self, rows: list[Row], failure: Exception) -> None:
        """A batch failed: its halves are tried alone, until the rows are known that it belongs to."""
        self._outcomes[rows[0].call.encoder] = f"the model failed: {type(failure).__name__}: {failure}"
        self._metrics.inference_failures.inc()
        if len(rows) == 1:
            log.error("The model failed on one input", exc_info=failure)
            self._fail(rows, Backend(f"The model failed on this input: {type(failure).__name__}: {failure}"))
            return
        log.warning("A forward pass over %d rows failed (%s) and is tried in halves", len(rows), failure)
        middle = len(rows) // 2
        self._embed(rows[:middle])
        self._embed(rows[middle:])

    def _observe(self, rows: list[Row], started: float, seconds: float) -> None:
        call = rows[0].call
        metrics, lane, version = self._metrics, call.lane.value, call.encoder.manifest.version
        tokens = sum(len(row.ids) for row in rows)
        computed = len(rows) * max(len(row.ids) for row in rows)
        metrics.inference_seconds.labels(lane).observe(seconds)
        metrics.batch_tokens.labels(lane).observe(computed)
        metrics.padding_tokens.labels(lane).inc(computed - tokens)
        metrics.tokens.labels(version, lane).inc(tokens)
        metrics.truncated.labels(version).inc(sum(row.call.truncated[row.position] for row in rows))
        queue_seconds = metrics.queue_seconds.labels(lane)
        for row in rows:
            queue_seconds.observe(started - row.call.arrived)
        with self._wake:
            rate = tokens / max(seconds, 1e-6) * len(self._threads)
            self._tokens_per_second += 0.1 * (rate - self._tokens_per_second)

    def _fail(self, rows: list[Row], error: ServiceError) -> None:
        """Fail the calls of `rows`; `embed` drops their other rows."""
        self._on_loop(_refuse, [row.call for row in rows], error)

    def _on_loop(self, callback: object, *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *arguments)  # type: ignore[arg-type]


def _awaited(rows: list[Row]) -> list[Row]:
    """Those of `rows` that somebody still waits for."""
    return [row for row in rows if not row.call.future.done()]


def _answer(call: Call) -> Encoded:
    return Encoded(call.vectors, call.tokens, call.truncated)


def _settle(rows: list[Row]) -> None:
    for row in rows:
        call = row.call
        call.missing -= 1
        if not call.missing and not call.future.done():  # the client may have left while we were encoding
            call.future.set_result(_answer(call))


def _refuse(calls: list[Call], error: ServiceError) -> None:
    for call in calls:
        if not call.future.done():
            call.future.set_exception(error)


def _stopped() -> Unhealthy:
    return Unhealthy("The service is stopping. Send again to the next one.", retry_after_seconds=1)

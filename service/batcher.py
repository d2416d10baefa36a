"""Turn many small concurrent requests into few large encoder calls.

    embed() ── rows ──▶ lanes ──▶ tokenise ──▶ lanes ──▶ one forward pass ──▶ the call's future
     event loop                └──── worker threads, one per processor ────┘

Workers take what waits as soon as they are free: an idle service adds no latency, a loaded one batches by
itself, and there is no timer to tune. Each worker runs single-threaded forward passes on the session that
all of them share. A row carries its encoder, so one batcher serves every generation, and a batch never
mixes two.

A failure belongs to the rows that cause it: a batch that fails is halved until it is known which. A batch
that hangs is given up, and a worker that died is replaced (`check`, called by the supervisor).
Not here: who goes next (lanes.py), what shares a batch (grouping.py), what the tokenizer refuses
(tokenising.py), how long a batch may take (pace.py), the threads (workers.py), documents, search.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from models.encoder import Encoder
from service.admission import Admission
from service.calls import Answer, Call, Job, Lane, Row, Source
from service.errors import Backend, Overloaded, ServiceError, Tokenizer, Unhealthy
from service.grouping import cost_of
from service.lanes import Lanes
from service.logs import told
from service.metrics import Metrics
from service.outcomes import Outcomes
from service.pace import Pace
from service.seen import note
from service.tokenising import estimate, refuse_long_texts, tokenise
from service.workers import Worker, Workers

log = logging.getLogger(__name__)

_STOPPED = "The service is stopping. Send again to the next one."
_ALL_HANG = "Every worker hangs; the service is about to start anew."


class Batcher:
    """`workers` threads around the encoders. `start()` and `embed()` belong to one event loop.

    hang_seconds: a step that takes longer, and 20 times as long as it should, is given up; 0: none is.
    """

    def __init__(
        self,
        metrics: Metrics,
        *,
        workers: int,
        max_queue_tokens: int,
        max_queue_seconds: float = 0,
        hang_seconds: float = 0,
    ) -> None:
        self._metrics = metrics
        self._lanes = Lanes()
        self._wake = threading.Condition()  # guards _lanes and _stopping
        self._stopping = False
        self._pace = Pace(workers=workers, hang_seconds=hang_seconds)
        self._admission = Admission(self._pace, max_tokens=max_queue_tokens, max_seconds=max_queue_seconds)
        self._workers = Workers(workers, self._work)
        self._calls: set[Call] = set()  # not answered yet
        self._loop: asyncio.AbstractEventLoop
        self._outcomes = Outcomes(metrics)

    def start(self) -> None:
        """Start the workers; call from the event loop that will call `embed`."""
        self._loop = asyncio.get_running_loop()
        for lane in Lane:
            self._metrics.queue_tokens.labels(lane).set_function(partial(self._waiting, Lanes.tokens, lane))
            self._metrics.queue_texts.labels(lane).set_function(partial(self._waiting, Lanes.texts, lane))
        self._workers.start()

    def _waiting(self, what: Callable[[Lanes, Lane], int], lane: Lane) -> int:
        return what(self._lanes, lane)

    def overloaded(self) -> Overloaded | None:
        """The refusal of any interactive call that comes now, None when one may join.

        Without the lock: two counts are read, and a call that joins is looked at again under it.
        """
        try:
            self._admission.check(self._lanes, Lane.INTERACTIVE, 0)
        except Overloaded as error:
            # Without the frames it passed: one of them is about to name it, and such circles wait for the
            # collector of garbage, which under overload stopped everything for 0.1 s every second and a half.
            return error.with_traceback(None)
        return None

    def failure(self, encoder: Encoder) -> str | None:
        """Why the last forward pass of `encoder` failed, None when it succeeded."""
        return self._outcomes.failure(encoder)

    def stop(self) -> None:
        """Let running batches end, fail what still waits, join the workers."""
        with self._wake:
            self._stopping = True
            rows = self._lanes.drain()
            self._wake.notify_all()
        self._workers.join()
        self._fail(rows, Unhealthy(_STOPPED, retry_after_seconds=1))

    def check(self, seconds: float) -> str | None:
        """For the supervisor, on its thread: replace workers that died, give up what hangs."""
        if not self._stopping and (died := self._workers.replace_dead()):
            self._outcomes.replaced(died)
            self._begin_anew()
            return "a worker died, and was replaced"
        for job in self._workers.overdue(seconds):
            self._outcomes.gave_up(job.rows, "a batch hangs")
            self._fail(job.rows, Backend("The model did not finish in time (SIMILE_HANG_SECONDS)."))
        hanging = self._workers.hanging
        if hanging == self._workers.count:
            with self._wake:
                rows = self._lanes.drain()
            self._fail(rows, Unhealthy(_ALL_HANG, retry_after_seconds=5))
        return f"{hanging} of {self._workers.count} workers hang" if hanging else None

    def _begin_anew(self) -> None:
        """A worker died while it chose what to do next: nothing that the lanes hold can be relied on."""
        with self._wake:
            self._lanes = Lanes()
            lost = list(self._calls)
            for call in lost:
                call.gone = True
                self._outcomes.failed(call.encoder, "a worker died")
        error = Unhealthy("A worker died, by a bug of ours. Send again.", retry_after_seconds=1)
        self._on_loop(_refuse, lost, error)

    async def embed(
        self,
        encoder: Encoder,
        inputs: Sequence[Source],
        *,
        lane: Lane = Lane.INTERACTIVE,
        truncate: bool = True,
        left: bool = False,
        normalize: bool = True,
    ) -> Answer:
        """Vectors of `inputs` (texts, or rows of token ids), in their order, all from `encoder`.

        A caller that is cancelled takes its rows with it: they are dropped before they cost a batch.

        Raises:
            Validation: a text too long with `truncate=False`, or token ids that the model does not take.
            Overloaded: too much waits already. Nothing was queued.
            Backend: the model failed on one of these inputs.
            Unhealthy: the service is stopping, or every worker hangs.

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
            return call.answer()
        rows = [
            Row(call, position, source, estimate(source, encoder)) for position, source in enumerate(inputs)
        ]
        cost = sum(row.cost for row in rows)
        if not truncate:
            self._admission.check(self._lanes, lane, cost)  # before anything is counted in vain
            await refuse_long_texts(encoder, inputs)
        with self._wake:
            if self._stopping:
                raise Unhealthy(_STOPPED, retry_after_seconds=1)
            lanes = self._lanes
            self._admission.check(lanes, lane, cost)
            lanes.put(call, rows)
            self._calls.add(call)
            self._wake.notify(len(rows))
        try:
            answer = await call.future
        except BaseException:  # refused, out of time, or its client is gone: what still waits is dropped
            with self._wake:
                lanes.discard(call)
            raise
        finally:
            self._calls.discard(call)
        note(call.arrived, answer.timing)
        return answer

    def _work(self, worker: Worker) -> None:
        while True:
            with self._wake:
                while not (job := self._lanes.take()):
                    if self._stopping:
                        return
                    self._wake.wait()
                lanes = self._lanes
            worker.job = job
            self._do(worker, job)
            worker.job = None
            if not job.embed:
                with self._wake:
                    lanes.tokenised(job.rows)
                    self._wake.notify(len(job.rows))

    def _do(self, worker: Worker, job: Job) -> None:
        try:
            if job.embed:
                self._embed(worker, job.rows)
            else:
                self._tokenise(worker, job.rows)
        except BaseException as error:  # a bug of ours: it belongs to these rows, and the worker lives on
            log.exception("A batch of %d rows failed outside the model", len(job.rows))
            self._outcomes.all_failed(job.rows, f"a batch failed: {type(error).__name__}")
            self._fail(job.rows, Backend(f"The batch failed: {type(error).__name__}."))

    def _tokenise(self, worker: Worker, rows: list[Row]) -> None:
        """Give each row its `ids`; one that is refused stays without."""
        worker.begin(self._pace.tokenising_may_take(sum(len(row.source) for row in rows)))
        started = time.monotonic()
        refused = tokenise(rows)
        seconds = time.monotonic() - started
        self._outcomes.tokenised(rows, seconds)
        with self._wake:
            for row in rows:
                row.call.tokenise_seconds += seconds / len(rows)
        for row, error in refused:
            if isinstance(error, Tokenizer):
                self._outcomes.failed(row.call.encoder, "the tokenizer failed; the log says how")
            self._fail([row], error)

    def _embed(self, worker: Worker, rows: list[Row]) -> None:
        if not (rows := _awaited(rows)):
            return
        call = rows[0].call
        lengths = [len(row.ids) for row in rows]
        cost = cost_of(lengths, packed=call.encoder.packed)
        worker.begin(self._pace.batch_may_take(cost))
        started = time.monotonic()
        failure: Exception | None = None
        try:
            vectors = call.encoder.forward([row.ids for row in rows], normalize=call.normalize)
        except Exception as error:  # noqa: BLE001  the model's, whatever it is: answered below
            failure = error
        if failure is not None:
            # When nobody waits any more, the encoder may have been closed under this batch.
            if rows := _awaited(rows):
                self._split(worker, rows, failure)
            return
        seconds = time.monotonic() - started
        finite: list[bool] = np.isfinite(vectors).all(axis=1).tolist()  # type: ignore[assignment]
        if all(finite):
            self._outcomes.pass_succeeded(call.encoder)
        else:
            self._outcomes.pass_failed(call, "the model gave a vector that is not finite")
            bad = [row for row, good in zip(rows, finite, strict=True) if not good]
            self._fail(bad, Backend("The model gave a vector with a NaN or an infinity for this input."))
        for row, vector, good in zip(rows, vectors, finite, strict=True):
            if good:
                row.call.vectors[row.position] = vector
                row.call.tokens[row.position] = len(row.ids)
        whole = [row for row, good in zip(rows, finite, strict=True) if good]
        self._on_loop(_settle, whole, started, seconds)
        self._pace.measured(cost, seconds)
        self._outcomes.computed(rows, len(rows) * max(lengths), started, seconds)

    def _split(self, worker: Worker, rows: list[Row], failure: Exception) -> None:
        """A batch failed: its halves are tried alone, until the rows are known that it belongs to."""
        self._outcomes.pass_failed(rows[0].call, f"the model failed: {told(failure)}")
        if len(rows) == 1:
            log.error("The model failed on one input", exc_info=failure)
            self._fail(rows, Backend(f"The model failed on this input: {type(failure).__name__}: {failure}"))
            return
        log.warning(
            "A forward pass over %d rows failed (%s) and is tried in halves", len(rows), told(failure)
        )
        middle = len(rows) // 2
        self._embed(worker, rows[:middle])
        self._embed(worker, rows[middle:])

    def _fail(self, rows: list[Row], error: ServiceError) -> None:
        """Fail the calls of `rows`; `embed` drops their other rows."""
        self._on_loop(_refuse, [row.call for row in rows], error)

    def _on_loop(self, callback: object, *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *arguments)  # type: ignore[arg-type]


def _awaited(rows: list[Row]) -> list[Row]:
    """Those of `rows` that somebody still waits for."""
    return [row for row in rows if not row.call.future.done()]


def _settle(rows: list[Row], started: float, seconds: float) -> None:
    for row in rows:
        row.call.settle(started, seconds)


def _refuse(calls: list[Call], error: ServiceError) -> None:
    for call in calls:
        call.refuse(error)

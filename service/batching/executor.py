"""Runs a worker's job: tokenizes texts, or embeds a batch. Start reading at `Executor.do`.

Only the items that cause a failure fail. A failed batch is halved until they are found. If the tokenizer
fails on a group of texts, each text is tried by itself.
"""

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from models.errors import BadInput, BadText, BadTokens, TooLong
from models.open_version import OpenVersion
from models.tokens.pairs import Pair
from models.tokens.tokenizer import Tokens
from service.batching.admission import ThroughputEstimate
from service.batching.cache import InFlight
from service.batching.planner import Sizes, compute_cost
from service.batching.request import EmbedCall, Item, Job, Source, measure
from service.batching.scheduler import Scheduler
from service.batching.single_text import SingleTextSession
from service.batching.workers import Worker
from service.errors import Backend, ServiceError, Tokenizer, Validation
from service.observability.logs import safe_message
from service.observability.metrics import Metrics

if TYPE_CHECKING:
    from models.encoder import Encoder

log = logging.getLogger(__name__)

LONG_CHARACTERS = 100_000
_threads = ThreadPoolExecutor(2, thread_name_prefix="long-texts")


@dataclass(eq=False)
class Executor:
    """Runs jobs on worker threads and answers calls on the event loop `loop`."""

    _scheduler: Scheduler
    _in_flight: InFlight
    _throughput: ThroughputEstimate
    _single_text: SingleTextSession
    _sizes: Sizes
    _metrics: Metrics
    loop: asyncio.AbstractEventLoop | None = None
    # The reason why an encoder's last forward pass failed, or None. Writes are single assignments.
    failures: WeakKeyDictionary[OpenVersion, str | None] = field(default_factory=WeakKeyDictionary)

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

        `reason` is stored as the failure of the items' encoders. None if the encoders did not cause it.
        """
        if reason is not None:
            for item in items:
                self.failures[item.call.encoder] = reason
        self.on_loop(self._in_flight.fail, items, lambda _: error)

    def on_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(callback, *arguments)

    def _tokenize(self, worker: Worker, items: list[Item]) -> None:
        characters = sum(measure(item.source) for item in items)
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
                series.tokenize_seconds.observe(seconds * count / len(items))

    def _embed(self, worker: Worker, items: list[Item]) -> None:
        items = [item for item in items if not item.cancelled]
        if not items:
            return
        call = items[0].call
        lengths = [len(item.ids) for item in items]
        cost = compute_cost(lengths, self._sizes.costs(call.encoder))
        begin_step(worker, self._throughput.batch_may_take(call.encoder, cost))
        together = {"single_text": True} if self._single_text.takes(items) else {}
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
            self._pass_failed(items[0].call, "the model gave a value that is not finite")
            is_good = finite.all(axis=1)
            bad = [items[at] for at in np.flatnonzero(~is_good)]
            self.fail(bad, Backend("The model gave a NaN or an infinity for this input."))
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
        series = self._metrics.by_version.inference(call.encoder.manifest.version, call.lane)
        if series is not None:
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


class Refusal(NamedTuple):
    """The reason why a text is rejected. Holds no exception, because its frames would keep the text."""

    kind: type[ServiceError]
    words: str

    def at(self, position: int) -> ServiceError:
        return self.kind(f"Input {position}{self.words}")


async def refuse_long_texts(encoder: OpenVersion, inputs: Sequence[Source]) -> None:
    """Rejects huge texts that exceed the model's limit.

    Counts their tokens on two separate threads, because megabytes of text would block a worker for seconds.
    Stops counting when the caller is cancelled.

    Raises:
        Validation: A text has more tokens than the model accepts.

    """
    left = threading.Event()
    loop = asyncio.get_running_loop()
    try:
        for position, source in enumerate(inputs):
            if isinstance(source, str | Pair) and measure(source) > LONG_CHARACTERS:
                try:
                    await loop.run_in_executor(_threads, partial(_count, encoder, source, left))
                except BadInput as error:
                    raise _refusal(error).at(position) from error
    finally:
        left.set()


def _count(encoder: OpenVersion, source: Any, left: threading.Event) -> None:
    encoder.tokenize([source], truncate=False, is_needed=lambda: not left.is_set())


def tokenize(items: list[Item]) -> list[tuple[Item, Refusal]]:
    """Sets the `ids` of each item. Returns the rejected items with their reasons."""
    refused: list[tuple[Item, Refusal]] = []
    for alike in _by_options(items):
        for item, outcome in zip(alike, _collect_tokens(alike), strict=True):
            if isinstance(outcome, Refusal):
                refused.append((item, outcome))
            elif not outcome.ids:  # The model has no special tokens, and the text has no tokens.
                nothing = ": the model's tokenizer finds no tokens in this text."
                refused.append((item, Refusal(Validation, nothing)))
            else:
                item.ids, item.truncated, item.unknown = outcome
    return refused


def _by_options(items: list[Item]) -> list[list[Item]]:
    """Groups items that one tokenizer call can process.

    These are texts, or pairs, to truncate, with the same encoder and side. Every other item is a group of
    one.
    """
    groups: dict[object, list[Item]] = {}
    for item in items:
        call = item.call
        apart = not call.truncate or not isinstance(item.source, str | Pair)
        alike = type(item.source), id(call.encoder), call.left
        groups.setdefault(id(item) if apart else alike, []).append(item)
    return list(groups.values())


def _collect_tokens(items: list[Item]) -> list[Tokens | Refusal]:
    """Returns the outcome of each item. If the tokenizer rejects a group, each item is tried by itself."""
    call = items[0].call
    try:
        if not isinstance(items[0].source, str | Pair):
            # A reranker gets no ids.
            check_ids = cast("Encoder", call.encoder).check_ids
            return [check_ids(items[0].source, truncate=call.truncate, left=call.left)]
        sources: list[Any] = [item.source for item in items]
        return list(call.encoder.tokenize(sources, truncate=call.truncate, left=call.left))
    except Exception as error:  # noqa: BLE001  the error belongs to one item
        if len(items) > 1:
            return [outcome for item in items for outcome in _collect_tokens([item])]
        return [_refusal(error)]


def _refusal(error: Exception) -> Refusal:
    if isinstance(error, TooLong):
        words = f" has {error.given} tokens and the model takes {error.allowed}."
        return Refusal(Validation, f"{words} Shorten it, or leave truncation on.")
    if isinstance(error, BadTokens):
        return Refusal(
            Validation,
            f": {error} The ids probably come from another tokenizer. Send texts instead "
            "(in LangChain, check_embedding_ctx_length=False).",
        )
    if isinstance(error, BadText):
        return Refusal(Validation, f": {error}")
    log.error("The tokenizer failed", exc_info=error)
    return Refusal(Tokenizer, f" could not be tokenized: {type(error).__name__}: {error}")

"""What became of the batches: which encoder's last forward pass failed and why, and every number of it.

Written by the workers and the supervisor, read by the event loop; each write is one assignment.
"""

from collections import Counter
from weakref import WeakKeyDictionary

from models.encoder import Encoder
from service.batching.request import EmbedCall, Item, Lane
from service.observability.metrics import Metrics
from service.observability.version_metrics import Inference


class BatchStats:
    """One per batcher."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._failures: WeakKeyDictionary[Encoder, str | None] = WeakKeyDictionary()

    def failure(self, encoder: Encoder) -> str | None:
        """Why the last forward pass of `encoder` failed, None when it succeeded.

        Each by itself: a model in the making may fail without the service being ill.
        """
        return self._failures.get(encoder, "no forward pass has run yet")

    def failed(self, encoder: Encoder, reason: str) -> None:
        """Something went wrong with `encoder`, or with what feeds it, until a forward pass succeeds."""
        self._failures[encoder] = reason

    def all_failed(self, rows: list[Item], reason: str) -> None:
        for row in rows:
            self.failed(row.call.encoder, reason)

    def pass_failed(self, call: EmbedCall, reason: str) -> None:
        """A forward pass that `call` had a share in raised, or gave a vector that is not finite."""
        self.failed(call.encoder, reason)
        if (series := self._series(call.encoder, call.lane)) is not None:
            series.failures.inc()

    def pass_succeeded(self, encoder: Encoder) -> None:
        self._failures[encoder] = None

    def tokenised(self, rows: list[Item], seconds: float) -> None:
        """Rows of one lane were tokenised together."""
        for encoder, count in Counter(row.call.encoder for row in rows).items():
            if (series := self._series(encoder, rows[0].call.lane)) is not None:
                series.tokenise_seconds.observe(seconds * count / len(rows))
        for row in rows:
            cut = row.call.truncated[row.position]
            if cut and (series := self._series(row.call.encoder, row.call.lane)) is not None:
                series.truncated.inc()

    def found(self, texts: int) -> None:
        """The cache had the vectors of so many texts."""
        if texts:
            self._metrics.cache_hits.inc(texts)

    def joined(self, rows: list[Item], following: list[Item]) -> None:
        """`rows` were tokenised; `following` wait for equal ones, what the cache had lost its ids."""
        if following:
            self._metrics.cache_shared.inc(len(following))
        alone = sum(row.call.remembers for row in rows if row.ids)
        alone -= sum(row.call.remembers for row in following)
        if alone:
            self._metrics.cache_misses.inc(alone)

    def computed(self, rows: list[Item], padded: int, started: float, seconds: float) -> None:
        """A forward pass over `rows`, of `padded` tokens, has given vectors."""
        call = rows[0].call
        if (series := self._series(call.encoder, call.lane)) is None:
            return
        tokens = sum(len(row.ids) for row in rows)
        series.inference_seconds.observe(seconds)
        series.batch_texts.observe(len(rows))
        series.batch_tokens.observe(padded)
        series.padding_tokens.inc(padded - tokens)
        series.tokens.inc(tokens)
        for row in rows:
            series.queue_seconds.observe(started - row.call.arrived)

    def gave_up(self, rows: list[Item], reason: str) -> None:
        """They hang in a worker, and their callers wait no longer."""
        self.all_failed(rows, reason)
        self._metrics.batch_timeouts.inc()

    def replaced(self, workers: int) -> None:
        """Workers died, and others took their places."""
        self._metrics.worker_restarts.inc(workers)

    def _series(self, encoder: Encoder, lane: Lane) -> Inference | None:
        """Where to count; None when the version is not in memory any more."""
        return self._metrics.by_version.inference(encoder.manifest.version, lane)

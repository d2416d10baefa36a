"""Rejects calls that would wait too long or make the queue too large.

Start reading at `Admission.check`. Early rejection keeps the service near its best throughput under overload,
and Retry-After tells the client when to send again.
"""

import math
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from models.open_version import OpenVersion
from service.batching.planner import GROUP_OVERHEAD_TOKENS
from service.batching.request import FIRST, Lane
from service.batching.scheduler import Scheduler
from service.errors import Overloaded

# A step hangs after this many times its predicted time. The factor is large, as a busy machine is slow.
BATCH_FACTOR = 20
CHARACTERS_PER_SECOND = 1_000_000  # Low estimate for tokenizers. Most read several times as many.
RECENT = 0.1  # weight of one batch in the average
# Tokens per second of one worker before the first batch, for models of up to LIGHT bytes. The estimate for
# larger models is lower in proportion.
FIRST_GUESS = 1000.0
LIGHT = 90_000_000


class _Pace:
    """Tokens per second of one worker with one model, averaged over recent batches."""

    def __init__(self, file_bytes: int) -> None:
        self.tokens_per_second = FIRST_GUESS * min(1.0, LIGHT / max(1, file_bytes))
        self.batches = 0

    def measured(self, rate: float) -> None:
        self.batches += 1
        share = max(RECENT, 1 / self.batches)  # The plain mean of the first batches.
        self.tokens_per_second += share * (rate - self.tokens_per_second)


@dataclass(eq=False, kw_only=True)
class ThroughputEstimate:
    """Measured pace of each model. Workers update it without a lock, because a lost update is harmless.

    A candidate is measured while its index is built, so its pace is known when it becomes active.

    Args:
        workers: Number of batches that are computed at the same time.
        hang_seconds: Shortest time limit of a step. 0 means no limits.
        overhead_tokens: Fixed cost of a batch, in tokens.

    """

    workers: int
    hang_seconds: float
    overhead_tokens: int = GROUP_OVERHEAD_TOKENS
    _paces: WeakKeyDictionary[OpenVersion, _Pace] = field(default_factory=WeakKeyDictionary)
    # Of the active encoder and of the reranker, by the lane of their calls.
    _active: dict[Lane, _Pace] = field(default_factory=lambda: {lane: _Pace(0) for lane in FIRST})

    def measured(self, encoder: OpenVersion, lane: Lane, tokens: int, seconds: float) -> None:
        """Records that a worker embedded `tokens`, padding included, in `seconds`.

        Adds the fixed cost of a batch. Otherwise small batches in quiet times would make the pace look so
        slow that the next burst would be rejected.
        """
        pace = self._get_pace(encoder)
        pace.measured((tokens + self.overhead_tokens) / max(seconds, 1e-6))
        if lane is not Lane.CANDIDATE:
            self._active[lane if lane in FIRST else Lane.INTERACTIVE] = pace

    def seconds_for(self, tokens: int, lane: Lane = Lane.INTERACTIVE) -> float:
        """Returns the seconds that all workers together need for `tokens` of a lane's active model."""
        return tokens / (self._get_active(lane).tokens_per_second * self.workers)

    def is_measured(self, lane: Lane) -> bool:
        """Returns whether a batch of a lane was measured, so that `seconds_for` is not a guess."""
        return self._get_active(lane).batches > 0

    def _get_active(self, lane: Lane) -> _Pace:
        return self._active[lane if lane in FIRST else Lane.INTERACTIVE]

    def batch_may_take(self, encoder: OpenVersion, tokens: int) -> float:
        """Returns the time limit in seconds for a batch of `tokens`, padding included."""
        return self._bound(tokens / self._get_pace(encoder).tokens_per_second)

    def _get_pace(self, encoder: OpenVersion) -> _Pace:
        return self._paces.setdefault(encoder, _Pace(encoder.file_bytes))

    def tokenizing_may_take(self, characters: int) -> float:
        return self._bound(characters / CHARACTERS_PER_SECOND)

    def _bound(self, predicted_seconds: float) -> float:
        if not self.hang_seconds:
            return math.inf
        return max(self.hang_seconds, BATCH_FACTOR * predicted_seconds)


@dataclass(eq=False)
class Admission:
    """Rejects calls that exceed a limit of the queue.

    Reads the queue's numbers without its lock. All calls join on one thread, so the numbers can only fall
    until the next call joins.

    Args:
        max_tokens: Tokens that may wait in one lane.
        max_seconds: Seconds that a call of the first lanes may wait for its turn. 0 means no limit.

    """

    _scheduler: Scheduler
    _throughput: ThroughputEstimate
    max_tokens: int
    max_seconds: float = 0

    def check(self, lane: Lane, cost: int) -> None:
        """Rejects a call of about `cost` tokens if `lane` is too full.

        An empty lane accepts a call of any size. Otherwise a call above the limit could never be served. The
        time limit does not reject a call that begins in the next batches: with a large model, a single batch
        may take longer, and sending again later would not help. Before the first batch of a lane, its time
        is unknown, and only the limit of tokens applies.

        Raises:
            Overloaded: A limit is exceeded. Carries Retry-After.

        """
        waiting = self._scheduler.lanes[lane].tokens
        if waiting and waiting + cost > self.max_tokens:
            raise Overloaded(
                f"{waiting} tokens are in the queue. With this request they would be about {waiting + cost}. "
                f"The limit is {self.max_tokens} (SIMILE_MAX_QUEUE_TOKENS). Send again later, or send less.",
                retry_after_seconds=self._throughput.seconds_for(waiting, lane),
            )
        if not self.max_seconds or lane not in FIRST or not self._throughput.is_measured(lane):
            return
        next_batches = self._scheduler.sizes.batch_tokens * self._throughput.workers
        if self._scheduler.lanes[lane].turn_tokens <= next_batches:
            return
        seconds = self.wait_seconds(lane)
        if seconds > self.max_seconds:
            raise Overloaded(
                f"This request would wait about {seconds:.1f} s for its turn. The limit is "
                f"{self.max_seconds:g} s (SIMILE_MAX_QUEUE_SECONDS). Send again later.",
                retry_after_seconds=seconds,
            )

    def wait_seconds(self, lane: Lane = Lane.INTERACTIVE) -> float:
        return self._throughput.seconds_for(self._scheduler.lanes[lane].turn_tokens, lane)

"""Admission of calls to the queue, and the throughput that it is judged by.

A call is refused when it would wait too long for its turn, or make the queue too large. To refuse at once is
kinder than to let all wait: what is served in time stays near the best that the machine can do, and a
refused client knows when to come again.
"""

import math
from weakref import WeakKeyDictionary

from models.encoder import Encoder
from service.batching.planner import GROUP_OVERHEAD_TOKENS
from service.batching.request import Lane
from service.batching.scheduler import Scheduler
from service.errors import Overloaded

BATCH_FACTOR = 20  # a batch may take this many times as long as it should: a busy machine is no hang
CHARACTERS_PER_SECOND = 1_000_000  # that a tokenizer reads; most read several times as many
RECENT = 0.1  # how much one batch counts
FIRST_GUESS = 1000.0  # tokens per second of one worker, until a batch has been measured, of a model of
LIGHT = 90_000_000  # bytes; a larger one is guessed to be slower by as much


class _Pace:
    """Tokens per second of one worker with one model: an average over recent batches."""

    def __init__(self, file_bytes: int) -> None:
        self.tokens_per_second = FIRST_GUESS * min(1.0, LIGHT / max(1, file_bytes))
        self._batches = 0

    def measured(self, rate: float) -> None:
        self._batches += 1
        share = max(RECENT, 1 / self._batches)  # the mean of the first ones
        self.tokens_per_second += share * (rate - self.tokens_per_second)


class ThroughputEstimate:
    """The pace of each model. Workers write it without a lock: to lose one batch does no harm.

    A version that is being built teaches its own pace, so that it is known when the version comes to live.

    overhead_tokens: what every batch costs besides.
    hang_seconds: what any step may take, however little is predicted; 0: there is no bound.
    """

    def __init__(
        self, *, workers: int, hang_seconds: float, overhead_tokens: int = GROUP_OVERHEAD_TOKENS
    ) -> None:
        self.workers = workers
        self._hang_seconds = hang_seconds
        self._overhead_tokens = overhead_tokens
        self._paces: WeakKeyDictionary[Encoder, _Pace] = WeakKeyDictionary()
        self._live = _Pace(0)  # of the version in service

    def measured(self, encoder: Encoder, lane: Lane, tokens: int, seconds: float) -> None:
        """A worker embedded `tokens` in `seconds`.

        What every batch costs besides counts as tokens, or a quiet time of short texts would teach a pace
        at which the next burst seems hopeless.
        """
        pace = self._of(encoder)
        pace.measured((tokens + self._overhead_tokens) / max(seconds, 1e-6))
        if lane is not Lane.CANDIDATE:
            self._live = pace

    def seconds_for(self, tokens: int) -> float:
        """Seconds that all workers together need for `tokens` of the version in service."""
        return tokens / (self._live.tokens_per_second * self.workers)

    def batch_may_take(self, encoder: Encoder, tokens: int) -> float:
        """Seconds after which a batch of `tokens`, padding included, counts as hanging."""
        return self._bound(tokens / self._of(encoder).tokens_per_second)

    def _of(self, encoder: Encoder) -> _Pace:
        return self._paces.setdefault(encoder, _Pace(encoder.file_bytes))

    def tokenizing_may_take(self, characters: int) -> float:
        """Seconds after which tokenizing `characters` counts as hanging."""
        return self._bound(characters / CHARACTERS_PER_SECOND)

    def _bound(self, predicted_seconds: float) -> float:
        if not self._hang_seconds:
            return math.inf
        return max(self._hang_seconds, BATCH_FACTOR * predicted_seconds)


class Admission:
    """Lets calls join the scheduler, or refuses them. It reads numbers that may be a moment old: calls come
    on one thread, and until one has joined they only fall.

    max_seconds: of waiting for a turn, in the interactive lane; 0: no bound.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        throughput: ThroughputEstimate,
        *,
        max_tokens: int,
        max_seconds: float = 0,
    ) -> None:
        self._scheduler = scheduler
        self._throughput = throughput
        self.max_tokens = max_tokens
        self.max_seconds = max_seconds

    def check(self, lane: Lane, cost: int) -> None:
        """Raise Overloaded when a call of about `cost` tokens may not join `lane`.

        A call larger than the whole limit is let in when nothing waits, or it could never be served. Its own
        size is no wait of other calls, which take turns with it.
        """
        waiting = self._scheduler.lanes[lane].tokens
        if waiting and waiting + cost > self.max_tokens:
            raise Overloaded(
                f"{waiting} tokens wait already; with this request about {waiting + cost} would, and the "
                f"limit is {self.max_tokens} (SIMILE_MAX_QUEUE_TOKENS). Send again later, or less at once.",
                retry_after_seconds=self._throughput.seconds_for(waiting),
            )
        if not self.max_seconds or lane is not Lane.INTERACTIVE:
            return
        seconds = self.wait_seconds()
        if seconds > self.max_seconds:
            raise Overloaded(
                f"This request would wait about {seconds:.1f} s for its turn, and {self.max_seconds:g} s "
                "are allowed (SIMILE_MAX_QUEUE_SECONDS). Send again later.",
                retry_after_seconds=seconds,
            )

    def wait_seconds(self) -> float:
        """Seconds that an interactive call that comes now would wait for its turn, about."""
        return self._throughput.seconds_for(self._scheduler.lanes[Lane.INTERACTIVE].turn_tokens)

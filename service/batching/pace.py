"""How fast tokens are embedded: when to come back to a full queue, and how long a batch may take."""

import math

from service.batching.planner import GROUP_OVERHEAD_TOKENS

BATCH_FACTOR = 20  # a batch may take this many times as long as it should: a busy machine is no hang
CHARACTERS_PER_SECOND = 1_000_000  # that a tokenizer reads; most read several times as many
RECENT = 0.1  # how much one batch counts
FIRST_GUESS = 1000.0  # tokens per second of one worker, until a batch has been measured


class ThroughputEstimate:
    """An average over recent batches. Workers write it without a lock: to lose one batch does no harm.

    overhead_tokens: what every batch costs besides.
    hang_seconds: what any step may take, however little is predicted; 0: there is no bound.
    """

    def __init__(
        self, *, workers: int, hang_seconds: float, overhead_tokens: int = GROUP_OVERHEAD_TOKENS
    ) -> None:
        self.workers = workers
        self._hang_seconds = hang_seconds
        self._overhead_tokens = overhead_tokens
        self._tokens_per_second = FIRST_GUESS  # of one worker
        self._batches = 0

    def measured(self, tokens: int, seconds: float) -> None:
        """One worker embedded `tokens` in `seconds`.

        What every batch costs besides counts as tokens, or a quiet time of short texts would teach a pace
        at which the next burst seems hopeless.
        """
        rate = (tokens + self._overhead_tokens) / max(seconds, 1e-6)
        self._batches += 1
        share = max(RECENT, 1 / self._batches)  # the mean of the first ones
        self._tokens_per_second += share * (rate - self._tokens_per_second)

    def seconds_for(self, tokens: int) -> float:
        """How long all workers together need for `tokens`."""
        return tokens / (self._tokens_per_second * self.workers)

    def batch_may_take(self, tokens: int) -> float:
        """Seconds after which a batch of `tokens`, padding included, counts as hanging."""
        return self._bound(tokens / self._tokens_per_second)

    def tokenising_may_take(self, characters: int) -> float:
        """Seconds after which tokenising `characters` counts as hanging."""
        return self._bound(characters / CHARACTERS_PER_SECOND)

    def _bound(self, predicted_seconds: float) -> float:
        if not self._hang_seconds:
            return math.inf
        return max(self._hang_seconds, BATCH_FACTOR * predicted_seconds)

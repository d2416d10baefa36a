"""Whether a call may join the queue: not when it would wait too long for its turn, or make it too large.

To refuse at once is kinder than to let everybody wait: what is served in time stays near the best that the
machine can do, and who is refused knows when to come again.
"""

from service.batching.pace import ThroughputEstimate
from service.batching.request import Lane
from service.batching.scheduler import Scheduler
from service.errors import Overloaded


class Admission:
    """max_seconds: of waiting for a turn, in the interactive lane; 0: no bound."""

    def __init__(self, pace: ThroughputEstimate, *, max_tokens: int, max_seconds: float = 0) -> None:
        self._throughput = pace
        self.max_tokens = max_tokens
        self.max_seconds = max_seconds

    def check(self, scheduler: Scheduler, lane: Lane, cost: int) -> None:
        """Raise Overloaded when a call of about `cost` tokens may not join `lane`.

        A call larger than the whole limit is let in when nothing waits, or it could never be served. Its own
        size is no wait of others, who take turns with it.
        """
        waiting = scheduler.tokens(lane)
        if waiting and waiting + cost > self.max_tokens:
            raise Overloaded(
                f"{waiting} tokens wait already; with this request about {waiting + cost} would, and the "
                f"limit is {self.max_tokens} (SIMILE_MAX_QUEUE_TOKENS). Send again later, or less at once.",
                retry_after_seconds=self._throughput.seconds_for(waiting),
            )
        seconds = self.wait_seconds(scheduler)
        if self.max_seconds and lane is Lane.INTERACTIVE and seconds > self.max_seconds:
            raise Overloaded(
                f"This request would wait about {seconds:.1f} s for its turn, and {self.max_seconds:g} s "
                "are allowed (SIMILE_MAX_QUEUE_SECONDS). Send again later.",
                retry_after_seconds=seconds,
            )

    def wait_seconds(self, scheduler: Scheduler) -> float:
        """How long an interactive call that comes now would wait for its turn."""
        return self._throughput.seconds_for(scheduler.turn_tokens(Lane.INTERACTIVE))

"""The lanes as the event loop, the workers and the supervisor share them: one lock, and who sleeps on it."""

import threading
from collections.abc import Callable, Iterable

from service.batching.request import EmbedCall, Item, Job, Lane
from service.batching.scheduler import Scheduler
from service.batching.sizes import Sizes
from service.batching.workers import Worker


class Queue:
    """`scheduler` may be read without the lock where a number that is a moment old will do.

    all_on_candidates: whether no regular worker is left for the lanes of the version in service. Then the
    spare worker takes what waits there.
    """

    def __init__(self, sizes: Sizes, all_on_candidates: Callable[[], bool]) -> None:
        self._sizes = sizes
        self.scheduler = Scheduler(sizes=sizes)
        self.stopping = False
        self._all_on_candidates = all_on_candidates
        lock = threading.Lock()  # guards all of it
        self._wake = threading.Condition(lock)
        self._wake_spare = threading.Condition(lock)

    def put(self, call: EmbedCall, rows: list[Item], check: Callable[[Scheduler], None]) -> bool:
        """Let `rows` of `call` wait. False when the service is stopping.

        Raises:
            Overloaded: what `check` says. Nothing waits then.

        """
        with self._wake:
            if self.stopping:
                return False
            check(self.scheduler)
            self.scheduler.put(call, rows)
            self._wake.notify(len(rows))
            self._call_spare()
        return True

    def take(self, worker: Worker) -> tuple[Job, Scheduler] | None:
        """The next job, as soon as there is one for `worker`, and the lanes it is from; None at the end."""
        with self._wake:
            worker.on_candidate = False
            while not (job := self._next(worker)):
                if self.stopping or worker.given_up:
                    return None
                (self._wake_spare if worker.spare else self._wake).wait()
            worker.on_candidate = job.rows[0].call.lane is Lane.CANDIDATE
            self._call_spare()
            return job, self.scheduler

    def _next(self, worker: Worker) -> Job | None:
        if worker.given_up:
            return None
        if not worker.spare:
            return self.scheduler.take()
        return self.scheduler.take(candidates=False) if self._all_on_candidates() else None

    def _call_spare(self) -> None:
        if self._all_on_candidates():
            self._wake_spare.notify()

    def tokenised(self, rows: list[Item], scheduler: Scheduler) -> list[Item]:
        """As `Scheduler.tokenised`; `scheduler` as `take` answered. The caller takes the next job itself."""
        with self._wake:
            following = scheduler.tokenised(rows)
            self._wake.notify(len(rows) - 1)
            self._call_spare()
        return following

    def awaited(self, rows: list[Item]) -> list[Item]:
        """As `Scheduler.awaited`."""
        with self._wake:
            return self.scheduler.awaited(rows)

    def release(self, rows: Iterable[Item]) -> list[list[Item]]:
        """As `Scheduler.release`."""
        with self._wake:
            return self.scheduler.release(rows)

    def discard(self, call: EmbedCall) -> None:
        """As `Scheduler.discard`."""
        with self._wake:
            self.scheduler.discard(call)

    def drain(self) -> list[Item]:
        """As `Scheduler.drain`."""
        with self._wake:
            return self.scheduler.drain()

    def stop(self) -> list[Item]:
        """Nothing waits from now on, and workers come back from `take`. What waited."""
        with self._wake:
            self.stopping = True
            rows = self.scheduler.drain()
            self._wake.notify_all()
            self._wake_spare.notify_all()
        return rows

    def renew(self, calls: Iterable[EmbedCall]) -> None:
        """Begin with empty lanes; of `calls`, which were in the old ones, nothing waits."""
        with self._wake:
            self.scheduler = Scheduler(sizes=self._sizes)
            for call in calls:
                call.gone = True

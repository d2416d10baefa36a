"""The items that wait for the encoder, and the next job: a policy, and one lock around it.

Three lanes. Interactive goes first; the other two take turns, get at least one batch in ten while it waits
too, and only small batches while interactive work is recent, so that no request waits long behind one. The
candidate lane is for versions that are not in service: the spare worker, which takes what waits while every
other worker has a candidate's items in hand, leaves it out. Within a lane calls take turns (lane.py).

No tokenizer, no model, no event loop.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from service.batching.lane import FairQueue
from service.batching.planner import PROCESSOR, Sizes
from service.batching.request import EmbedCall, Item, Job, Lane
from service.batching.workers import Worker

INTERACTIVE_SECONDS = 5.0  # interactive work is recent this long after its last arrival
BACKGROUND_EVERY = 10  # one batch in ten is not interactive's while other lanes wait too


class Scheduler:
    """All lanes. Their numbers may be read without the lock, where one that is a moment old will do.

    workers: every worker that takes jobs from here; an entry may be replaced.
    clock: gives seconds and only ever rises.
    """

    def __init__(
        self,
        sizes: Sizes = PROCESSOR,
        workers: Sequence[Worker] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lanes: dict[Lane, FairQueue] = {}
        self.stopping = False
        self._sizes = sizes
        self._workers = workers
        self._clock = clock
        self._epoch = 0
        lock = threading.Lock()  # guards what follows
        self._wake = threading.Condition(lock)
        self._wake_spare = threading.Condition(lock)
        self._empty()

    def _empty(self) -> None:
        self.lanes.update((lane, FairQueue(self._sizes)) for lane in Lane)
        self._last_interactive = float("-inf")
        self._since_background = 0
        self._others = [Lane.BACKGROUND, Lane.CANDIDATE]  # the one whose turn it is comes first

    def is_idle(self) -> bool:
        """True when nothing waits, and at most one worker has a job in hand."""
        busy = sum(worker.job is not None for worker in self._workers)
        return busy <= 1 and not any(queue.texts for queue in self.lanes.values())

    def put(self, call: EmbedCall, items: list[Item]) -> bool:
        """Let `items` of a new call wait. False when the service is stopping."""
        with self._wake:
            if self.stopping:
                return False
            if call.lane is Lane.INTERACTIVE:
                self._last_interactive = self._clock()
            self._notify(len(items))
            self.lanes[call.lane].put(call, items)
        return True

    def promote(self, item: Item, call: EmbedCall) -> None:
        """Let `item` take turns of `call`, in whose lane it gets them sooner, unless it is in a batch."""
        with self._wake:
            if (
                item.taken or item.cancelled or not item.counted
            ):  # or it failed, and its callers learn it soon
                return
            if call.lane is Lane.INTERACTIVE:
                self._last_interactive = self._clock()
            self._notify(1)  # the spare worker leaves the candidates' lane out
            before, after = self.lanes[item.call.lane], self.lanes[call.lane]
            waited = before.remove(item.call, {item})
            item.call = call
            if not waited:  # it is being tokenized
                before.uncount(item)
                after.count(item)
            elif item.ids:
                after.wait(item)
            else:
                after.put(call, [item])

    def take(self, worker: Worker) -> Job | None:
        """The next job, as soon as there is one for `worker`; None when it is to end."""
        with self._wake:
            worker.on_candidate = False
            while (job := self._job_for(worker)) is None:
                if self.stopping or worker.given_up:
                    return None
                (self._wake_spare if worker.spare else self._wake).wait()
            worker.on_candidate = job.items[0].call.lane is Lane.CANDIDATE
            if worker.on_candidate:
                self._notify(0)
            job.epoch = self._epoch
            return job

    def tokenized(self, job: Job) -> None:
        """Items that were taken to be tokenized: those with `ids` wait for a batch from now on."""
        with self._wake:
            if job.epoch != self._epoch:
                return
            self._notify(len(job.items) - 1)  # the worker itself takes the next job
            for item in job.items:
                self.lanes[item.call.lane].tokenized(item)

    def discard(self, items: Iterable[Item]) -> None:
        """Items that no call waits for any more: they free their places at once."""
        with self._wake:
            unwanted = set(items)
            for call in {item.call for item in unwanted}:
                self.lanes[call.lane].remove(call, unwanted)

    def drain(self) -> list[Item]:
        """Take every item out, to be failed."""
        with self._wake:
            return self._drained()

    def stop(self) -> list[Item]:
        """Nothing waits from now on, and workers come back from `take`. What waited."""
        with self._wake:
            self.stopping = True
            self._wake.notify_all()
            self._wake_spare.notify_all()
            return self._drained()

    def reset(self, items: Iterable[Item]) -> None:
        """Begin with empty lanes: none of `items`, all there are, waits or comes back to them."""
        with self._wake:
            self._epoch += 1
            self._empty()
            for item in items:
                item.counted = False
                item.call.untokenized.clear()
                item.call.ready.clear()

    # The policy; the caller holds the lock.

    def next_job(self, *, candidates: bool = True) -> Job | None:
        """The next job for a free worker, None when nothing waits.

        candidates: else their lane is left out.
        """
        is_recent = self._clock() - self._last_interactive < INTERACTIVE_SECONDS
        full = self._sizes.batch_tokens
        other_budget = self._sizes.small_batch_tokens if is_recent else full
        others = [(lane, other_budget) for lane in self._others if candidates or lane is not Lane.CANDIDATE]
        first = (Lane.INTERACTIVE, full)
        is_due = self._since_background >= BACKGROUND_EVERY - 1
        for lane, budget in [*others, first] if is_due else [first, *others]:
            job = self.lanes[lane].take(budget)
            if job is None:
                continue
            if job.embed and lane is Lane.INTERACTIVE:
                self._since_background += 1
            elif job.embed:
                self._since_background = 0
                self._others.sort(key=lambda other: other is lane)  # it was served: the other one comes first
            return job
        return None

    def _drained(self) -> list[Item]:
        return [item for queue in self.lanes.values() for item in queue.drain()]

    def _job_for(self, worker: Worker) -> Job | None:
        if worker.given_up:
            return None
        if not worker.spare:
            return self.next_job()
        return self.next_job(candidates=False) if self._all_on_candidates() else None

    def _all_on_candidates(self) -> bool:
        """True when no worker but the spare is left for the version in service."""
        return all(worker.on_candidate for worker in self._workers if not worker.spare)

    def _notify(self, workers: int) -> None:
        """Wake so many workers, and the spare one where it is needed; they look once the lock is free."""
        self._wake.notify(workers)
        if self._all_on_candidates():
            self._wake_spare.notify()

"""Chooses the next job of a free worker. The policy is in `Scheduler.next_job` and `FairQueue.take`.

The interactive lane and the lane of the reranker go first, and take turns. The background and candidate lanes
take turns, too. Together they get at least one batch in ten while the first lanes have work. Their batches
are small while such work is recent, so no request waits long. The spare worker runs only while all others run
candidates or the reranker, and skips their lanes.

Within a lane, calls take turns. The oldest item of the first call is in the next batch, and then the call
moves to the back. So a call of 2,000 texts delays a call of one text by a single batch.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf

from service.batching.planner import PROCESSOR, Sizes, group_of_oldest
from service.batching.request import ASIDE, FIRST, EmbedCall, Item, Job, Lane, measure
from service.batching.workers import Worker

TOKENIZE_ITEMS = 64
TOKENIZE_CHARACTERS = 65_536  # Tokenizing them takes a worker about 15 ms.


class FairQueue:
    """The queue of one lane, in which calls take turns.

    A call is in `new` or `untokenized` while it has items to tokenize, and in `ready` while it has tokenized
    items. A served call moves to the back of its queue.
    """

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self.new: deque[EmbedCall] = deque()  # calls without tokenized items
        self.untokenized: deque[EmbedCall] = deque()
        self.ready: deque[EmbedCall] = deque()
        self.ahead = 0  # tokenized items
        self.texts = 0  # all pending items, including those that a worker tokenizes
        self.tokens = 0
        self._tokenized_last = False

    @property
    def turn_tokens(self) -> int:
        """Estimated tokens that workers embed before a new call's first text: a text of each pending call."""
        # Most calls in `untokenized` are also in `ready`.
        calls = len(self.new) + max(len(self.untokenized), len(self.ready))
        return calls * self.tokens // max(1, self.texts)

    def put(self, call: EmbedCall, items: list[Item]) -> None:
        if items and not call.untokenized:
            (self.untokenized if call.ready else self.new).append(call)
        call.untokenized.extend(items)
        for item in items:
            self.count(item)

    def count(self, item: Item) -> None:
        item.counted = True
        self.texts += 1
        self.tokens += item.cost

    def uncount(self, item: Item) -> None:
        item.counted = False
        self.texts -= 1
        self.tokens -= item.cost

    def tokenized(self, item: Item) -> None:
        """Takes an item back after tokenizing. If the item has `ids`, it then waits for a batch."""
        self.uncount(item)
        if item.ids and not item.cancelled:
            item.cost = len(item.ids)
            self.wait(item)

    def wait(self, item: Item) -> None:
        self.count(item)
        self.ahead += 1
        if not item.call.ready:
            self.ready.append(item.call)
        item.call.ready.append(item)

    def remove(self, call: EmbedCall, unneeded: set[Item]) -> list[Item]:
        """Removes the pending items of `call` that are in `unneeded`, and returns them."""
        removed = [item for item in (*call.untokenized, *call.ready) if item in unneeded]
        if not removed:
            return removed
        for item in removed:
            self.uncount(item)
        had, waited = len(call.untokenized), len(call.ready)
        call.untokenized = deque(item for item in call.untokenized if item not in unneeded)
        call.ready = deque(item for item in call.ready if item not in unneeded)
        self.ahead -= waited - len(call.ready)
        if had and not call.untokenized:
            (self.new if call in self.new else self.untokenized).remove(call)
        if waited:
            self._tidy([call])
        return removed

    def drain(self, like: EmbedCall | None = None) -> list[Item]:
        """Removes all pending items, or those of the encoder of a call, and returns them."""
        calls = {*self.new, *self.untokenized, *self.ready}
        if like is not None:
            calls = {call for call in calls if call.encoder is like.encoder}
        return [item for call in calls for item in self.remove(call, {*call.untokenized, *call.ready})]

    def take(self, budget_tokens: int, *, batches: bool = True) -> Job | None:
        """Returns the next job, or None. If `batches` is False, the job can only be texts to tokenize.

        Workers tokenize a limited number of texts ahead. Beyond that they tokenize the first items of new
        calls, so that these can take their turns. Such jobs alternate with batches.
        """
        few = self.ahead < (self._sizes.window if batches else self._sizes.ahead)
        calls = self.new or self.untokenized
        if calls and (few or (self.new and not (self._tokenized_last and batches))):
            self._tokenized_last = True
            return Job(self._take_untokenized(calls), embed=False)
        if not batches:
            return None
        self._tokenized_last = False
        return Job(self._take_group(budget_tokens), embed=True) if self.ready else None

    def _take_untokenized(self, calls: deque[EmbedCall]) -> list[Item]:
        items: list[Item] = []
        characters = 0
        for item in _in_turn([call.untokenized for call in islice(calls, TOKENIZE_ITEMS)]):
            items.append(item)
            characters += measure(item.source)
            if len(items) == TOKENIZE_ITEMS or characters >= TOKENIZE_CHARACTERS:
                break
        for item in items:
            item.call.untokenized.popleft()
        for call in dict.fromkeys(item.call for item in items):
            calls.remove(call)
            if call.untokenized:
                self.untokenized.append(call)
        return items

    def _take_group(self, budget_tokens: int) -> list[Item]:
        first, sizes = self.ready[0], self._sizes
        alike = [
            call.ready
            for call in islice(self.ready, sizes.window)
            if call.encoder is first.encoder and call.normalize == first.normalize
        ]
        window = list(islice(_in_turn(alike), sizes.window))
        lengths = [len(item.ids) for item in window]
        if sizes.laddered:
            lengths = [sizes.length(length, first.encoder.max_length) for length in lengths]
        budget = sizes.budget(budget_tokens, first.encoder)
        places = group_of_oldest(lengths, budget, sizes.costs(first.encoder))
        group = [window[at] for at in places]
        for item in group:
            item.taken = True
            self.uncount(item)
        calls = dict.fromkeys(item.call for item in group)
        for call in calls:
            call.ready = deque(item for item in call.ready if not item.taken)
        self._tidy(calls)
        if first.ready:
            self.ready.rotate(-1)
        self.ahead -= len(group)
        return group

    def _tidy(self, calls: Iterable[EmbedCall]) -> None:
        """Removes calls without tokenized items from `ready`."""
        done = [call for call in calls if not call.ready]
        if not done:
            return
        self.ready = deque(call for call in self.ready if call.ready)
        for call in done:
            # Otherwise the call would get no turn while new calls arrive.
            if call.untokenized and call in self.untokenized:
                self.untokenized.remove(call)
                self.new.append(call)


def _in_turn(queues: Sequence[Iterable[Item]]) -> Iterator[Item]:
    """Yields the first item of each queue, then each second item, and so on."""
    turns: list[Iterator[Item]] = [iter(items) for items in queues]
    while turns:
        left = []
        for items in turns:
            item = next(items, None)
            if item is not None:
                left.append(items)
                yield item
        turns = left


INTERACTIVE_SECONDS = 5.0  # Interactive work is recent for this long after its last arrival.
BACKGROUND_EVERY = 10  # One batch in ten is for the other lanes if they have items.


@dataclass(eq=False)
class Scheduler:
    """All lanes and the lock that guards them. The counters of a lane may be read without the lock.

    Args:
        workers: The workers that take jobs. Entries may be replaced.

    """

    sizes: Sizes = PROCESSOR
    workers: Sequence[Worker] = ()
    clock: Callable[[], float] = time.monotonic
    lanes: dict[Lane, FairQueue] = field(default_factory=dict)
    stopping = False
    _epoch = 0

    def __post_init__(self) -> None:
        lock = threading.Lock()  # guards the lanes and the fields below
        self._wake = threading.Condition(lock)
        self._wake_spare = threading.Condition(lock)
        self._empty()

    def _empty(self) -> None:
        self.lanes.update((lane, FairQueue(self.sizes)) for lane in Lane)
        self._last_interactive = float("-inf")
        self._since_background = 0
        # The lane whose turn it is comes first.
        self._first, self._others = [*FIRST], [Lane.BACKGROUND, Lane.CANDIDATE]

    def is_idle(self) -> bool:
        """Returns whether no items are pending and at most one worker has a job."""
        busy = sum(worker.job is not None for worker in self.workers)
        return busy <= 1 and not any(queue.texts for queue in self.lanes.values())

    def put(self, call: EmbedCall, items: list[Item]) -> bool:
        """Queues the items of a new call. Returns False if the service is stopping."""
        with self._wake:
            if self.stopping:
                return False
            if call.lane in FIRST:
                self._last_interactive = self.clock()
            self._notify(len(items))
            self.lanes[call.lane].put(call, items)
        return True

    def promote(self, item: Item, call: EmbedCall) -> None:
        """Moves `item` to the more urgent lane of `call`, unless it is in a batch."""
        with self._wake:
            if item.taken or item.cancelled or not item.counted:  # A failed item is not counted either.
                return
            if call.lane in FIRST:
                self._last_interactive = self.clock()
            self._notify(1)  # The item may now suit the spare worker, which skips the candidate lane.
            before, after = self.lanes[item.call.lane], self.lanes[call.lane]
            waited = before.remove(item.call, {item})
            item.call = call
            if not waited:  # A worker tokenizes it at the moment.
                before.uncount(item)
                after.count(item)
            elif item.ids:
                after.wait(item)
            else:
                after.put(call, [item])

    def take(self, worker: Worker) -> Job | None:
        """Waits for the next job of `worker`. Returns None if the worker must end."""
        with self._wake:
            worker.aside, worker.computes = None, False
            while (job := self._job_for(worker)) is None:
                if self.stopping or worker.given_up:
                    return None
                if worker.spare:
                    self._wake.notify()  # If others are free again, one takes what this worker tokenized.
                (self._wake_spare if worker.spare else self._wake).wait()
            worker.aside = job.items[0].call.lane if job.items[0].call.lane in ASIDE else None
            worker.computes = job.embed
            if self.sizes.batches_at_once < inf:
                self._notify(1)  # Another worker may now tokenize, or take a batch.
            if worker.aside:
                self._notify(0)
            job.epoch = self._epoch
            return job

    def tokenized(self, job: Job) -> None:
        """Takes the items of a tokenizing job back. Those with `ids` then wait for a batch."""
        with self._wake:
            if job.epoch != self._epoch:
                return
            self._notify(len(job.items) - 1)  # The calling worker takes the next job itself.
            for item in job.items:
                self.lanes[item.call.lane].tokenized(item)

    def discard(self, items: Iterable[Item]) -> None:
        with self._wake:
            unneeded = set(items)
            for call in {item.call for item in unneeded}:
                self.lanes[call.lane].remove(call, unneeded)

    def drain(self) -> list[Item]:
        with self._wake:
            return [item for queue in self.lanes.values() for item in queue.drain()]

    def drain_like(self, call: EmbedCall) -> list[Item]:
        """Removes the pending items of the call's lane and encoder, and returns them."""
        with self._wake:
            return self.lanes[call.lane].drain(call)

    def wake(self) -> None:
        """Lets waiting workers look for a job, because a batch hangs and no longer counts."""
        with self._wake:
            self._wake.notify_all()

    def stop(self) -> list[Item]:
        """Rejects new items and ends the workers. Returns the pending items."""
        with self._wake:
            self.stopping = True
            self._wake.notify_all()
            self._wake_spare.notify_all()
        return self.drain()

    def reset(self, items: Iterable[Item]) -> None:
        """Starts again with empty lanes. None of `items`, pending or running, returns to a lane."""
        with self._wake:
            self._epoch += 1
            self._empty()
            for item in items:
                item.counted = False
                item.call.untokenized.clear()
                item.call.ready.clear()

    # The policy; the caller holds the lock.

    def next_job(self, *, aside: bool = True) -> Job | None:
        """Returns the next job for a free worker, or None. Without `aside`, skips the lanes in ASIDE."""
        is_recent = self.clock() - self._last_interactive < INTERACTIVE_SECONDS
        full = self.sizes.batch_tokens
        other_budget = self.sizes.small_batch_tokens if is_recent else full
        is_due = self._since_background >= BACKGROUND_EVERY - 1
        for lane in [*self._others, *self._first] if is_due else [*self._first, *self._others]:
            if lane in ASIDE and not aside:
                continue
            budget = full if lane in FIRST else other_budget
            job = self.lanes[lane].take(budget, batches=self._has_free_batch(lane))
            if job is None:
                continue
            if job.embed and lane in FIRST:
                self._since_background += 1
                self._first.sort(key=lambda other: other is lane)  # The other lane is next.
            elif job.embed:
                self._since_background = 0
                self._others.sort(key=lambda other: other is lane)  # The other lane is next.
            return job
        return None

    def _has_free_batch(self, lane: Lane) -> bool:
        """Returns whether another batch of `lane` may be computed now.

        Each lane in ASIDE has its own limit; the other two lanes share one. Batches that hang do not count.
        """
        if self.sizes.batches_at_once == inf:
            return True
        group = lane if lane in ASIDE else None
        computing = sum(
            worker.computes and not worker.hangs and worker.aside is group for worker in self.workers
        )
        return computing < self.sizes.batches_at_once

    def _job_for(self, worker: Worker) -> Job | None:
        if worker.given_up or (worker.spare and not self._all_aside()):
            return None
        return self.next_job(aside=False) if worker.spare else self.next_job()

    def _all_aside(self) -> bool:
        return all(worker.aside for worker in self.workers if not worker.spare)

    def _notify(self, workers: int) -> None:
        self._wake.notify(workers)
        if self._all_aside():
            self._wake_spare.notify()

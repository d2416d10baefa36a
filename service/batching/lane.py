"""A lane: a queue of calls that take turns. Start reading at `FairQueue.take`.

The oldest item of the first call is in the next batch, and then the call moves to the back. So a call of
2,000 texts delays a call of one text by a single batch.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from service.batching.planner import Sizes, group_of_oldest
from service.batching.request import EmbedCall, Item, Job

TOKENIZE_ITEMS = 64
TOKENIZE_CHARACTERS = 65_536  # Tokenizing them takes a worker about 15 ms.


class FairQueue:
    """A lane.

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
        """Estimated tokens before the first text of a new call: one text of each pending call."""
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
        """Takes an item back after tokenizing. With `ids` it waits for a batch."""
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

    def remove(self, call: EmbedCall, unwanted: set[Item]) -> list[Item]:
        """Removes the pending items of `call` that are in `unwanted`, and returns them."""
        removed = [item for item in (*call.untokenized, *call.ready) if item in unwanted]
        if not removed:
            return removed
        for item in removed:
            self.uncount(item)
        had, waited = len(call.untokenized), len(call.ready)
        call.untokenized = deque(item for item in call.untokenized if item not in unwanted)
        call.ready = deque(item for item in call.ready if item not in unwanted)
        self.ahead -= waited - len(call.ready)
        if had and not call.untokenized:
            (self.new if call in self.new else self.untokenized).remove(call)
        if waited:
            self._tidy([call])
        return removed

    def drain(self) -> list[Item]:
        items: list[Item] = []
        for call in {*self.new, *self.untokenized, *self.ready}:
            items += self.remove(call, {*call.untokenized, *call.ready})
        return items

    def take(self, budget_tokens: int) -> Job | None:
        """Returns the next job, or None.

        Workers tokenize ahead for one batch only. Beyond that they tokenize the first items of new calls, so
        that these can take their turns. Such jobs alternate with batches.
        """
        few = self.ahead < self._sizes.window
        calls = self.new or self.untokenized
        if calls and (few or (self.new and not self._tokenized_last)):
            self._tokenized_last = True
            return Job(self._take_untokenized(calls), embed=False)
        self._tokenized_last = False
        return Job(self._take_group(budget_tokens), embed=True) if self.ready else None

    def _take_untokenized(self, calls: deque[EmbedCall]) -> list[Item]:
        items: list[Item] = []
        characters = 0
        for item in _in_turn([call.untokenized for call in islice(calls, TOKENIZE_ITEMS)]):
            items.append(item)
            characters += len(item.source)
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

"""One lane: the calls with rows that wait, and the next job among them.

Within a lane calls take turns: the call at the front has its oldest row in the next batch and then goes to
the back, so that a call of two thousand texts delays a call of one by a batch and not by all of its own.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from service.batching.planner import group_of_oldest
from service.batching.request import EmbedCall, Item, Job
from service.batching.sizes import Sizes

TOKENISE_ROWS = 64
TOKENISE_CHARACTERS = 65_536  # so one call holds a worker for about 15 ms


class FairQueue:
    """One lane. A call is in `new` or `fresh` while it has rows to be tokenised, and in `waiting` while some
    wait for a batch; in each, whoever was served goes to the back.
    """

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self.new: deque[EmbedCall] = deque()  # of which no row waits for a batch
        self.fresh: deque[EmbedCall] = deque()
        self.waiting: deque[EmbedCall] = deque()
        self.ahead = 0  # rows that wait for a batch
        self.texts = 0  # rows that wait, those that are being tokenised included
        self.tokens = 0
        self._tokenised_last = False

    @property
    def turn_tokens(self) -> int:
        """About how many tokens go before the first text of a call that comes now: one text of each call.

        A call may be in both `fresh` and `waiting`, and most of those that are in one are.
        """
        calls = len(self.new) + max(len(self.fresh), len(self.waiting))
        return calls * self.tokens // max(1, self.texts)

    def put(self, call: EmbedCall, rows: list[Item]) -> None:
        call.fresh.extend(rows)
        self.new.append(call)
        self.texts += len(rows)
        self.tokens += sum(row.cost for row in rows)

    def tokenised(self, row: Item) -> None:
        if row.call.gone or not row.ids:
            self.drop(row)
            return
        self.tokens += len(row.ids) - row.cost
        row.cost = len(row.ids)
        self._queue(row)

    def wait(self, row: Item) -> None:
        """A tokenised row that was not counted until now waits for a batch."""
        self.texts += 1
        self.tokens += row.cost
        self._queue(row)

    def withdraw(self, row: Item) -> None:
        """A row that waits for a batch does so no more."""
        row.call.waiting.remove(row)
        self.ahead -= 1
        self.drop(row)
        self._tidy([row.call])

    def drop(self, row: Item) -> None:
        """A row that was taken to be tokenised does not come back."""
        self.texts -= 1
        self.tokens -= row.cost

    def discard(self, call: EmbedCall) -> list[Item]:
        """Forget every row of `call`. Those that waited for a batch."""
        call.gone = True
        self.texts -= len(call.fresh) + len(call.waiting)
        self.tokens -= sum(row.cost for rows in (call.fresh, call.waiting) for row in rows)
        if call.fresh:
            (self.new if call in self.new else self.fresh).remove(call)
            call.fresh.clear()
        waited = list(call.waiting)
        if waited:
            self.ahead -= len(waited)
            self.waiting.remove(call)
            call.waiting.clear()
        return waited

    def take(self, budget_tokens: int) -> Job | None:
        """The next job. Rows are tokenised ahead only as far as one batch can look, but a new call's first
        ones at once, so that it can take its turn; between two such looks a batch is computed.
        """
        few = self.ahead < self._sizes.window
        calls = self.new or self.fresh
        if calls and (few or (self.new and not self._tokenised_last)):
            self._tokenised_last = True
            return Job(self._take_fresh(calls), embed=False)
        self._tokenised_last = False
        return Job(self._take_group(budget_tokens), embed=True) if self.waiting else None

    def _take_fresh(self, calls: deque[EmbedCall]) -> list[Item]:
        rows: list[Item] = []
        characters = 0
        for row in _in_turn([call.fresh for call in islice(calls, TOKENISE_ROWS)]):
            rows.append(row)
            characters += len(row.source)
            if len(rows) == TOKENISE_ROWS or characters >= TOKENISE_CHARACTERS:
                break
        for row in rows:
            row.call.fresh.popleft()
        for call in dict.fromkeys(row.call for row in rows):
            calls.remove(call)
            if call.fresh:
                self.fresh.append(call)
        return rows

    def _take_group(self, budget_tokens: int) -> list[Item]:
        """The batch that holds the oldest row of the call in front, among the rows that can share it."""
        first, sizes = self.waiting[0], self._sizes
        alike = [
            call.waiting
            for call in islice(self.waiting, sizes.window)
            if call.encoder is first.encoder and call.normalize == first.normalize
        ]
        window = list(islice(_in_turn(alike), sizes.window))
        lengths = [len(row.ids) for row in window]
        if sizes.laddered:
            lengths = [sizes.length(length, first.encoder.max_length) for length in lengths]
        places = group_of_oldest(lengths, budget_tokens, sizes.costs(first.encoder))
        group = [window[at] for at in places]
        for row in group:
            row.taken = True
        calls = dict.fromkeys(row.call for row in group)
        for call in calls:
            call.waiting = deque(row for row in call.waiting if not row.taken)
        self._tidy(calls)
        if first.waiting:
            self.waiting.rotate(-1)
        self.ahead -= len(group)
        self.texts -= len(group)
        self.tokens -= sum(row.cost for row in group)
        return group

    def _queue(self, row: Item) -> None:
        call = row.call
        self.ahead += 1
        if not call.waiting:
            self.waiting.append(call)
        call.waiting.append(row)

    def _tidy(self, calls: Iterable[EmbedCall]) -> None:
        """Rows of `calls` were taken out of those that wait: who has none left gives up its place."""
        done = [call for call in calls if not call.waiting]
        if not done:
            return
        self.waiting = deque(call for call in self.waiting if call.waiting)
        for call in done:
            if call.fresh and call in self.fresh:  # or it would have no turn while others keep coming
                self.fresh.remove(call)
                self.new.append(call)


def _in_turn(lines: Sequence[Iterable[Item]]) -> Iterator[Item]:
    """The first row of each of `lines`, then the second of each that has one, and so on."""
    turns: list[Iterator[Item]] = [iter(rows) for rows in lines]
    while turns:
        left = []
        for rows in turns:
            row = next(rows, None)
            if row is not None:
                left.append(rows)
                yield row
        turns = left

"""The rows that wait for the encoder, and who goes next.

Two lanes. Interactive goes first; background gets at least one batch in ten while both wait, and only small
batches while interactive work is about, so that nobody waits long behind one. Within a lane calls take
turns: the call at the front has its oldest row in the next batch and then goes to the back, so that a call
of two thousand texts delays a call of one by a batch and not by all of its own.

Policy alone: no thread, no lock (the batcher holds one around every call), no tokenizer, no model.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from service.calls import Call, Job, Lane, Row
from service.grouping import group_of_oldest

GROUP_WINDOW = 128  # rows looked at for one batch: more sorts better, and takes longer to plan
BATCH_TOKENS = 512  # from 256 to 512 tokens a core computes fastest: larger batches leave its cache
SMALL_BATCH_TOKENS = 256  # of the background lane while interactive work is about
ABOUT_SECONDS = 5.0  # interactive work is "about" this long after its last arrival
BACKGROUND_EVERY = 10  # one batch in ten is background's while both lanes wait
TOKENISE_ROWS = 64
TOKENISE_CHARACTERS = 65_536  # so one call holds a worker for about 15 ms


class _Line:
    """One lane. A call is in `new` or `fresh` while it has rows to be tokenised, and in `waiting` while some
    wait for a batch; in each, whoever was served goes to the back.
    """

    def __init__(self) -> None:
        self.new: deque[Call] = deque()  # of which no row waits for a batch
        self.fresh: deque[Call] = deque()
        self.waiting: deque[Call] = deque()
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

    def put(self, call: Call, rows: list[Row]) -> None:
        call.fresh.extend(rows)
        self.new.append(call)
        self.texts += len(rows)
        self.tokens += sum(row.cost for row in rows)

    def tokenised(self, row: Row) -> None:
        call = row.call
        if call.gone or not row.ids:
            self.drop(row)
            return
        self.tokens += len(row.ids) - row.cost
        row.cost = len(row.ids)
        self.ahead += 1
        if not call.waiting:
            self.waiting.append(call)
        call.waiting.append(row)

    def drop(self, row: Row) -> None:
        """A row that was taken to be tokenised does not come back."""
        self.texts -= 1
        self.tokens -= row.cost

    def discard(self, call: Call) -> None:
        """Forget every row of `call`."""
        if call.gone:
            return
        call.gone = True
        self.texts -= len(call.fresh) + len(call.waiting)
        self.tokens -= sum(row.cost for rows in (call.fresh, call.waiting) for row in rows)
        if call.fresh:
            (self.new if call in self.new else self.fresh).remove(call)
            call.fresh.clear()
        if call.waiting:
            self.ahead -= len(call.waiting)
            self.waiting.remove(call)
            call.waiting.clear()

    def take(self, budget_tokens: int) -> Job | None:
        """The next job. Rows are tokenised ahead only as far as one batch can look, but a new call's first
        ones at once, so that it can take its turn; between two such looks a batch is computed.
        """
        few = self.ahead < GROUP_WINDOW
        calls = self.new or self.fresh
        if calls and (few or (self.new and not self._tokenised_last)):
            self._tokenised_last = True
            return Job(self._take_fresh(calls), embed=False)
        self._tokenised_last = False
        return Job(self._take_group(budget_tokens), embed=True) if self.waiting else None

    def _take_fresh(self, calls: deque[Call]) -> list[Row]:
        rows: list[Row] = []
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

    def _take_group(self, budget_tokens: int) -> list[Row]:
        """The batch that holds the oldest row of the call in front, among the rows that can share it."""
        first = self.waiting[0]
        alike = [
            call.waiting
            for call in islice(self.waiting, GROUP_WINDOW)
            if call.encoder is first.encoder and call.normalize == first.normalize
        ]
        window = list(islice(_in_turn(alike), GROUP_WINDOW))
        lengths = [len(row.ids) for row in window]
        packed = first.encoder.packed
        group = [window[at] for at in group_of_oldest(lengths, budget_tokens, packed=packed)]
        taken = set(map(id, group))
        for call in dict.fromkeys(row.call for row in group):
            call.waiting = deque(row for row in call.waiting if id(row) not in taken)
            if not call.waiting:
                self.waiting.remove(call)
                if call.fresh and call in self.fresh:  # or it would have no turn while others keep coming
                    self.fresh.remove(call)
                    self.new.append(call)
        if first.waiting:
            self.waiting.rotate(-1)
        self.ahead -= len(group)
        self.texts -= len(group)
        self.tokens -= sum(row.cost for row in group)
        return group


def _in_turn(lines: Sequence[Iterable[Row]]) -> Iterator[Row]:
    """The first row of each of `lines`, then the second of each that has one, and so on."""
    turns: list[Iterator[Row]] = [iter(rows) for rows in lines]
    while turns:
        left = []
        for rows in turns:
            row = next(rows, None)
            if row is not None:
                left.append(rows)
                yield row
        turns = left


class Lanes:
    """Both lanes. `clock` gives seconds and only ever rises."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lines = {lane: _Line() for lane in Lane}
        self._last_interactive = float("-inf")
        self._since_background = 0

    def tokens(self, lane: Lane) -> int:
        """Tokens that wait in `lane`."""
        return self._lines[lane].tokens

    def texts(self, lane: Lane) -> int:
        """Texts that wait in `lane`."""
        return self._lines[lane].texts

    def turn_tokens(self, lane: Lane) -> int:
        """About how many tokens in `lane` go before the first text of a call that comes now."""
        return self._lines[lane].turn_tokens

    def put(self, call: Call, rows: list[Row]) -> None:
        """A new call and its rows, not yet tokenised."""
        self._lines[call.lane].put(call, rows)
        if call.lane is Lane.INTERACTIVE:
            self._last_interactive = self._clock()

    def tokenised(self, rows: list[Row]) -> None:
        """Rows that were taken to be tokenised: those with `ids` wait for a batch, the others have failed."""
        for row in rows:
            self._lines[row.call.lane].tokenised(row)

    def discard(self, call: Call) -> None:
        """A call that nobody waits for any more: its rows free their places at once."""
        self._lines[call.lane].discard(call)

    def take(self) -> Job | None:
        """The next job for a free worker, None when nothing waits."""
        about = self._clock() - self._last_interactive < ABOUT_SECONDS
        background_budget = SMALL_BATCH_TOKENS if about else BATCH_TOKENS
        turns = [(Lane.INTERACTIVE, BATCH_TOKENS), (Lane.BACKGROUND, background_budget)]
        if self._since_background >= BACKGROUND_EVERY - 1:
            turns.reverse()
        for lane, budget in turns:
            job = self._lines[lane].take(budget)
            if job is None:
                continue
            if job.embed:
                self._since_background = 0 if lane is Lane.BACKGROUND else self._since_background + 1
            return job
        return None

    def drain(self) -> list[Row]:
        """Take every row out, to be failed: the service is stopping."""
        rows = []
        for line in self._lines.values():
            for call in {*line.new, *line.fresh, *line.waiting}:
                rows += [*call.fresh, *call.waiting]
                line.discard(call)
        return rows

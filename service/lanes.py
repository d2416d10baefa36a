"""The rows that wait for the encoder, and who goes next.

Two lanes. Interactive goes first; background gets at least one batch in ten while both wait, and only small
batches while interactive work is about, so that nobody waits long behind one.

Policy alone: no thread, no lock (the batcher holds one around every call), no tokenizer, no model.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from models.encoder import Encoded, Encoder
from service.grouping import group_of_oldest

GROUP_WINDOW = 128  # rows looked at for one batch: more sorts better, and takes longer to plan
BATCH_TOKENS = 512  # from 256 to 512 tokens a core computes fastest: larger batches leave its cache
SMALL_BATCH_TOKENS = 256  # of the background lane while interactive work is about
ABOUT_SECONDS = 5.0  # interactive work is "about" this long after its last arrival
BACKGROUND_EVERY = 10  # one batch in ten is background's while both lanes wait
TOKENISE_ROWS = 64
TOKENISE_CHARACTERS = 65_536  # so one call holds a worker for about 15 ms


Source: TypeAlias = str | Sequence[int]  # a text, or its token ids


class Lane(StrEnum):
    INTERACTIVE = "interactive"
    BACKGROUND = "background"


@dataclass(eq=False, slots=True)
class Call:
    """One request to embed: its options, its answer so far, and the future that waits for it."""

    encoder: Encoder
    lane: Lane
    truncate: bool
    left: bool
    normalize: bool
    future: asyncio.Future[Encoded]
    vectors: NDArray[np.float32]  # (texts, dimension), filled row by row
    tokens: list[int]
    truncated: list[bool]
    missing: int  # rows not yet filled
    arrived: float  # time.monotonic()


@dataclass(eq=False, slots=True)
class Row:
    """One text of a call."""

    call: Call
    position: int
    source: Source
    cost: int  # tokens: estimated until tokenised
    ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """What a free worker does next: tokenise these rows, or embed them as one batch."""

    rows: list[Row]
    embed: bool


class _Line:
    """The rows of one lane: first to be tokenised, then waiting for a batch."""

    def __init__(self) -> None:
        self.fresh: deque[Row] = deque()
        self.waiting: deque[Row] = deque()
        self.tokens = 0

    def put(self, rows: list[Row]) -> None:
        self.fresh.extend(rows)
        self.tokens += sum(row.cost for row in rows)

    def take(self, budget_tokens: int) -> Job | None:
        """The next job. Rows are tokenised ahead only as far as one batch can look."""
        if self.fresh and len(self.waiting) < GROUP_WINDOW:
            rows = self._take_fresh()
            if rows:
                return Job(rows, embed=False)
        rows = self._take_group(budget_tokens)
        return Job(rows, embed=True) if rows else None

    def _take_fresh(self) -> list[Row]:
        rows: list[Row] = []
        characters = 0
        while len(rows) < TOKENISE_ROWS and characters < TOKENISE_CHARACTERS:
            row = self._next(self.fresh)
            if row is None:
                break
            rows.append(row)
            characters += len(row.source)
        return rows

    def _take_group(self, budget_tokens: int) -> list[Row]:
        """The batch that holds the oldest waiting row, among the rows that can share a batch with it."""
        looked_at: list[Row] = []
        while len(looked_at) < GROUP_WINDOW and (row := self._next(self.waiting)):
            looked_at.append(row)
        if not looked_at:
            return []
        first = looked_at[0].call
        window = [
            row
            for row in looked_at
            if row.call.encoder is first.encoder and row.call.normalize == first.normalize
        ]
        group = [window[at] for at in group_of_oldest([len(row.ids) for row in window], budget_tokens)]
        taken = set(map(id, group))
        self.waiting.extendleft(row for row in reversed(looked_at) if id(row) not in taken)
        self.tokens -= sum(row.cost for row in group)
        return group

    def _next(self, rows: deque[Row]) -> Row | None:
        """The oldest of `rows` that somebody still waits for; the others are dropped on the way.

        Nobody waits any more when a deadline passed, a client left, or another row failed the call.
        """
        while rows:
            row = rows.popleft()
            if not row.call.future.done():
                return row
            self.tokens -= row.cost
        return None


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

    def put(self, lane: Lane, rows: list[Row]) -> None:
        """New rows, not yet tokenised."""
        self._lines[lane].put(rows)
        if lane is Lane.INTERACTIVE:
            self._last_interactive = self._clock()

    def tokenised(self, rows: list[Row]) -> None:
        """Rows whose `ids` are known now; they wait for a batch."""
        for row in rows:
            line = self._lines[row.call.lane]
            line.tokens += len(row.ids) - row.cost
            row.cost = len(row.ids)
            line.waiting.append(row)

    def dropped(self, rows: list[Row]) -> None:
        """Rows that were taken to be tokenised and failed."""
        for row in rows:
            self._lines[row.call.lane].tokens -= row.cost

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
        rows = [row for line in self._lines.values() for row in (*line.fresh, *line.waiting)]
        self._lines = {lane: _Line() for lane in Lane}
        return rows

"""The rows that wait for the encoder, and who goes next.

Three lanes. Interactive goes first; the other two take turns, get at least one batch in ten while it waits
too, and only small batches while interactive work is about, so that nobody waits long behind one. The
candidate lane is for versions that are not in service: it can be left out, so that a worker stays free for
the others. Within a lane calls take turns (lane.py), and of equal rows one is computed (coalescing.py).

Policy alone: no thread, no lock (queue.py holds one around every call), no tokenizer, no model.
"""

import time
from collections.abc import Callable, Iterable
from itertools import chain

from service.batching.coalescing import InFlight
from service.batching.lane import FairQueue
from service.batching.request import EmbedCall, Item, Job, Lane
from service.batching.sizes import PROCESSOR, Sizes

ABOUT_SECONDS = 5.0  # interactive work is "about" this long after its last arrival
BACKGROUND_EVERY = 10  # one batch in ten is not interactive's while other lanes wait too


class Scheduler:
    """All lanes. `clock` gives seconds and only ever rises."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, sizes: Sizes = PROCESSOR) -> None:
        self._clock = clock
        self._sizes = sizes
        self._lines = {lane: FairQueue(sizes) for lane in Lane}
        self._in_flight = InFlight(self._lines)
        self._last_interactive = float("-inf")
        self._since_background = 0
        self._behind = [Lane.BACKGROUND, Lane.CANDIDATE]  # whose turn it is comes first

    def tokens(self, lane: Lane) -> int:
        """Tokens that wait in `lane`."""
        return self._lines[lane].tokens

    def texts(self, lane: Lane) -> int:
        """Texts that wait in `lane`."""
        return self._lines[lane].texts

    def turn_tokens(self, lane: Lane) -> int:
        """About how many tokens in `lane` go before the first text of a call that comes now."""
        return self._lines[lane].turn_tokens

    def put(self, call: EmbedCall, rows: list[Item]) -> None:
        """A new call and its rows, not yet tokenised."""
        self._lines[call.lane].put(call, rows)
        if call.lane is Lane.INTERACTIVE:
            self._last_interactive = self._clock()

    def tokenised(self, rows: list[Item]) -> list[Item]:
        """Rows that were taken to be tokenised: those with `ids` wait for a batch, or for an equal row; the
        others have their vector, or have failed. Those that wait for an equal row.
        """
        following: list[Item] = []
        for row in rows:
            line = self._lines[row.call.lane]
            if row.ids and not row.call.gone and self._in_flight.follows(row):
                line.drop(row)  # it costs nothing
                following.append(row)
            else:
                line.tokenised(row)
        return following

    def release(self, rows: Iterable[Item]) -> list[list[Item]]:
        """`rows` are computed, or have failed: each of them with those that waited for it."""
        return self._in_flight.release(rows)

    def awaited(self, rows: list[Item]) -> list[Item]:
        """Those of a batch that somebody still waits for; the others are released."""
        wanted = [row for row in rows if any(not other.call.future.done() for other in (row, *row.joined))]
        kept = set(map(id, wanted))
        self._in_flight.release(row for row in rows if id(row) not in kept)
        return wanted

    def discard(self, call: EmbedCall) -> None:
        """A call that nobody waits for any more: its rows free their places at once."""
        if call.gone:
            return
        waited = self._lines[call.lane].discard(call)
        for row in waited:
            self._in_flight.give_up(row)

    def take(self, *, candidates: bool = True) -> Job | None:
        """The next job for a free worker, None when nothing waits.

        candidates: else their lane is left out.
        """
        about = self._clock() - self._last_interactive < ABOUT_SECONDS
        whole = self._sizes.batch_tokens
        background_budget = self._sizes.small_batch_tokens if about else whole
        behind = [
            (lane, background_budget) for lane in self._behind if candidates or lane is not Lane.CANDIDATE
        ]
        first = (Lane.INTERACTIVE, whole)
        due = self._since_background >= BACKGROUND_EVERY - 1
        for lane, budget in [*behind, first] if due else [first, *behind]:
            job = self._lines[lane].take(budget)
            if job is None:
                continue
            if job.embed and lane is Lane.INTERACTIVE:
                self._since_background += 1
            elif job.embed:
                self._since_background = 0
                self._behind.sort(key=lambda other: other is lane)  # it was served: the other one comes first
            return job
        return None

    def drain(self) -> list[Item]:
        """Take every row out, to be failed: the service is stopping."""
        rows: list[Item] = []
        for line in self._lines.values():
            for call in {*line.new, *line.fresh, *line.waiting}:
                rows += call.fresh
                rows += chain.from_iterable(self._in_flight.release(line.discard(call)))
        return rows

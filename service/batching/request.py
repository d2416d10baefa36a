"""What the batcher is asked for and what it answers: a call, its rows, and what a worker does with some.

No policy and no lock: who goes next is in scheduler.py.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from models.encoder import Encoder

Source: TypeAlias = str | Sequence[int]  # a text, or its token ids


class Lane(StrEnum):
    INTERACTIVE = "interactive"
    BACKGROUND = "background"
    CANDIDATE = "candidate"  # of a version that is not in service; no other lane waits for it


class Timing(NamedTuple):
    """Where the time of one text of a call went, in seconds: means over the call's texts."""

    tokenize_seconds: float  # its share of its tokenising job: the job's seconds, divided by the job's rows
    queue_seconds: float  # from its arrival to the start of its forward pass, less the share above
    inference_seconds: float  # of the forward pass that it was in, which it may have shared with others


class Answer(NamedTuple):
    """What a call is answered with: `Encoded`, and how long that took."""

    vectors: NDArray[np.float32]  # (texts, dimension)
    tokens: list[int]
    truncated: list[bool]
    timing: Timing


@dataclass(eq=False, slots=True)
class EmbedCall:
    """One request to embed: its options, its answer so far, and the future that waits for it."""

    encoder: Encoder
    lane: Lane
    truncate: bool
    left: bool
    normalize: bool
    future: asyncio.Future[Answer]
    vectors: NDArray[np.float32]  # (texts, dimension), filled row by row
    tokens: list[int]
    truncated: list[bool]
    missing: int  # rows not yet filled
    arrived: float  # time.monotonic()
    shares: bool = False  # its texts may be computed together with equal ones of others
    remembers: bool = False  # and its vectors kept for those that come later
    fresh: "deque[Item]" = field(default_factory=deque)  # not tokenised yet
    waiting: "deque[Item]" = field(default_factory=deque)  # for a batch
    gone: bool = False  # nobody waits for the answer any more
    tokenise_seconds: float = 0.0  # these three are sums over its rows
    wait_seconds: float = 0.0  # from arrival to the forward pass, tokenising included
    inference_seconds: float = 0.0

    def settle(self, started: float, seconds: float) -> None:
        """One more row has its vector, from a forward pass that `started` then and took so many seconds.

        It may have arrived in the middle of it, when an equal text was in that pass.
        """
        before = started - self.arrived
        self.wait_seconds += max(0.0, before)
        self.inference_seconds += max(0.0, seconds + min(0.0, before))
        self.missing -= 1
        if not self.missing and not self.future.done():  # the client may have left while we were encoding
            self.future.set_result(self.answer())

    def refuse(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def answer(self) -> Answer:
        """Its answer, once no row is missing."""
        count = max(1, len(self.tokens))
        queued = max(0.0, self.wait_seconds - self.tokenise_seconds) / count
        timing = Timing(self.tokenise_seconds / count, queued, self.inference_seconds / count)
        return Answer(self.vectors, self.tokens, self.truncated, timing)


@dataclass(eq=False, slots=True)
class Item:
    """One text of a call."""

    call: EmbedCall
    position: int
    source: Source
    cost: int  # tokens: estimated until tokenised
    ids: Sequence[int] = ()
    spelling: bytes | None = None  # the name of its text in the cache
    name: bytes | None = None  # of its ids, there and among the rows that wait; None: it shares with nobody
    joined: "list[Item]" = field(default_factory=list)  # equal rows that get its vector
    taken: bool = False  # it is in a batch


@dataclass(frozen=True, slots=True)
class Job:
    """What a free worker does next: tokenise these rows, or embed them as one batch."""

    rows: list[Item]
    embed: bool

"""Data of the batcher: a call, its items, and a worker's job with some of them. No policy, no lock."""

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


URGENCY = tuple(Lane)  # the most urgent first


class Timing(NamedTuple):
    """Seconds that one text of a call took, by step: means over the call's texts."""

    tokenize_seconds: float  # its share of its tokenizing job: the job's seconds, divided by the job's items
    queue_seconds: float  # from its arrival to the start of its forward pass, less the share above
    inference_seconds: float  # of the forward pass that it was in, which it may have shared with others


class Answer(NamedTuple):
    """The answer to a call: `Encoded`, and how long that took."""

    vectors: NDArray[np.float32]  # (texts, dimension)
    tokens: list[int]
    truncated: list[bool]
    timing: Timing


@dataclass(eq=False, slots=True)
class EmbedCall:
    """A request to embed: its options, its answer so far, and the future that waits for it."""

    encoder: Encoder
    lane: Lane
    truncate: bool
    left: bool
    normalize: bool
    future: asyncio.Future[None]
    vectors: NDArray[np.float32]  # (texts, dimension), filled row by row
    tokens: list[int]
    truncated: list[bool]
    missing: int  # rows not yet filled
    arrived: float  # time.monotonic()
    items: "list[Item]" = field(default_factory=list)  # it waits for; another call may have asked first
    untokenized: "deque[Item]" = field(default_factory=deque)  # items that take this call's turns
    ready: "deque[Item]" = field(default_factory=deque)  # the same, tokenized: they wait for a batch
    tokenize_seconds: float = 0.0  # these three are sums over its items
    wait_seconds: float = 0.0  # from arrival to the forward pass, tokenizing included
    inference_seconds: float = 0.0


@dataclass(eq=False, slots=True)
class Item:
    """A text to be computed, for every call that waits for it.

    The event loop alone writes `waiters` and `cancelled`, under no lock; workers read `cancelled`.
    """

    call: EmbedCall  # whose turns it takes, and whose options it has
    source: Source
    cost: int  # tokens: estimated until tokenized
    waiters: list[tuple[EmbedCall, int]]  # calls, and which of their rows it fills
    key: bytes | None = None  # of the text (cache.py); None: it is shared with no other call
    is_kept: bool = False  # the cache gets its vector
    ids: Sequence[int] = ()
    truncated: bool = False
    tokenize_seconds: float = 0.0
    counted: bool = False  # in a lane's texts and tokens
    taken: bool = False  # it is in a batch
    cancelled: bool = False  # no call waits for it, and none will


@dataclass(slots=True)
class Job:
    """A free worker's next step: tokenize these items, or embed them as one batch."""

    items: list[Item]
    embed: bool
    epoch: int = 0  # of the scheduler, when it was taken

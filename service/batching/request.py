"""Data classes of the batcher: a call, its items, and a worker's job."""

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

CHARACTERS_PER_TOKEN = 4  # estimate for English with WordPiece


class Lane(StrEnum):
    INTERACTIVE = "interactive"
    BACKGROUND = "background"
    CANDIDATE = "candidate"  # for versions that are not active


URGENCY = tuple(Lane)  # most urgent first


class Timing(NamedTuple):
    """Mean seconds of each step, over the texts of a call."""

    tokenize_seconds: float  # seconds of the tokenizing job, divided by its items
    queue_seconds: float  # from arrival to the start of the forward pass, without `tokenize_seconds`
    inference_seconds: float  # seconds of the whole forward pass


class Answer(NamedTuple):
    """The vectors of a call, facts about its texts, and how long they took."""

    vectors: NDArray[np.float32]  # (texts, dimension)
    tokens: list[int]
    truncated: list[bool]
    timing: Timing
    unknown: list[int]  # Tokens of each text that are not in the model's vocabulary.


@dataclass(eq=False, slots=True)
class EmbedCall:
    """A call of `Batcher.embed`: its options, and its answer so far."""

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
    items: "list[Item]" = field(default_factory=list)  # Unfinished items, also those of other calls.
    untokenized: "deque[Item]" = field(default_factory=deque)  # items that take this call's turns
    ready: "deque[Item]" = field(default_factory=deque)  # tokenized items that take this call's turns
    unknown: list[int] = field(default_factory=list)  # as in `Answer`
    # These three are sums over the items. The wait lasts until the forward pass and includes tokenizing.
    tokenize_seconds: float = 0.0
    wait_seconds: float = 0.0
    inference_seconds: float = 0.0


@dataclass(eq=False, slots=True)
class Item:
    """A text to embed, for every call that waits for it.

    Only the event loop writes `waiters` and `cancelled`, without a lock. Workers read `cancelled`.
    """

    call: EmbedCall  # The item takes this call's turns and has its options.
    source: Source
    cost: int  # tokens, estimated until the text is tokenized
    waiters: list[tuple[EmbedCall, int]]  # the calls, with the row that the item fills
    key: bytes | None = None  # key in the cache; None if the item is not shared
    is_kept: bool = False  # The cache stores its vector.
    ids: Sequence[int] = ()
    truncated: bool = False
    unknown: int = 0
    tokenize_seconds: float = 0.0
    counted: bool = False  # The item counts in a lane's texts and tokens.
    taken: bool = False  # The item is in a batch.
    cancelled: bool = False  # No call waits for the item any more.


@dataclass(slots=True)
class Job:
    """A free worker's next step: tokenize these items, or embed them as one batch."""

    items: list[Item]
    embed: bool
    epoch: int = 0  # The scheduler's epoch when the job was taken.


def estimate(source: Source, encoder: Encoder) -> int:
    """Returns about how many tokens `source` has for the model."""
    tokens = len(source) // CHARACTERS_PER_TOKEN + 2 if isinstance(source, str) else len(source)
    return min(tokens, encoder.max_length)

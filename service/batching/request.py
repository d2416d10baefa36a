"""Data classes of the batcher: a call, its items, and a worker's job."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from models.open_version import OpenVersion
from models.tokens.pairs import Pair
from service.errors import ServiceError

Source: TypeAlias = str | Pair | Sequence[int]  # a text, a query and a text, or token ids

CHARACTERS_PER_TOKEN = 4  # estimate for English with WordPiece


class Lane(StrEnum):
    INTERACTIVE = "interactive"
    RERANK = "rerank"  # for pairs, which the reranker scores, and queries of a candidate in a live test
    BACKGROUND = "background"
    CANDIDATE = "candidate"  # for versions that are not active


URGENCY = tuple(Lane)  # most urgent first
FIRST = (Lane.INTERACTIVE, Lane.RERANK)  # Somebody waits for their calls.
ASIDE = {Lane.RERANK, Lane.CANDIDATE}  # for models other than the active encoder


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

    encoder: OpenVersion
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
    partial: bool = False  # A failure leaves the rows of its items empty, and the others are computed.
    fault: ServiceError | None = None  # the last failure of a partial call
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


def measure(source: Source) -> int:
    """Returns the number of characters of a text or a pair, or of token ids."""
    return len(source.query) + len(source.text) if isinstance(source, Pair) else len(source)


def estimate(source: Source, encoder: OpenVersion) -> int:
    """Returns about how many tokens `source` has for the model."""
    size = measure(source)
    tokens = size // CHARACTERS_PER_TOKEN + 2 if isinstance(source, str | Pair) else size
    return min(tokens, encoder.max_length)

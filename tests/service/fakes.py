"""A fake encoder whose vectors identify encoder and text; a started batcher; helpers for event loops."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from models.encoder import Encoder, Tokens
from models.engines.form import FP32
from models.errors import TooLong
from models.tokens.pairs import Pair
from service.batching.batcher import Batcher
from service.batching.request import EmbedCall, Lane
from service.corpus.corpus import Corpus
from service.observability.metrics import Metrics
from service.store.sqlite.store import SqliteStore
from tests.waiting import LIMIT


async def until(true: Callable[[], bool]) -> None:
    """Waits until `true()`. Lets calls that have begun join the queue before the first check."""
    await asyncio.sleep(0)
    while not true():  # noqa: ASYNC110  another thread changes it
        await asyncio.sleep(0.001)


def run(body: Callable[[], Awaitable[None]]) -> None:
    """Runs `body` on a new event loop, with a time limit."""

    async def bounded() -> None:
        await asyncio.wait_for(body(), LIMIT)

    asyncio.run(bounded())


def on_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs an asynchronous test on an event loop of its own."""

    @wraps(test)
    def run_test(**fixtures: Any) -> None:
        run(lambda: test(**fixtures))

    return run_test


@asynccontextmanager
async def running(
    workers: int = 1, max_queue_tokens: int = 1_000_000, single_text_threads: int = 1
) -> AsyncIterator[Batcher]:
    """Starts a batcher, and stops it at the end."""
    batcher = Batcher(
        Metrics(), workers=workers, max_queue_tokens=max_queue_tokens, single_text_threads=single_text_threads
    )
    batcher.start()
    try:
        yield batcher
    finally:
        await asyncio.to_thread(batcher.stop)


class CountingEncoder:
    """An encoder with one token per character. Vectors are (name, number of tokens, first character's code).

    A forward pass waits for `gate`. `begun` has the text lengths of each pass that began, `batches` those of
    each pass that went through the gate.
    """

    dimension = 3
    max_length = 64
    packs = False
    form = FP32
    step = 1
    opens_single_text = False
    file_bytes = 0
    unrelated = 1.0
    folder = Path("no folder")
    queries: Encoder | None = None

    def __init__(self, name: int = 1, seconds: float = 0.0) -> None:
        self.name = name
        self.seconds = seconds
        self.manifest = SimpleNamespace(version=f"v{name}", files={})
        self.fingerprint = f"{name:064x}"
        self.begun: list[list[int]] = []
        self.batches: list[list[int]] = []
        self.failing: Callable[[Sequence[Sequence[int]]], bool] = lambda ids: False
        self.gate = threading.Event()
        self.gate.set()
        self._allowed = -1  # passes until the gate closes
        self._counting = threading.Lock()

    def allow(self, passes: int = -1) -> None:
        """Opens the gate for all passes or for `passes`. A waiting pass counts. Needs one worker."""
        with self._counting:
            self._allowed = passes
            self.gate.set()

    def tokenize(
        self, texts: Sequence[str | Pair], *, truncate: bool = True, left: bool = False
    ) -> list[Tokens]:
        rows = []
        for at, text in enumerate(map("".join, texts)):
            if "untokenizable" in text:
                raise RuntimeError("no")
            if len(text) > self.max_length and not truncate:
                raise TooLong(at, len(text), self.max_length)
            kept = text[-self.max_length :] if left else text[: self.max_length]
            rows.append(Tokens([ord(character) for character in kept], len(text) > self.max_length))
        return rows

    def check_ids(self, ids: Sequence[int], *, truncate: bool = True, left: bool = False) -> Tokens:
        return Tokens(ids, truncated=False)

    def forward(self, ids: Sequence[Sequence[int]], *, normalize: bool = True) -> NDArray[np.float32]:
        lengths = [len(row) for row in ids]
        self.begun.append(lengths)
        self.gate.wait()
        time.sleep(self.seconds)
        self.batches.append(lengths)
        with self._counting:
            self._allowed -= 1
            if not self._allowed:
                self.gate.clear()
        if self.failing(ids):
            raise RuntimeError("the model broke")
        return np.array([[self.name, len(row), row[0]] for row in ids], dtype=np.float32)

    def as_encoder(self) -> Encoder:
        return cast("Encoder", self)


QUEUED = CountingEncoder().as_encoder()


def call_in(lane: Lane, texts: int = 1) -> EmbedCall:
    """Returns a call to put into a queue. It is never answered. All such calls share one encoder."""
    unused: Any = None
    return EmbedCall(QUEUED, lane, True, False, True, unused, unused, [], [], texts, 0.0)


def sqlite_of(corpus: Corpus) -> SqliteStore:
    """Returns the SQLite store of a corpus."""
    assert isinstance(corpus.store, SqliteStore)
    return corpus.store

"""The states that `/health` and `/ready` show. Start reading at `Health` and `Readiness`.

`/health` fails after a failed forward pass, and while a part of the service hangs or is dead. The service
then runs trial forward passes, with increasing pauses, so `/health` recovers without a request. Each request
for `/health` also starts a trial, so the answer is current.

`/ready` fails while the service accepts no new work. docs/OPERATIONS.md explains each reason.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from service.active import ActiveGeneration
from service.batching.batcher import Batcher
from service.errors import ServiceError
from service.lifecycle.controller import Following
from service.runtime.index_keeper import IndexKeeper
from service.runtime.watchdog import Watchdog
from service.store.protocol import DocumentStore

log = logging.getLogger(__name__)

ASK_SECONDS = 0.8  # A request for `/health` waits at most this long.
PASS_SECONDS = 10.0  # limit of a trial forward pass
LOOK_SECONDS = 0.25
MAX_SECONDS = 2.0  # between two trials
TEXT = "Is the model well?"


class Health:
    """Reports whether the model and the workers can answer requests."""

    def __init__(self, active: ActiveGeneration, batcher: Batcher, watchdog: Watchdog) -> None:
        self._active = active
        self._batcher = batcher
        self._watchdog = watchdog
        self._trying: asyncio.Task[None] | None = None

    @property
    def illness(self) -> str | None:
        """The reason why `/health` fails, or None."""
        failures = map(self._batcher.failure, self._active.generation.encoders)
        return self._watchdog.illness or next(filter(None, failures), None)

    async def ask(self) -> str | None:
        """Returns `illness`. If it is not None, first runs a trial forward pass. Takes less than a second."""
        if self.illness is not None:
            await self._try(ASK_SECONDS)
        return self.illness

    async def run(self) -> None:
        """After a failure, runs trial forward passes until one succeeds. Runs until it is cancelled."""
        pause, due = LOOK_SECONDS, 0.0
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self.illness is None:
                pause, due = LOOK_SECONDS, 0.0
            elif time.monotonic() >= due:
                await self._try(PASS_SECONDS)
                pause = min(2 * pause, MAX_SECONDS)
                due = time.monotonic() + pause

    async def _try(self, seconds: float) -> None:
        """Waits at most `seconds` for a trial forward pass. Starts a new one unless one is running."""
        if self._trying is None or self._trying.done():
            self._trying = asyncio.create_task(self._pass())
        await asyncio.wait({self._trying}, timeout=seconds)

    async def _pass(self) -> None:
        """Runs a forward pass of each encoder. The batcher records whether it succeeds."""
        try:
            with self._active.borrow() as generation:
                async with asyncio.timeout(PASS_SECONDS):
                    for encoder in generation.encoders:
                        await self._batcher.embed(encoder, [TEXT], bypass_cache=True)
        except (ServiceError, TimeoutError):
            return
        except Exception:
            log.exception("The trial forward pass failed")


class Reason(Enum):
    """The reasons why `/ready` fails, in the order in which they are checked.

    Each value contains the possible messages, in which `…` stands for variable text.
    """

    STOPPING = ("The service is stopping.",)
    UNWELL = ("Not well: …",)
    CHANGED_STORE = (
        "The database lacks …",
        "simile.db is not as Simile needs it: …",
        "A newer Simile has changed …",
    )
    LOST_DATABASE = ("This replica has lost touch with the database…",)
    BEHIND = ("… is active, and this replica is still opening it. Send again.",)
    INCOMPLETE = ("Not ready yet: …",)


class NotReady(NamedTuple):
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Readiness:
    """Reports whether the service accepts new work.

    Args:
        stops: Function that returns whether a stop signal has arrived.
        watchdog: Watchdog, which reports hanging workers and a dead writer thread.
        documents: Document store, which reports damaged tables and a lost database.
        following: Object that reports whether the active version is not open in this process yet.
        index: Index keeper, which reports documents that are missing from the active index.

    """

    stops: Callable[[], bool]
    watchdog: Watchdog
    documents: DocumentStore
    following: Following
    index: IndexKeeper

    def check(self) -> NotReady | None:
        """Returns the reason why the service accepts no new work, or None if it accepts work."""
        illness, index = self.watchdog.illness, self.index
        messages = {
            Reason.STOPPING: "The service is stopping." if self.stops() else None,
            Reason.UNWELL: None if illness is None else f"Not well: {illness}.",
            Reason.CHANGED_STORE: self.documents.damage,
            Reason.LOST_DATABASE: self.documents.lost,
            Reason.BEHIND: self.following.behind,
            Reason.INCOMPLETE: None if index.is_complete else f"Not ready yet: {index.progress}.",
        }
        return next((NotReady(reason, said) for reason, said in messages.items() if said is not None), None)

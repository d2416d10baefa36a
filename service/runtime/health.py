"""Health of the service: a real forward pass succeeded since the last failure, and nothing hangs.

After a failure a forward pass is tried again and again, ever more rarely, so that `/health` turns green by
itself; and once more for whoever asks, so that the answer is of this moment.
"""

import asyncio
import logging
import time

from service.batching.batcher import Batcher
from service.errors import ServiceError
from service.live import Live
from service.runtime.watchdog import Watchdog

log = logging.getLogger(__name__)

ASK_SECONDS = 0.8  # whoever asks for the health waits no longer than this
PASS_SECONDS = 10.0  # nor does a forward pass that is tried; behind it another one is
LOOK_SECONDS = 0.25
MOST_SECONDS = 2.0  # between two tries
TEXT = "Is the model well?"


class Health:
    """`illness` is the verdict of this moment, None while all is well."""

    def __init__(self, live: Live, batcher: Batcher, watchdog: Watchdog) -> None:
        self._live = live
        self._batcher = batcher
        self._watchdog = watchdog
        self._trying: asyncio.Task[None] | None = None

    @property
    def illness(self) -> str | None:
        failures = map(self._batcher.failure, self._live.generation.encoders)
        return self._watchdog.illness or next(filter(None, failures), None)

    async def ask(self) -> str | None:
        """The verdict; after a failure a forward pass is tried first. Answers within a second."""
        if self.illness is not None:
            await self._try(ASK_SECONDS)
        return self.illness

    async def run(self) -> None:
        """After a failure, try until a pass succeeds. Until cancelled."""
        pause, due = LOOK_SECONDS, 0.0
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self.illness is None:
                pause, due = LOOK_SECONDS, 0.0
            elif time.monotonic() >= due:
                await self._try(PASS_SECONDS)
                pause = min(2 * pause, MOST_SECONDS)
                due = time.monotonic() + pause

    async def _try(self, seconds: float) -> None:
        """Wait at most `seconds` for a forward pass: the one being tried already, or a new one."""
        if self._trying is None or self._trying.done():
            self._trying = asyncio.create_task(self._pass())
        await asyncio.wait({self._trying}, timeout=seconds)

    async def _pass(self) -> None:
        """Try a forward pass; the batcher remembers how it went."""
        try:
            with self._live.borrow() as generation:
                async with asyncio.timeout(PASS_SECONDS):
                    for encoder in generation.encoders:
                        await self._batcher.embed(encoder, [TEXT], bypass_cache=True)
        except (ServiceError, TimeoutError):
            return
        except Exception:
            log.exception("A forward pass could not be tried")

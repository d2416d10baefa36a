"""Keeping in touch: one connection on which a replica renews its lease and hears what the others announce.

What is live is read with each renewal, so a replica knows it as long as its lease lasts. When no renewal came
through for so long, another version may be live without it, and it says that it is lost.
"""

import asyncio
import logging
import math
import re
import time
import uuid
from collections.abc import Callable

import psycopg

from service.errors import Unhealthy
from service.observability import outages
from service.store.postgres.connection import PARAMETERS
from service.store.postgres.errors import reason
from service.store.postgres.replicas import BEAT, BEAT_SECONDS, CHANNEL, LEASE_SECONDS
from service.store.values import Active

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
JOIN_SECONDS = 5.0
FOLLOW_SECONDS, LOOK_SECONDS = (
    5.0,
    0.005,
)  # to wait for a version that another replica activated; between looks
# What a client may read of an error: the rest may name the host and the user.
_MISSING = re.compile(r'(?:database|relation|column) "[^"]*" (?:of relation "[^"]*" )?does not exist')


class Touch:
    """The lease of this process, and its ear. Used on the event loop, but for `lost` and `lease_age`."""

    def __init__(self, url: str) -> None:
        self.replica = uuid.uuid4().hex
        self.others = 0  # replicas beside this one, as last heard
        self._url = url
        self._serves: Callable[[], int | None] = lambda: None  # the generation that this process serves
        self._renewed = -math.inf  # time.monotonic() when the lease was last renewed, or a little before
        self._heard = asyncio.Event()  # replaced with each announcement
        self._cause = ""  # why the last renewal failed, where that is worth to be said

    @property
    def lost(self) -> str | None:
        """The reason why this process may not know which version is live, None while it does."""
        if self.lease_age < LEASE_SECONDS:
            return None
        return (
            f"This replica has lost touch with the database{self._cause}, so another version may be live by "
            "now. Send again later, or to another replica."
        )

    @property
    def lease_age(self) -> float:
        """Seconds since the lease was renewed; infinite before the first."""
        return time.monotonic() - self._renewed

    async def keep_in_touch(self, serves: Callable[[], int], follow: Callable[[Active], None]) -> None:
        """Renews the lease until cancelled.

        Args:
            serves: Returns the generation that this process serves.
            follow: Called with the active generation after each renewal and announcement.

        """
        self._serves = serves
        while True:
            try:
                await self._listen(serves, follow)
            except (psycopg.Error, OSError, TimeoutError) as error:
                self._cause = "".join(f" ({found})" for found in _MISSING.findall(str(error))[:1])
                outages.warn(log, f"Lost touch with the database: {reason(error)}")
            await asyncio.sleep(RETRY_SECONDS)

    async def stop_serving(self, generation: int | None) -> None:
        """Waits until this process serves another generation than one that is not active any more.

        Raises:
            Unhealthy: That takes too long.

        """
        deadline = time.monotonic() + FOLLOW_SECONDS
        while generation is not None and self._serves() == generation:
            if time.monotonic() > deadline:
                raise Unhealthy(
                    "Another version became active, and this replica has not loaded it yet. Send again.",
                    retry_after_seconds=1,
                )
            await asyncio.sleep(LOOK_SECONDS)

    async def joined(self) -> None:
        """Wait for the first lease, for as long as a start should."""
        deadline = time.monotonic() + JOIN_SECONDS
        while self.lost and time.monotonic() < deadline:
            await self.news(RETRY_SECONDS)

    async def news(self, seconds: float) -> None:
        """Wait for an announcement, or so long."""
        heard = self._heard
        try:
            async with asyncio.timeout(seconds):
                await heard.wait()
        except TimeoutError:
            return

    async def _listen(self, serves: Callable[[], int], follow: Callable[[Active], None]) -> None:
        async with asyncio.timeout(LEASE_SECONDS):
            connection = await psycopg.AsyncConnection.connect(
                self._url, **PARAMETERS | {"application_name": "simile lease", "prepare_threshold": None}
            )
        try:
            await connection.execute(f"LISTEN {CHANNEL}")
            while True:
                began = time.monotonic()
                async with asyncio.timeout(LEASE_SECONDS):
                    cursor = await connection.execute(BEAT, (self.replica, serves(), LEASE_SECONDS))
                    row = await cursor.fetchone()
                self._renewed, self._cause = began, ""
                if row is not None:
                    *active, self.others = row
                    follow(Active(*active))
                self._heard.set()
                self._heard = asyncio.Event()
                async for _ in connection.notifies(timeout=BEAT_SECONDS, stop_after=1):
                    pass
        finally:
            await connection.close()

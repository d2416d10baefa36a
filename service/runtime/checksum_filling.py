"""Documents from before checksums get theirs, in the background of a service."""

import asyncio
import logging
import time

from service.errors import ServiceError
from service.store.protocol import Store

log = logging.getLogger(__name__)

SAY_SECONDS = 5.0
PAUSE_SECONDS = 0.01  # between two steps: other writes come first
PERIOD_SECONDS = 3600.0  # between two looks: a replica of an older version writes documents without


async def keep_filling(store: Store) -> None:
    """Compute missing checksums now and every hour. A process that is killed goes on after its next start."""
    while True:
        try:
            await _fill(store)
        except ServiceError as error:  # a full disk, say; an hour later it may have room
            log.warning("Checksums of documents could not be stored: %s", error.message)
        await asyncio.sleep(PERIOD_SECONDS)


async def _fill(store: Store) -> None:
    total, done = await store.without_checksums(), 0
    said = time.monotonic()
    while total and (step := await store.fill_checksums()):
        done += step
        if time.monotonic() - said > SAY_SECONDS:
            said = time.monotonic()
            log.info("Computing checksums of stored documents: %d of %d are done", done, total)
        await asyncio.sleep(PAUSE_SECONDS)
    if done:
        log.info("Checksums of %d stored documents were computed", done)

"""Hourly work on the store: old events are deleted, and documents from before checksums get theirs."""

import asyncio
import logging
import time

from service.errors import ServiceError
from service.store.protocol import Store

log = logging.getLogger(__name__)

PERIOD_SECONDS = 3600.0
SAY_SECONDS = 5.0
PAUSE_SECONDS = 0.01  # Between two steps, so that other writes come first.


async def keep_expiring(store: Store, seconds: float) -> None:
    """Deletes events older than `seconds`, now and every hour, in steps with other writes between them."""
    while True:
        try:
            while await store.expire_events(time.time() - seconds):
                pass
        except ServiceError as error:  # Perhaps a full disk, which may have room an hour later.
            log.warning("Old events could not be deleted: %s", error.message)
        await asyncio.sleep(PERIOD_SECONDS)


async def keep_filling(store: Store) -> None:
    """Computes missing checksums, now and every hour: a service of an older version writes documents
    without.
    """
    while True:
        try:
            await _fill(store)
        except ServiceError as error:
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

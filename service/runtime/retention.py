"""Events of searches are deleted when they have been kept for `SIMILE_EVENTS_DAYS`."""

import asyncio
import logging
import time

from service.errors import ServiceError
from service.store.protocol import Store

log = logging.getLogger(__name__)

PERIOD_SECONDS = 3600.0  # between two looks


async def keep_expiring(store: Store, seconds: float) -> None:
    """Delete older ones now and every hour, in steps, between which other writes have their turn."""
    while True:
        try:
            while await store.expire_events(time.time() - seconds):
                pass
        except ServiceError as error:  # a full disk, say; an hour later it may have room
            log.warning("Old events could not be deleted: %s", error.message)
        await asyncio.sleep(PERIOD_SECONDS)

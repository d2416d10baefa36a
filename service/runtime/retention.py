"""Events of searches are deleted when they have been kept for `SIMILE_EVENTS_DAYS`."""

import asyncio
import time

from service.store.protocol import Store

PERIOD_SECONDS = 3600.0  # between two looks


async def keep_expiring(store: Store, seconds: float) -> None:
    """Delete older ones now and every hour, in steps, between which other writes have their turn."""
    while True:
        while await store.expire_events(time.time() - seconds):
            pass
        await asyncio.sleep(PERIOD_SECONDS)

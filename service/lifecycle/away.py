"""Reading a version's folder while that may be away: a network mount that is gone, a right that is missing.

What cannot be read now is no damage. It is tried again, and `wait` is told why.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from models.errors import Damaged, UnknownVersion, Unreadable
from models.seal import read_manifest
from models.store import Store
from service.errors import machine_error

T = TypeVar("T")
AWAY = (Unreadable, UnknownVersion, OSError)
RETRY_SECONDS, MOST_SECONDS = 2.0, 30.0


async def read_when_there(
    store: Store, version: str, work: Callable[[], T], wait: Callable[[str, float], Awaitable[None]]
) -> T:
    """`work` on the folder of `version`, on a thread of its own; again and again while it cannot be read.

    wait: is told why, and for how many seconds.

    Raises:
        Exception: whatever `work` raises while the folder can be read.

    """
    pause = RETRY_SECONDS
    while True:
        try:
            return await asyncio.to_thread(work)
        except AWAY as error:
            fault = machine_error(error)
            reason = str(error) if fault is None else fault.message
        except Damaged:
            raise
        except Exception:  # of a runtime, for example, which has words of its own for it
            away = await asyncio.to_thread(_away, store, version)
            if away is None:
                raise
            reason = str(away)
        await wait(f"{reason.rstrip('.')}; it is tried again", pause)
        pause = min(2 * pause, MOST_SECONDS)


def _away(store: Store, version: str) -> Exception | None:
    """The reason why the folder cannot be read now, None when it can."""
    try:
        read_manifest(store.folder(version))
    except AWAY as error:
        return error
    except Damaged:
        return None
    return None

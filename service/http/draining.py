"""Discards the rest of a rejected body, within limits, before its connection closes."""

import asyncio
import contextlib

from starlette.types import Receive

from service.http.body_budget import MEGABYTE

MOST_BYTES = 256 * MEGABYTE
SECONDS = 10.0


async def drain(receive: Receive) -> None:
    left = MOST_BYTES
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SECONDS):
            while left > 0 and (message := await receive()).get("more_body", False):
                left -= len(message["body"])

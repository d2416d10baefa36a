"""Limits the memory of request bodies.

Most bodies are read whole before their route runs, so `BodyBudget` bounds each body and their sum. The body
of an import is a `StreamedBody` of any length. It is read as fast as the route processes it.
"""

import asyncio

from starlette.types import Message, Receive

from service.errors import Overloaded, Timeout, TooLarge
from service.settings import Settings

MEGABYTE = 1 << 20
NDJSON = "application/x-ndjson"
RAW_FILE = "application/octet-stream"
STREAMED = {NDJSON.encode(), RAW_FILE.encode()}  # media types of bodies of any length
ROOM_SECONDS = 0.05  # between two checks for free budget


class BodyBudget:
    """Counts `admitted_bytes`: bytes that were read for requests without an answer yet."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.admitted_bytes = 0

    @property
    def full(self) -> bool:
        return self.admitted_bytes >= self._settings.max_admitted_mb * MEGABYTE

    def admit(self, count: int, read_bytes: int) -> None:
        """Rejects `count` more bytes of a body if they exceed a limit. `read_bytes` were read before."""
        limit = self._settings.max_body_mb
        if read_bytes + count > limit * MEGABYTE:
            raise TooLarge(f"The body is larger than {limit} MiB (SIMILE_MAX_BODY_MB). Send it in parts.")
        total = self._settings.max_admitted_mb
        if self.admitted_bytes + count > total * MEGABYTE:
            raise Overloaded(
                f"The bodies of pending requests exceed {total} MiB in total (SIMILE_MAX_ADMITTED_MB). "
                "Send again later.",
                retry_after_seconds=1,
            )


class StreamedBody:
    """A body of any length. Each step of progress extends its deadline."""

    def __init__(self, bodies: BodyBudget) -> None:
        self._bodies = bodies
        self._deadline: asyncio.Timeout
        self._seconds = 0.0
        self.held_bytes = 0  # read, but not processed yet
        self.done = ""  # Sentence about the finished part, for the error answer.

    def begin(self, deadline: asyncio.Timeout, seconds: float) -> None:
        """Sets the deadline that each step moves to `seconds` from now."""
        self._deadline, self._seconds = deadline, seconds

    def moved(self) -> None:
        """Extends the deadline after progress."""
        if self._deadline.expired():  # An expired timeout cannot be rescheduled.
            return
        self._deadline.reschedule(asyncio.get_running_loop().time() + self._seconds)

    async def read(self, receive: Receive) -> Message:
        """Returns the next message after the budget has room for it."""
        while self._bodies.full:  # noqa: ASYNC110  no event reports free budget
            await asyncio.sleep(ROOM_SECONDS)
        message = await receive()
        count = len(message.get("body", b""))
        if count:
            self.held_bytes += count
            self._bodies.admitted_bytes += count
            self.moved()
        return message

    def release(self, count: int) -> None:
        self.held_bytes -= count
        self._bodies.admitted_bytes -= count

    def timeout(self) -> Timeout:
        return Timeout(
            f"The body made no progress for {self._seconds:g} s (x-timeout-ms, or "
            f"SIMILE_TIMEOUT_SECONDS). {self.done}".rstrip()
        )

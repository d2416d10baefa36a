"""Bytes of bodies that were read and not yet answered, and the one body that may be as long as it likes.

A body is read whole before its route works on it, so its size and the size of all are bounded. An import's is
a `StreamedBody`: read only as fast as it is worked off, and counted only while it is worked on.
"""

import asyncio

from starlette.types import Message, Receive

from service.errors import Overloaded, Timeout, TooLarge
from service.settings import Settings

MEGABYTE = 1 << 20
NDJSON = "application/x-ndjson"
RAW_FILE = "application/octet-stream"
STREAMED = {NDJSON.encode(), RAW_FILE.encode()}  # media types of bodies without a bound
ROOM_SECONDS = 0.05  # between two looks whether there is room again


class BodyBudget:
    """The budget of one service: `admitted_bytes` are read and not yet answered."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.admitted_bytes = 0

    @property
    def full(self) -> bool:
        return self.admitted_bytes >= self._settings.max_admitted_mb * MEGABYTE

    def admit(self, count: int, read_bytes: int) -> None:
        """Refuse `count` more bytes of a body of which `read_bytes` were read, when they are too many."""
        limit = self._settings.max_body_mb
        if read_bytes + count > limit * MEGABYTE:
            raise TooLarge(f"The body is larger than {limit} MiB (SIMILE_MAX_BODY_MB). Send it in parts.")
        total = self._settings.max_admitted_mb
        if self.admitted_bytes + count > total * MEGABYTE:
            raise Overloaded(
                f"Requests of more than {total} MiB together wait for answers (SIMILE_MAX_ADMITTED_MB). "
                "Send again later.",
                retry_after_seconds=1,
            )


class StreamedBody:
    """A body without a bound. Its deadline moves on with it: it ends when nothing moves."""

    def __init__(self, bodies: BodyBudget) -> None:
        self._bodies = bodies
        self._deadline: asyncio.Timeout
        self._seconds = 0.0
        self.held_bytes = 0  # read, and not worked off yet
        self.done = ""  # what a refusal says of the part that is done

    def begin(self, deadline: asyncio.Timeout, seconds: float) -> None:
        """From now on `deadline` is always `seconds` away from the last step."""
        self._deadline, self._seconds = deadline, seconds

    def moved(self) -> None:
        """Postpone the deadline: the body made progress."""
        if self._deadline.expired():  # and the request is about to hear of it
            return
        self._deadline.reschedule(asyncio.get_running_loop().time() + self._seconds)

    async def read(self, receive: Receive) -> Message:
        """The next piece, once there is room for it among the bodies of all."""
        while self._bodies.full:  # noqa: ASYNC110  others fill it too, and none of them knows who waits
            await asyncio.sleep(ROOM_SECONDS)
        message = await receive()
        count = len(message.get("body", b""))
        if count:
            self.held_bytes += count
            self._bodies.admitted_bytes += count
            self.moved()
        return message

    def release(self, count: int) -> None:
        """`count` bytes are worked off."""
        self.held_bytes -= count
        self._bodies.admitted_bytes -= count

    def timeout(self) -> Timeout:
        """The refusal of one that does not move."""
        return Timeout(
            f"Nothing came and nothing was done for {self._seconds:g} s (x-timeout-ms, or "
            f"SIMILE_TIMEOUT_SECONDS). {self.done}".rstrip()
        )

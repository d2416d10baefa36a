"""One system call for each answer, where the transport would make one for its head and one for its body."""

import asyncio
from collections.abc import Callable
from typing import Any


class BufferedTransport(asyncio.Transport):
    """Holds what is written until an answer is whole, or the event loop comes round, and writes it at once.

    A call costs more than all else that is done to send a short answer, and wakes the other side each time.
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, on_unread: Callable[[], None]
    ) -> None:
        """on_unread: called when the other side does not take what is written as soon as it is."""
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._on_unread = on_unread
        self._held: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._held:
            self._loop.call_soon(self.flush)
        self._held.append(bytes(data))

    def flush(self) -> None:
        """Write what is held, if anything is."""
        held, self._held = self._held, []
        if not held or self._transport.is_closing():
            return
        self._transport.writelines(held)
        if self._transport.get_write_buffer_size():
            self._on_unread()

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        self._held.clear()
        self._transport.abort()

    def let_go(self) -> None:
        """The connection is lost: nobody is told of anything any more."""
        self._held.clear()
        self._on_unread = _nobody

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + sum(map(len, self._held))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._transport.set_protocol(protocol)


def _nobody() -> None:
    pass

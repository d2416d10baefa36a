"""HTTP around a request: heads that are too large, too slow or malformed, and answers that are not read.

uvicorn's own protocol over httptools, which bounds none of these: a head may grow until memory is full, one
that never ends keeps its connection for ever, and so does an answer that is never read. The number of
connections has a bound as well (connections.py).
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.errors import HeadTooLarge, Malformed, ServiceError
from service.http.connections import Connections, Place
from service.http.error_responses import response
from service.http.middleware import NOSNIFF
from service.observability.logs import request_id_of
from service.observability.metrics import UNMATCHED, Metrics

# Of the first line and all headers. The longest URL that a route here can need, a judgement's query of 4,096
# characters with its id, is 55 KiB.
HEAD_BYTES = 1 << 16
_UPGRADE = {b"connection", b"upgrade", b"http2-settings"}


class Protocol(HttpToolsProtocol):
    """A connection."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        app: Any = self.config.app
        self._metrics: Metrics = app.state.runtime.metrics
        self._connections: Connections = app.state.connections
        self._place = Place.NONE
        # A head, and the rest of a body that was refused, may take as long as a request.
        self._seconds: float = app.state.runtime.settings.timeout_seconds
        self.url = b""
        self._in_head = True
        self._too_large = False
        self._held_bytes = 0  # received since the last of a head or a body: the parser keeps them
        self._unread_bytes = 0  # of answers, at the last look
        self._patience: asyncio.TimerHandle | None = None  # closes the connection
        self._look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._buffered = BufferedTransport(transport, self.loop, self._watch_unread)
        super().connection_made(self._buffered)  # type: ignore[arg-type]
        self._place = self._connections.enter(self)
        if self._place is Place.NONE:
            self._refuse(self._connections.refusal())
        else:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.leave(self)
        self._stop_waiting()
        if self._look is not None:
            self._look.cancel()
        super().connection_lost(exc)
        self._buffered.let_go()

    def give_way(self) -> bool:
        if self.transport.get_write_buffer_size():  # an answer that is still being read
            return False
        self.transport.abort()
        return True

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._held_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.logger.warning("What arrived is no HTTP, or has too large a head. The connection is closed.")
            self.send_400_response("")
            return
        if self._held_bytes > HEAD_BYTES:
            self._too_large = True
            if not self.transport.is_closing():
                self.send_400_response("")
        elif self._in_head and self._patience is None:
            self._wait()

    def _feed(self, data: bytes) -> None:
        """Parse `data`. A request that asks for another protocol is read as if it did not.

        Java's HTTP client does that with its first one, and httptools would throw its body away.
        """
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as stopped:
                first = [
                    self.parser.get_method(),
                    self.url,
                    b"HTTP/" + self.parser.get_http_version().encode(),
                ]
                lines = [name + b": " + value for name, value in self.headers if name not in _UPGRADE]
                data = b"\r\n".join([b" ".join(first), *lines, b"", data[stopped.args[0] :]])
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            else:
                return

    # What the parser says

    def on_message_begin(self) -> None:
        # Not in data_received: line ends between two requests, which the parser skips, begin none.
        self._unset_keepalive_if_required()
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        self._held_bytes = 0
        if len(self.url) + _size(self.headers) > HEAD_BYTES:
            self._too_large = True
            raise ValueError("The parser stops at this.")
        if self.parser.get_method() == b"CONNECT":
            raise ValueError("The parser stops at this: what follows is no HTTP.")
        if not self.parser.should_upgrade():
            self._name_the_host()
            self._in_head = False
            self._stop_waiting()
            self._connections.busy(self)
            spare = self._place is Place.SPARE
            self.scope["spare"] = spare  # type: ignore[typeddict-unknown-key]  # for load_shedding.py
            super().on_headers_complete()
            if spare:
                self.cycle.keep_alive = False

    def _name_the_host(self) -> None:
        """Let the host of a whole URL in the first line count instead of the header (RFC 9112, 3.2.2)."""
        if self.url.startswith(b"/"):
            return
        url = httptools.parse_url(self.url)
        if url.host is not None:
            host = b"[" + url.host + b"]" if b":" in url.host else url.host
            named = host if url.port is None else b"%s:%d" % (host, url.port)
            self.headers[:] = [(name, named if name == b"host" else value) for name, value in self.headers]

    def on_body(self, body: bytes) -> None:
        self._held_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            self._stop_waiting()
            if self.cycle.response_complete:  # a refused body has ended: its connection is idle
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
            super().on_message_complete()

    # Waiting

    def _wait(self) -> None:
        self._patience = self.loop.call_later(self._seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def on_response_complete(self) -> None:
        self._buffered.flush()  # before the request is counted and cleared away: the client waits
        super().on_response_complete()
        if not self.cycle.response_complete:
            return
        self._connections.idle(self)
        if self._in_head or self.cycle.more_body:  # more is coming, and `_patience` bounds that
            self._unset_keepalive_if_required()
        if self.cycle.more_body and self._patience is None:
            self._wait()  # for the rest of a body that is not wanted

    def _watch_unread(self) -> None:
        if self._look is None:
            self._look = self.loop.call_later(self._seconds, self._look_at_unread)

    def _look_at_unread(self) -> None:
        """Drop the connection when nothing of its answers was read since the last look."""
        before, self._unread_bytes, self._look = (
            self._unread_bytes,
            self.transport.get_write_buffer_size(),
            None,
        )
        if before and self._unread_bytes >= before:
            self.transport.abort()
        elif self._unread_bytes:
            self._look = self.loop.call_later(self._seconds, self._look_at_unread)

    # Refusing

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  uvicorn's words, which are no JSON
        """Refuse what is no request, and close: where the next one would begin is not known."""
        cycle = self.cycle
        if (
            cycle is not None
            and not cycle.response_complete
            and (not cycle.more_body or cycle.response_started)
        ):
            cycle.keep_alive = False  # its request was whole, and is answered first
            return
        error: ServiceError = Malformed("This is not HTTP/1.1, or not all of it. Nothing was done.")
        if self._too_large:
            error = HeadTooLarge(
                f"The first line and the headers are larger than {HEAD_BYTES >> 10} KiB together. "
                "Send what is long in a body."
            )
        self._refuse(error)

    def _refuse(self, error: ServiceError) -> None:
        """Answer with `error` where there is no request to answer, and close."""
        answer = response(self.url.decode("latin-1"), error)
        self._metrics.errors.labels(error.error_type).inc()
        self._metrics.requests.labels("other", UNMATCHED, str(answer.status_code)).inc()
        phrase = HTTPStatus(answer.status_code).phrase
        head = f"HTTP/1.1 {answer.status_code} {phrase}\r\nconnection: close\r\n".encode()
        named = [*answer.raw_headers, (b"x-request-id", request_id_of(None).encode()), NOSNIFF]
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in named)
        self.transport.write(head + lines + b"\r\n" + bytes(answer.body))
        self.transport.close()


def _size(headers: list[tuple[bytes, bytes]]) -> int:
    return sum(len(name) + len(value) for name, value in headers)


class BufferedTransport:
    """Holds what is written until an answer is whole, or the event loop comes round, and writes it at once.

    A call costs more than all else that is done to send a short answer, and wakes the other side each time.
    What it does not hold or count is the transport's own.
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, on_unread: Callable[[], None]
    ) -> None:
        """on_unread: called when the other side does not take what is written as soon as it is."""
        self._transport = transport
        self._loop = loop
        self.is_closing = transport.is_closing  # asked for every request
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
        """Drop what is held: the connection is lost."""
        self._held.clear()
        self._on_unread = lambda: None

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + sum(map(len, self._held))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

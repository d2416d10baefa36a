"""Adds limits to uvicorn's HTTP protocol: large, slow or malformed heads, and answers that are never read.

uvicorn limits none of these. A head may grow until memory is full, and a head that never ends or an unread
answer keeps its connection open forever. connections.py limits the number of connections.
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

# Limit of the request line and all headers. The longest useful URL has 55 KiB: a judged query of 4,096
# characters and its id.
HEAD_BYTES = 1 << 16
_UPGRADE = {b"connection", b"upgrade", b"http2-settings"}


class Protocol(HttpToolsProtocol):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        app: Any = self.config.app
        self._metrics: Metrics = app.state.runtime.metrics
        self._connections: Connections = app.state.connections
        self._place = Place.NONE
        # Time limit of a head, and of the rest of a rejected body.
        self._seconds: float = app.state.runtime.settings.timeout_seconds
        self.url = b""
        self._in_head = True
        self._too_large = False
        self._held_bytes = 0  # Bytes in the parser, since the last complete head or part of a body.
        self._unread_bytes = 0  # Bytes of answers that the client had not read at the last check.
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
        if self.transport.get_write_buffer_size():  # The client still reads an answer.
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
            self.logger.warning("Malformed HTTP request, or too large a head. The connection is closed.")
            self.send_400_response("")
            return
        if self._held_bytes > HEAD_BYTES:
            self._too_large = True
            if not self.transport.is_closing():
                self.send_400_response("")
        elif self._in_head and self._patience is None:
            self._wait()

    def _feed(self, data: bytes) -> None:
        """Parses `data`, and ignores a request to upgrade the protocol.

        Java's HTTP client asks for HTTP/2 in its first request, and httptools would drop that body.
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

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        # data_received also runs for line ends between two requests, which start no request.
        self._unset_keepalive_if_required()
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        self._held_bytes = 0
        if len(self.url) + _size(self.headers) > HEAD_BYTES:
            self._too_large = True
            raise ValueError("The parser stops at this.")
        if self.parser.get_method() == b"CONNECT":
            raise ValueError("The parser stops at this, because other data than HTTP follows.")
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
        """Replaces the header Host by the host of an absolute URL in the request line (RFC 9112, 3.2.2)."""
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
            if self.cycle.response_complete:  # A rejected body has ended, so the connection is idle.
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
            super().on_message_complete()

    # Timeouts

    def _wait(self) -> None:
        self._patience = self.loop.call_later(self._seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def on_response_complete(self) -> None:
        self._buffered.flush()  # The client waits, so send the answer before any cleanup.
        super().on_response_complete()
        if not self.cycle.response_complete:
            return
        self._connections.idle(self)
        if self._in_head or self.cycle.more_body:  # `_patience` limits the rest of the request.
            self._unset_keepalive_if_required()
        if self.cycle.more_body and self._patience is None:
            self._wait()  # Limits the time for the rest of a rejected body.

    def _watch_unread(self) -> None:
        if self._look is None:
            self._look = self.loop.call_later(self._seconds, self._look_at_unread)

    def _look_at_unread(self) -> None:
        """Aborts the connection if the client has read nothing since the last check."""
        before, self._unread_bytes, self._look = (
            self._unread_bytes,
            self.transport.get_write_buffer_size(),
            None,
        )
        if before and self._unread_bytes >= before:
            self.transport.abort()
        elif self._unread_bytes:
            self._look = self.loop.call_later(self._seconds, self._look_at_unread)

    # Error answers

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  uvicorn's message, which is not JSON
        """Rejects a malformed request and closes, because the start of the next request is unknown."""
        cycle = self.cycle
        if (
            cycle is not None
            and not cycle.response_complete
            and (not cycle.more_body or cycle.response_started)
        ):
            cycle.keep_alive = False  # The previous request was complete and gets its answer first.
            return
        error: ServiceError = Malformed("Malformed HTTP request. Send HTTP/1.1.")
        if self._too_large:
            error = HeadTooLarge(
                f"The request line and the headers are larger than {HEAD_BYTES >> 10} KiB in total. "
                "Send long values in a body."
            )
        self._refuse(error)

    def _refuse(self, error: ServiceError) -> None:
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
    """Buffers writes until an answer is complete or the event loop's next iteration, then writes once.

    A system call is the most expensive part of a short answer, and each one wakes the client. Other calls go
    to the wrapped transport.

    Args:
        on_unread: Called if the client does not take written bytes at once.

    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, on_unread: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._loop = loop
        self.is_closing = transport.is_closing  # An attribute is faster, and every request uses it.
        self._on_unread = on_unread
        self._held: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._held:
            self._loop.call_soon(self.flush)
        self._held.append(bytes(data))

    def flush(self) -> None:
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
        """Discards the buffered bytes after the connection is lost."""
        self._held.clear()
        self._on_unread = lambda: None

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + sum(map(len, self._held))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

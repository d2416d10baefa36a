"""Limits the number of connections, and what each connection may use.

Each connection costs a file descriptor and some memory. At the limit, a new connection replaces the
connection that has been idle longest. If no connection is idle, a few spare connections are still accepted,
for `/health`.

uvicorn limits neither the head of a request nor unread answers, so `Protocol` limits both. asyncio reports a
TLS connection only after the handshake, so clients that never finish a handshake could use up all file
descriptors. `Handshake` therefore counts connections during the handshake.
"""

import asyncio
import logging
import resource
import ssl
import time
import typing
from asyncio import sslproto
from collections.abc import Callable
from enum import Enum
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.errors import HeadTooLarge, Malformed, ServiceError, Unhealthy
from service.http.error_responses import NOSNIFF, response
from service.observability.logs import choose_request_id
from service.observability.metrics import UNMATCHED, Metrics

log = logging.getLogger(__name__)

SPARE = 16
# A connection that became idle more recently stays open, because its next request may be on the way.
MIN_IDLE_SECONDS = 1.0
# File descriptors for SQLite, indexes, models, logs, pipes and TLS handshakes.
OTHER_FILES = 550
# Limit of the request line and all headers. The longest useful URL has 55 KiB: a judged query of 4,096
# characters and its id.
HEAD_BYTES = 1 << 16
_UPGRADE = {b"connection", b"upgrade", b"http2-settings"}
MAX_HANDSHAKES = 256
TLS_SECONDS = 10


class Place(Enum):
    USUAL = "usual"
    SPARE = "spare"  # for /health, /ready and /metrics only
    NONE = "none"


class Closable(typing.Protocol):
    """The part of a connection's interface that `Connections` uses."""

    def give_way(self) -> bool:
        """Closes the connection if it is idle. Returns whether it was closed."""


class Connections:
    """The open connections of the service. Only the thread of the event loop may use this object."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self._clock = clock
        self._open: set[Closable] = set()
        self._spare: set[Closable] = set()
        self._idle: dict[Closable, float] = {}  # Start of the idle time, oldest first.

    def enter(self, connection: Closable) -> Place:
        """Adds a new connection. At the limit, closes an idle connection to make room.

        Returns:
            The kind of place that the connection got. `Place.NONE` means that the connection must be closed.

        """
        if len(self._open) < self.most or self._make_room(self._open, MIN_IDLE_SECONDS):
            self._open.add(connection)
            place = Place.USUAL
        elif len(self._spare) < SPARE or self._make_room(self._spare, 0):
            self._spare.add(connection)
            place = Place.SPARE
        else:
            return Place.NONE
        self.idle(connection)
        return place

    def _make_room(self, among: set[Closable], seconds: float) -> bool:
        """Closes the connection that has been idle longest. Returns whether one was closed.

        Args:
            among: The connections to choose from.
            seconds: Minimum idle time. More recently used connections stay open.

        """
        until = self._clock() - seconds
        for connection, since in self._idle.items():
            if since > until:
                return False
            if connection in among and connection.give_way():
                self.leave(connection)
                return True
        return False

    def idle(self, connection: Closable) -> None:
        self._idle.pop(connection, None)
        self._idle[connection] = self._clock()

    def busy(self, connection: Closable) -> None:
        self._idle.pop(connection, None)

    def refusal(self) -> Unhealthy:
        return Unhealthy(
            f"More than {self.most} connections are in use (SIMILE_MAX_CONNECTIONS). Send again later, and "
            "close connections or reuse them.",
            retry_after_seconds=1,
        )

    def leave(self, connection: Closable) -> None:
        self._idle.pop(connection, None)
        self._open.discard(connection)
        self._spare.discard(connection)


def bounded_by_files(most: int) -> int:
    """Returns `most`, or fewer connections if this process may not open enough files.

    If needed, increases the soft limit of open files, up to the hard limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = most + SPARE + OTHER_FILES
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return most
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed == needed:
        return most
    fewer = max(SPARE, allowed - SPARE - OTHER_FILES)
    log.warning(
        "SIMILE_MAX_CONNECTIONS=%d needs %d open files, but this process may open %d. At most %d connections "
        "are served. Raise the limit (ulimit -n).",
        most,
        needed,
        allowed,
        fewer,
    )
    return fewer


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
        """Parses received bytes, and ignores requests to upgrade the protocol.

        Java's HTTP client asks for HTTP/2 in its first request, and httptools would drop the body of such a
        request.
        """
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as stopped:
                version = self.parser.get_http_version().encode()
                first = b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)
                lines = [name + b": " + value for name, value in self.headers if name not in _UPGRADE]
                data = b"\r\n".join([first, *lines, b"", data[stopped.args[0] :]])
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
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > HEAD_BYTES:
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
            self.scope["spare"] = spare  # type: ignore[typeddict-unknown-key]  # for the load shedder
            super().on_headers_complete()
            if spare:
                self.cycle.keep_alive = False

    def _name_the_host(self) -> None:
        """Copies the host of an absolute URL in the request line to the header Host (RFC 9112, 3.2.2)."""
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
        """Aborts the connection if the client has read nothing of the answer since the last check."""
        self._look = None
        before, self._unread_bytes = self._unread_bytes, self.transport.get_write_buffer_size()
        if before and self._unread_bytes >= before:
            self.transport.abort()
        elif self._unread_bytes:
            self._look = self.loop.call_later(self._seconds, self._look_at_unread)

    # Error answers

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  uvicorn's message, which is not JSON
        """Rejects a malformed request and closes the connection.

        The connection cannot be used again, because the start of the next request is unknown. If the previous
        request has no answer yet, the connection closes after that answer, without an error answer.
        """
        cycle = self.cycle
        if (
            cycle is not None
            and not cycle.response_complete
            and (not cycle.more_body or cycle.response_started)
        ):
            cycle.keep_alive = False  # The previous request was complete and gets its answer first.
            return
        error: ServiceError = Malformed(
            "Malformed HTTP request. Send HTTP/1.1, and percent-encode the URL's characters that are not "
            "ASCII, as `curl -G --data-urlencode` does."
        )
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
        named = [*answer.raw_headers, (b"x-request-id", choose_request_id(None).encode()), NOSNIFF]
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in named)
        self.transport.write(head + lines + b"\r\n" + bytes(answer.body))
        self.transport.close()


class BufferedTransport:
    """A transport that collects writes and sends them with one system call.

    Bytes are sent when an answer is complete, or in the next iteration of the event loop. System calls are
    the most expensive part of a short answer, and each one wakes the client.

    Args:
        on_unread: Called if the client does not receive written bytes at once.

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
        """Discards the buffered bytes. Called after the connection is lost."""
        self._held.clear()
        self._on_unread = lambda: None

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + sum(map(len, self._held))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def check_certificate(cert_file: Path | None, key_file: Path | None) -> None:
    """Checks the TLS certificate and the key of the settings.

    Raises:
        ValueError: Only one of the two files is given, or a file cannot be used. The message names the
            settings and the reason.

    """
    if cert_file is None and key_file is None:
        return
    if cert_file is None or key_file is None:
        raise ValueError(
            "SIMILE_TLS_CERT_FILE and SIMILE_TLS_KEY_FILE belong together. Set both, or neither."
        )
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(cert_file, key_file, password="")  # Never prompts at the terminal.
    except OSError as error:  # ssl.SSLError included
        why = getattr(error, "reason", None) or error.strerror
        raise ValueError(
            f"SIMILE_TLS_CERT_FILE={cert_file} and SIMILE_TLS_KEY_FILE={key_file} cannot be used ({why}). "
            "Name a certificate chain and its key without a password, both in PEM."
        ) from error


def encrypted(certificate: Path, key: Path | None) -> Callable[..., asyncio.BaseProtocol]:
    """Returns a factory for uvicorn that creates a protocol with TLS for each connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    handshakes = Connections(MAX_HANDSHAKES)

    def connection(**options: Any) -> Handshake:
        return Handshake(_Encrypted(**options), context, handshakes)

    return connection


class _Encrypted(Protocol):
    handshake: "Handshake"

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.handshake.end()
        super().connection_made(transport)


class Handshake(sslproto.SSLProtocol):
    """The TLS protocol of a connection. Connections in a handshake are counted and limited."""

    def __init__(self, protocol: _Encrypted, context: ssl.SSLContext, handshakes: Connections) -> None:
        waiter: Any = None
        super().__init__(
            protocol.loop, protocol, context, waiter, server_side=True, ssl_handshake_timeout=TLS_SECONDS
        )
        protocol.handshake = self
        self._handshakes = handshakes
        self._tcp: asyncio.Transport
        self._refused = False

    def connection_made(self, transport: Any) -> None:
        self._tcp = transport
        self._refused = self._handshakes.enter(self) is Place.NONE
        if self._refused:
            transport.abort()
        else:
            super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.end()
        if not self._refused:
            super().connection_lost(exc)

    def give_way(self) -> bool:
        self._tcp.abort()
        return True

    def end(self) -> None:
        self._handshakes.leave(self)

"""Checks the certificate, and limits the number and duration of TLS handshakes.

asyncio's own TLS reports a connection only after its handshake, so clients that never start one could use up
all file descriptors.
"""

import asyncio
import ssl
from asyncio import sslproto
from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.http.connections import Connections, Place
from service.http.protocol import Protocol

MOST = 256
SECONDS = 10


def check_certificate(cert_file: Path | None, key_file: Path | None) -> None:
    """Rejects a certificate without a key, a key without a certificate, and unusable files.

    Raises:
        ValueError: The message names the settings and the reason.

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
    """Returns a protocol factory for uvicorn whose connections start with TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    handshakes = Connections(MOST)

    def connection(**options: Any) -> Handshake:
        return Handshake(_Encrypted(**options), context, handshakes)

    return connection


class _Encrypted(Protocol):
    handshake: "Handshake"

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.handshake.end()
        super().connection_made(transport)


class Handshake(sslproto.SSLProtocol):
    """A TLS connection, which is counted here until its handshake ends."""

    def __init__(self, protocol: _Encrypted, context: ssl.SSLContext, handshakes: Connections) -> None:
        waiter: Any = None
        super().__init__(
            protocol.loop, protocol, context, waiter, server_side=True, ssl_handshake_timeout=SECONDS
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

"""A client's end of one kept-alive connection: a request's bytes out, a response's status and body in.

Bare asyncio protocols and no HTTP library, so that a generator (generator.py) takes as little as it can of
the processors that it shares with the service. A response is read no further than its status and length; the
service sends none without a length.
"""

import asyncio
import json
from typing import Any, cast


def post(path: str, body: Any) -> str:
    """A request with a JSON body."""
    content = json.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json"
    return f"{head}\r\ncontent-length: {len(content)}\r\n\r\n{content}"


def get(target: str) -> str:
    return f"GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Connection(asyncio.Protocol):
    """At most one request in flight; who inherits says what happens with `answered` and `connection_lost`."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._needed = 0  # bytes of the response, 0 while its head is not whole
        self._body_at = 0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """On a second connection what came of a response on the first is forgotten."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class
        self._received, self._needed = bytearray(), 0

    def close(self) -> None:
        self._transport.close()

    def write(self, request: bytes) -> None:
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._needed:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            self._body_at = end + 4
            self._needed = self._body_at + _content_length(bytes(self._received[:end]))
        if len(self._received) < self._needed:
            return
        response, self._received, self._needed = self._received, bytearray(), 0
        self.answered(int(response[9:12]), response, self._body_at)

    def answered(self, status: int, response: bytearray, body_at: int) -> None:
        """A response is whole: its bytes, and where among them the body begins."""
        raise NotImplementedError


def _content_length(head: bytes) -> int:
    _, _, rest = head.lower().partition(b"content-length:")
    return int(rest.split(b"\r\n", 1)[0])

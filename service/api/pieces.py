"""JSON answers out of parts that are JSON already, so that a large one never holds the event loop.

A stored text and its metadata come as JSON from the reading thread (documents.py). They are put together
there without being parsed or copied, and sent a chunk at a time, no faster than the client reads.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

CHUNK_BYTES = 1 << 18


def listed(values: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """The parts of a JSON array, from the parts of each of its values."""
    yield b"["
    for at, value in enumerate(values):
        if at:
            yield b","
        yield from value
    yield b"]"


def joined(parts: Iterable[bytes]) -> list[bytes]:
    """`parts` as chunks to be sent: small ones together, a large one as it is."""
    chunks: list[bytes] = []
    held: list[bytes] = []
    held_bytes = 0
    for part in chain(parts, [b""]):
        if held and (not part or held_bytes + len(part) > CHUNK_BYTES):
            chunks.append(b"".join(held) if len(held) > 1 else held[0])
            held, held_bytes = [], 0
        held.append(part)
        held_bytes += len(part)
    return chunks


class JsonChunks(Response):
    """An answer of chunks that are JSON together."""

    media_type = "application/json"

    def __init__(self, chunks: Sequence[bytes], headers: Mapping[str, str] | None = None) -> None:
        self._chunks = chunks
        size = sum(map(len, chunks))
        super().__init__(None, 200, {**(headers or {}), "content-length": str(size)})

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(start)
        last = len(self._chunks) - 1
        for at, chunk in enumerate(self._chunks):
            for begin in range(0, len(chunk), CHUNK_BYTES):
                piece = chunk[begin : begin + CHUNK_BYTES]
                more = at < last or begin + CHUNK_BYTES < len(chunk)
                await send({"type": "http.response.body", "body": piece, "more_body": more})

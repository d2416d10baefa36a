"""JSON answers: values as JSON, and large answers out of parts that are JSON already.

A stored text and its metadata come as JSON from the reading thread (store/documents). They are put together
there without being parsed or copied, and sent a chunk at a time, no faster than the client reads: a large
answer never holds the event loop.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

CHUNK_BYTES = 1 << 18


def json_response(value: object, headers: Mapping[str, str] | None = None, *, status: int = 200) -> Response:
    """`value` as JSON, numpy arrays and numbers straight to text (float32 in its shortest form)."""
    return Response(
        orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY), status, headers, "application/json"
    )


def json_array(values: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """Parts of a JSON array, from the parts of each of its values."""
    yield b"["
    for at, value in enumerate(values):
        if at:
            yield b","
        yield from value
    yield b"]"


def in_chunks(parts: Iterable[bytes]) -> list[bytes]:
    """`parts` as chunks to send: small parts together, a large one as it is."""
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
    """An answer of parts that are JSON together, sent in chunks."""

    media_type = "application/json"

    def __init__(self, parts: Iterable[bytes], headers: Mapping[str, str] | None = None) -> None:
        self._chunks = in_chunks(parts)
        size = sum(map(len, self._chunks))
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

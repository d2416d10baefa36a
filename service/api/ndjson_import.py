"""NDJSON: one document per line, any number of lines. A bad line is reported, the others are stored."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Any, TypeAlias

import orjson
from fastapi import Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from service.api.bulk_import import MAX_ERRORS, Import, Span
from service.api.embedding import VERSION_HEADER
from service.errors import Empty, ServiceError, TooLarge, Validation
from service.http import exact_json
from service.http.bodies import Slices, fields_of, json_response
from service.http.body_budget import StreamedBody
from service.http.ndjson import MAX_LINE_BYTES, Line, Lines
from service.runtime.runtime import Runtime
from service.store.values import Document

IDLE_SECONDS = 0.5  # an import that sends nothing for so long has what it sent stored
STEP_BYTES = 4096  # of a piece: so many line ends take some milliseconds

Parse: TypeAlias = Callable[[dict[str, Any]], Document]


class LineError(BaseModel):
    line: int = Field(description="Counted from 1, empty lines included")
    error: str


class Imported(BaseModel):
    """The answer to NDJSON: also when lines failed."""

    upserted: int
    documents: int = Field(description="Fewer than `upserted` when an id came more than once")
    created: int | None = Field(
        description="How many of their ids were new; null: not known, as some were stored again after a fault"
    )
    failed: int
    errors: list[LineError] = Field(description=f"Of the first {MAX_ERRORS} lines that failed")
    truncated: int = Field(description="How many of the texts the model does not see to their end")
    sequence: int


async def import_lines(request: Request, runtime: Runtime, parse: Parse, collection: str) -> Response:
    """Store the documents of an NDJSON body, which may be as long as it likes; `parse` makes them of objects.

    Raises:
        ServiceError: it cannot go on. The message says what was stored.

    """
    flow: StreamedBody = request.scope["flow"]
    importing = Import(runtime.corpus, collection, flow, lambda: runtime.stopping)
    lines, slices = Lines(), Slices()
    try:
        async with aclosing(body_pieces(request)) as pieces:
            async for piece in pieces:
                for step in _steps(piece or b""):
                    for line in lines.feed(step):
                        await _take(importing, line, parse)
                        await slices.rest()
                    await slices.rest()  # no line at all may have come of it
                    flow.moved()
                await importing.look(idle=piece is None)
        for line in lines.finish():
            await _take(importing, line, parse)
        tally = await importing.finish()
    finally:
        await importing.close()
    if not tally.upserted and not tally.failed:
        raise Empty("The body has no line. Send one JSON object per line.")
    answer = fields_of(
        Imported,
        tally,
        documents=tally.seen.distinct,
        errors=[{"line": lines.first, "error": error} for lines, error in tally.errors],
        sequence=tally.sequence or await runtime.corpus.store.sequence(),
    )
    version = tally.version or runtime.live.generation.version
    return json_response(answer, {VERSION_HEADER: version, "x-compute-tokens": str(tally.tokens)})


async def body_pieces(request: Request) -> AsyncGenerator[bytes | None]:
    """The body as it comes; None from time to time while nothing does."""
    stream = aiter(request.stream())
    while True:
        reading = asyncio.ensure_future(anext(stream, None))
        try:
            while not reading.done():
                await asyncio.wait({reading}, timeout=IDLE_SECONDS)
                if not reading.done():
                    yield None
        finally:
            reading.cancel()
        if (piece := reading.result()) is None:
            return
        yield piece


def _steps(piece: bytes) -> Iterator[bytes]:
    """A piece may hold tens of thousands of lines."""
    return (piece[at : at + STEP_BYTES] for at in range(0, len(piece), STEP_BYTES))


async def _take(importing: Import, line: Line, parse: Parse) -> None:
    try:
        document = parse(_object(line))
    except ServiceError as error:
        importing.fail(Span(line.number, line.number), error.message)
    else:
        await importing.add(Span(line.number, line.number), document)


def _object(line: Line) -> dict[str, Any]:
    if line.content is None:
        raise TooLarge(f"The line is longer than {MAX_LINE_BYTES >> 20} MiB. Split the document.")
    try:
        value = exact_json.loads(line.content)
    except exact_json.Inexact as error:
        raise Validation(str(error)) from error
    except orjson.JSONDecodeError as error:
        raise Validation(
            f"The line is not valid JSON in UTF-8: {error.msg}, column {error.colno}."
        ) from error
    if not isinstance(value, dict):
        raise Validation('The line is no JSON object. Send {"id": …, "text": …, "metadata": {…}} on each.')
    return value

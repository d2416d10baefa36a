"""Imports of any length: NDJSON bodies here, files in files.py. Start reading at `import_lines`.

Documents come one by one and without end: stored in groups, a few of which are under way at a time.

    add() ─▶ group ─▶ under way: embedded, then committed ─▶ settled, in their order

So the encoder never waits for the next group, and memory holds a few groups whatever the whole weighs. A
document that fails is reported and fails alone. What may pass (a full queue, a worker that died) is waited
for.
"""

import asyncio
import bisect
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import orjson
from fastapi import Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from service.api.embedding import VERSION_HEADER
from service.corpus.corpus import Corpus, Stored
from service.errors import (
    Backend,
    Empty,
    Overloaded,
    ServiceError,
    Timeout,
    Tokenizer,
    TooLarge,
    Unhealthy,
    Validation,
)
from service.files.columns import Seen
from service.files.lines import MAX_LINE_BYTES
from service.http import exact_json
from service.http.bodies import Slices, StreamedBody, fields_of, json_response
from service.lifecycle.builder import HARMLESS
from service.runtime.runtime import Runtime
from service.store.values import Document

GROUP_DOCUMENTS = 64  # of one commit
GROUP_BYTES = 1 << 18  # read for one group; less than the least that all bodies may have together
UNDER_WAY = 4  # groups: while one is committed, the others keep the encoder busy
RETRY_SECONDS = 0.2
MAX_ERRORS = 100  # that are kept, the first ones

Stopping = Callable[[], bool]


class Span(NamedTuple):
    """The lines of one document or of one failure, counted from 1."""

    first: int
    last: int


@dataclass(slots=True)
class Group:
    """Documents to be stored together, each with its lines."""

    rows: list[tuple[Span, Document]] = field(default_factory=list)
    bytes: int = 0  # read since the group before
    size: int = 0  # characters of its documents: a compressed body holds more than its bytes
    last_line: int = 0
    ids: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Tally:
    """Counts of the documents so far."""

    upserted: int = 0
    created: int | None = 0  # None: not known, as some were sent again after an answer that left it open
    failed: int = 0
    truncated: int = 0
    sequence: int = 0
    tokens: int = 0
    version: str = ""
    last_line: int = 0  # every line up to this one is done
    errors: list[tuple[Span, str]] = field(default_factory=list)  # lines and reason, the first ones
    seen: Seen = field(default_factory=Seen)  # ids of what is stored

    def fail(self, lines: Span, reason: str) -> None:
        self.failed += lines.last - lines.first + 1
        bisect.insort(self.errors, (lines, reason))
        del self.errors[MAX_ERRORS:]

    def add(self, documents: list[Document], stored: Stored) -> None:
        self.upserted += len(documents)
        for document in documents:
            self.seen.add(document.id, document.title, document.text)
        if self.created is not None:
            self.created += stored.created
        self.truncated += stored.truncated
        self.sequence = max(self.sequence, stored.sequence)
        self.tokens += stored.tokens
        self.version = stored.version

    @property
    def replaced(self) -> int | None:
        return None if self.created is None else max(self.seen.distinct - self.created, 0)

    def __str__(self) -> str:
        """Words for a refusal: what was stored before it."""
        if not self.upserted:
            return "Nothing of the import was stored."
        return (
            f"Before that {self.upserted} rows were stored, and all lines up to {self.last_line} are "
            "done. Send it again: text that is stored is not embedded again."
        )


class Import:
    """An import. `close()` it at its end, however it ended."""

    def __init__(self, corpus: Corpus, collection: str, flow: StreamedBody, stopping: Stopping) -> None:
        self._corpus = corpus
        self._collection = collection
        self._flow = flow
        self._stopping = stopping
        self._group = Group()
        self._under_way: deque[tuple[Group, asyncio.Task[None]]] = deque()
        self._claimed_bytes = 0  # of what the flow holds, that of the groups under way
        self.tally = Tally()

    async def add(self, lines: Span, document: Document) -> None:
        """Take a document; waits while enough are under way.

        Raises:
            ServiceError: it cannot go on. The message says what was stored.

        """
        group = self._group
        group.rows.append((lines, document))
        group.ids.add(document.id)
        group.last_line = lines.last
        group.size += len(document.text) + len(document.metadata_json)
        if len(group.rows) >= GROUP_DOCUMENTS or group.size >= GROUP_BYTES:
            await self._begin()

    def fail(self, lines: Span, reason: str) -> None:
        """Lines that hold no document."""
        self.tally.fail(lines, reason)
        self._group.last_line = lines.last

    async def look(self, *, idle: bool) -> None:
        """Between two pieces: send on its way what is heavy or, when nothing comes, whatever is at hand.

        Raises:
            ServiceError: as `add`; also when the service stops.

        """
        if self._stopping():
            await self._settle_all()
            raise Unhealthy(
                f"The service is stopping, and takes no more of the import. {self.tally}",
                retry_after_seconds=1,
            )
        heavy = self._flow.held_bytes - self._claimed_bytes >= GROUP_BYTES
        if heavy or (idle and self._group.rows and len(self._under_way) < UNDER_WAY):
            await self._begin()
        while self._under_way and self._under_way[0][1].done():
            await self._settle()

    async def finish(self) -> Tally:
        """Store all that is left. Raises ServiceError as `add`."""
        await self._begin()
        await self._settle_all()
        return self.tally

    async def close(self) -> None:
        """Cancel what is under way."""
        tasks = [task for _, task in self._under_way]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _begin(self) -> None:
        """Send the group on its way, once fewer are under way and none of them has an id of its own."""
        group, self._group = self._group, Group(last_line=self._group.last_line)
        while len(self._under_way) >= UNDER_WAY or any(
            not group.ids.isdisjoint(other.ids) for other, _ in self._under_way
        ):
            await self._settle()
        group.bytes = self._flow.held_bytes - self._claimed_bytes
        self._claimed_bytes += group.bytes
        self._under_way.append((group, asyncio.ensure_future(self._store(group.rows))))

    async def _settle_all(self) -> None:
        while self._under_way:
            await self._settle()

    async def _settle(self) -> None:
        """Wait for the oldest group."""
        group, task = self._under_way[0]
        try:
            await task
        except ServiceError as error:
            # So that the refusal counts all that is stored.
            await asyncio.gather(*(task for _, task in self._under_way), return_exceptions=True)
            raise type(error)(f"{error.message} {self.tally}", headers=error.headers) from error
        self._under_way.popleft()
        self.tally.last_line = group.last_line
        self._claimed_bytes -= group.bytes
        self._flow.release(group.bytes)
        self._flow.done = str(self.tally)
        self._flow.moved()

    async def _store(self, rows: list[tuple[Span, Document]]) -> None:
        """Store the documents of a group; those that the model fails on are found by halving it."""
        if not rows:
            return
        documents = {document.id: document for _, document in rows}  # of two equal ids the last wins
        try:
            stored = await self._patiently(list(documents.values()))
        except (Backend, Tokenizer, Validation) as error:
            if len(rows) > 1:
                middle = len(rows) // 2
                await self._store(rows[:middle])
                await self._store(rows[middle:])
                return
            if isinstance(error, Backend):  # is it this text, or the model?
                with self._corpus.live.borrow() as generation:
                    await self._corpus.embed(generation, [HARMLESS], [self._collection])
            self.tally.fail(rows[0][0], error.message)
        else:
            self.tally.add([document for _, document in rows], stored)

    async def _patiently(self, documents: list[Document]) -> Stored:
        while True:
            try:
                return await self._corpus.put(documents, self._collection)
            except (Overloaded, Timeout, Unhealthy) as error:
                if self._stopping():
                    raise
                if not isinstance(error, Overloaded):  # they may be stored
                    self.tally.created = None
            await asyncio.sleep(RETRY_SECONDS)


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # Some programs start a file with it.


class Line(NamedTuple):
    """A line of the body.

    Attributes:
        number: Counts from 1, empty lines included.
        content: The bytes. None if they exceed MAX_LINE_BYTES.

    """

    number: int
    content: bytes | None


class Lines:
    """Splits pieces into lines. Call `feed` with each piece, then `finish`. Skips empty lines."""

    def __init__(self) -> None:
        self._number = 0
        self._rest = bytearray()  # start of an unfinished line
        self._too_long = False

    def feed(self, piece: bytes) -> Iterator[Line]:
        start = 0
        while (end := piece.find(b"\n", start)) >= 0:
            self._keep(piece[start:end])
            start = end + 1
            yield from self._line()
        self._keep(piece[start:])

    def finish(self) -> Iterator[Line]:
        yield from self._line()

    def _keep(self, part: bytes) -> None:
        if self._too_long or len(self._rest) + len(part) > MAX_LINE_BYTES:
            self._too_long = True
            self._rest.clear()
        else:
            self._rest += part

    def _line(self) -> Iterator[Line]:
        self._number += 1
        content, self._rest = bytes(self._rest), bytearray()
        too_long, self._too_long = self._too_long, False
        if self._number == 1:
            content = content.removeprefix(_BYTE_ORDER_MARK)
        if too_long:
            yield Line(self._number, None)
        elif content and not content.isspace():
            yield Line(self._number, content)


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

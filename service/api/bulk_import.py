"""Imports documents from request bodies of any length. Start reading at `import_lines`.

This module reads NDJSON; api/files.py reads other formats. Both collect documents into groups. A group is
embedded and then committed, while up to `UNDER_WAY` groups are in progress. Results are recorded in order.

    add() ─▶ group ─▶ in progress: embedded, then committed ─▶ settled, in order

The encoder therefore never waits for the next group, and memory holds only a few groups. A document that
fails is reported and does not affect the others. After a transient error, such as a full queue, the import
tries again.
"""

import asyncio
import bisect
import codecs
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import orjson
from fastapi import Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from models.files import exact_json
from models.files.lines import MAX_LINE_BYTES
from models.messages import plural
from service.api.embedding import VERSION_HEADER
from service.auth.access import get_scope
from service.corpus.corpus import Stored
from service.errors import (
    Backend,
    Empty,
    Forbidden,
    Overloaded,
    ServiceError,
    Timeout,
    Tokenizer,
    TooLarge,
    Unhealthy,
    Validation,
)
from service.files.columns import Seen
from service.http.bodies import Slices, StreamedBody, collect_fields, json_response, not_utf8
from service.lifecycle.builder import HARMLESS
from service.runtime.runtime import Runtime
from service.store.values import Document

GROUP_DOCUMENTS = 64  # per commit
GROUP_BYTES = 1 << 18  # per group, below the smallest allowed budget of all bodies
UNDER_WAY = 4  # Groups in progress. While the first is committed, the others keep the encoder busy.
RETRY_SECONDS = 0.2
MAX_ERRORS = 100  # errors in an answer
IDLE_SECONDS = 0.5  # After this time without bytes, the pending documents are stored.
STEP_BYTES = 4096  # Bytes that are split into lines in one step. 4096 line ends take some milliseconds.
Parse: TypeAlias = Callable[[dict[str, Any]], Document]


class Span(NamedTuple):
    """The first and last line of one document or of one failure. Lines are counted from 1."""

    first: int
    last: int


@dataclass(slots=True)
class Group:
    """Documents that are stored in one commit, each with the lines where it was read."""

    rows: list[tuple[Span, Document]] = field(default_factory=list)
    bytes: int = 0  # bytes of the body since the previous group
    size: int = 0  # characters of the documents, because a compressed body has fewer bytes
    last_line: int = 0
    ids: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Tally:
    """Counts of stored documents and failed lines. `str(tally)` says what was stored, for error messages."""

    upserted: int = 0
    created: int | None = 0  # None: unknown, because some were stored again after an error
    failed: int = 0  # lines
    failed_rows: int = 0
    truncated: int = 0
    unknown: int = 0
    sequence: int = 0
    tokens: int = 0
    version: str = ""
    last_line: int = 0  # all lines up to this one are done
    errors: list[tuple[Span, str]] = field(default_factory=list)  # lines and reason of the first errors
    seen: Seen = field(default_factory=Seen)  # ids of stored documents

    def fail(self, lines: Span, reason: str) -> None:
        self.failed += lines.last - lines.first + 1
        self.failed_rows += 1
        bisect.insort(self.errors, (lines, reason))
        del self.errors[MAX_ERRORS:]

    def add(self, documents: list[Document], stored: Stored) -> None:
        self.upserted += len(documents)
        for document in documents:
            self.seen.add(document.id, document.title, document.text)
        if self.created is not None:
            self.created += stored.created
        self.truncated += stored.truncated
        self.unknown += stored.unknown
        self.sequence = max(self.sequence, stored.sequence)
        self.tokens += stored.tokens
        self.version = stored.version

    @property
    def replaced(self) -> int | None:
        return None if self.created is None else max(self.seen.distinct - self.created, 0)

    def __str__(self) -> str:
        if not self.upserted:
            return "Nothing of the import was stored."
        rows = plural(self.upserted, "row was", "rows were")
        return (
            f"Before that {self.upserted} {rows} stored, and all lines up to {self.last_line} are "
            "done. Send it again: text that is stored is not embedded again."
        )


class Import:
    """Stores the documents of one request.

    Use it within `aclosing`, which cancels pending groups after an error.
    """

    def __init__(self, request: Request, runtime: Runtime, collection: str) -> None:
        self._runtime = runtime
        self._corpus = runtime.corpus
        self._collection = collection
        self._scope = get_scope(request.scope)
        self._flow: StreamedBody = request.scope["flow"]
        self._group = Group()
        self._under_way: deque[tuple[Group, asyncio.Task[None]]] = deque()
        self._claimed_bytes = 0  # bytes of the groups in progress
        self.tally = Tally()

    async def add(self, lines: Span, document: Document) -> None:
        """Adds a document to the current group. If the group is full, waits until the group can start.

        Raises:
            ServiceError: The import cannot continue. The message says how many documents are stored.

        """
        group = self._group
        group.rows.append((lines, document))
        group.ids.add(document.id)
        group.last_line = lines.last
        group.size += len(document.text) + len(document.metadata_json)
        if len(group.rows) >= GROUP_DOCUMENTS or group.size >= GROUP_BYTES:
            await self._begin()

    def fail(self, lines: Span, reason: str) -> None:
        """Records that the given lines do not contain a valid document."""
        self.tally.fail(lines, reason)
        self._group.last_line = lines.last

    async def look(self, *, idle: bool) -> None:
        """Starts storing the current group if it is large or if bytes are late, and records finished groups.

        Call this after each piece of the body.

        Args:
            idle: Whether no bytes arrived for a while.

        Raises:
            ServiceError: The import cannot continue, or the service is stopping.

        """
        if self._runtime.stopping:
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
        """Stores the remaining documents and returns the counts.

        Raises:
            ServiceError: The import cannot continue. The message says how many documents are stored.

        """
        await self._begin()
        await self._settle_all()
        return self.tally

    async def aclose(self) -> None:
        """Cancels the groups in progress."""
        tasks = [task for _, task in self._under_way]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _begin(self) -> None:
        """Starts to store the current group.

        First waits until fewer than `UNDER_WAY` groups are in progress and none of them contains an id of
        this group.
        """
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
        """Waits for the oldest group in progress, and records the result."""
        group, task = self._under_way[0]
        try:
            await task
        except ServiceError as error:
            # Wait for the other groups, so that the message counts all stored documents.
            await asyncio.gather(*(task for _, task in self._under_way), return_exceptions=True)
            raise type(error)(f"{error.message} {self.tally}", headers=error.headers) from error
        self._under_way.popleft()
        self.tally.last_line = group.last_line
        self._claimed_bytes -= group.bytes
        self._flow.release(group.bytes)
        self._flow.done = str(self.tally)
        self._flow.moved()

    async def _store(self, rows: list[tuple[Span, Document]]) -> None:
        """Stores the documents of a group.

        If the model or the tokenizer fails, or the key may not write a document, stores each half by itself,
        to find the documents at fault.
        """
        if not rows:
            return
        documents = {document.id: document for _, document in rows}  # The last of two equal ids wins.
        try:
            stored = await self._patiently(list(documents.values()))
        except (Backend, Tokenizer, Validation, Forbidden) as error:
            if len(rows) > 1:
                middle = len(rows) // 2
                await self._store(rows[:middle])
                await self._store(rows[middle:])
                return
            if isinstance(error, Backend):  # Raises if the model fails on any text.
                with self._corpus.active.borrow() as generation:
                    await self._corpus.embed(generation, [HARMLESS], [self._collection])
            self.tally.fail(rows[0][0], error.message)
        else:
            self.tally.add([document for _, document in rows], stored)

    async def _patiently(self, documents: list[Document]) -> Stored:
        while True:
            try:
                return await self._corpus.put(documents, self._collection, self._scope)
            except (Overloaded, Timeout, Unhealthy) as error:
                if self._runtime.stopping:
                    raise
                if not isinstance(error, Overloaded):  # The documents may be stored.
                    self.tally.created = None
            await asyncio.sleep(RETRY_SECONDS)


class Lines:
    """Splits pieces of a body into numbered lines. Call `feed` with each piece, then `finish`.

    Numbers start at 1 and also count empty lines, which are not yielded. A line of more than MAX_LINE_BYTES
    is yielded as None.
    """

    def __init__(self) -> None:
        self._number = 0
        self._rest = bytearray()  # start of an unfinished line
        self._too_long = False

    def feed(self, piece: bytes) -> Iterator[tuple[int, bytes | None]]:
        *ended, rest = piece.split(b"\n")
        for part in ended:
            self._keep(part)
            yield from self.finish()
        self._keep(rest)

    def _keep(self, part: bytes) -> None:
        if self._too_long or len(self._rest) + len(part) > MAX_LINE_BYTES:
            self._too_long = True
            self._rest.clear()
        else:
            self._rest += part

    def finish(self) -> Iterator[tuple[int, bytes | None]]:
        """Ends the current line and yields it, unless the line is empty."""
        self._number += 1
        content, self._rest = bytes(self._rest), bytearray()
        too_long, self._too_long = self._too_long, False
        if self._number == 1:
            content = content.removeprefix(codecs.BOM_UTF8)  # Some programs start a file with it.
        if too_long:
            yield self._number, None
        elif content and not content.isspace():
            yield self._number, content


class LineError(BaseModel):
    line: int = Field(description="Counted from 1, empty lines included")
    error: str


class Imported(BaseModel):
    """The answer to an NDJSON body, even if some lines failed."""

    upserted: int
    documents: int = Field(description="Fewer than `upserted` if an id came more than once")
    created: int | None = Field(
        description="Number of new ids. null: unknown, because some were stored again after an error"
    )
    failed: int
    errors: list[LineError] = Field(description=f"The first {MAX_ERRORS} failed lines")
    truncated: int = Field(description="Number of texts that are longer than the model's input")
    unknown: int = Field(description="Number of embedded texts with words that the model does not know")
    sequence: int


async def import_lines(request: Request, runtime: Runtime, parse: Parse, collection: str) -> Response:
    """Stores the documents of an NDJSON body of any length.

    Args:
        request: The request with the body.
        runtime: The service.
        parse: Builds a document from a parsed JSON object.
        collection: The collection that receives the documents.

    Raises:
        Empty: The body has no line.
        ServiceError: The import cannot continue. The message says how many documents are stored.

    """
    flow: StreamedBody = request.scope["flow"]
    lines, slices = Lines(), Slices()
    async with aclosing(Import(request, runtime, collection)) as importing:
        async with aclosing(body_pieces(request)) as pieces:
            async for piece in pieces:
                content = piece or b""
                for at in range(0, len(content), STEP_BYTES):
                    for number, line in lines.feed(content[at : at + STEP_BYTES]):
                        await _take(importing, number, line, parse)
                        await slices.rest()
                    await slices.rest()  # The step may contain no line end.
                    flow.moved()
                await importing.look(idle=piece is None)
        for number, line in lines.finish():
            await _take(importing, number, line, parse)
        tally = await importing.finish()
    if not tally.upserted and not tally.failed:
        raise Empty("The body has no line. Send one JSON object per line.")
    errors = [{"line": lines.first, "error": error} for lines, error in tally.errors]
    return await import_response(runtime, Imported, tally, errors=errors)


async def import_response(runtime: Runtime, model: type[BaseModel], tally: Tally, **more: object) -> Response:
    """Builds the answer to an import from the counts in `tally`. `more` adds further fields of the answer."""
    sequence = tally.sequence or await runtime.corpus.store.sequence()
    answer = collect_fields(model, tally, documents=tally.seen.distinct, **(more | {"sequence": sequence}))
    version = tally.version or runtime.active.generation.version
    return json_response(answer, {VERSION_HEADER: version, "x-compute-tokens": str(tally.tokens)})


async def body_pieces(request: Request) -> AsyncGenerator[bytes | None]:
    """Yields the pieces of the body as they arrive, and None after each IDLE_SECONDS without a piece."""
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


async def _take(importing: Import, number: int, line: bytes | None, parse: Parse) -> None:
    try:
        document = parse(_object(line))
    except ServiceError as error:
        importing.fail(Span(number, number), error.message)
    else:
        await importing.add(Span(number, number), document)


def _object(line: bytes | None) -> dict[str, Any]:
    if line is None:
        raise TooLarge(f"The line is longer than {MAX_LINE_BYTES >> 20} MiB. Split the document.")
    try:
        value = exact_json.loads(line)
    except exact_json.Inexact as error:
        raise Validation(str(error)) from error
    except orjson.JSONDecodeError as error:
        invalid = f"The line is not valid JSON in UTF-8: {error.msg}, column {error.colno}."
        raise Validation(not_utf8("The line", line) or invalid) from error
    if not isinstance(value, dict):
        raise Validation('The line is no JSON object. Send {"id": …, "text": …, "metadata": {…}} on each.')
    return value

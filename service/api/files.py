"""Routes that preview and import files. The web page uploads files through these routes.

    POST /files/preview    Shows the format, the columns and three rows from the start of a file.
    POST /files            Stores each row of a file as a document.

The command `import` reads files with the same reader (service/files) and then sends NDJSON.
"""

import asyncio
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from models.messages import amount
from service.api.bulk_import import MAX_ERRORS, Import, Span, Tally, body_pieces, import_response
from service.api.collections import get_collection
from service.api.documents import build_document
from service.api.openapi import COUNT, EMBEDS, VERSIONED, OpenTo, Role, describe
from service.auth.access import get_scope
from service.errors import Empty, MediaType, ServiceError, Storage, TooLarge, Validation
from service.files.columns import Placed
from service.files.detection import find_format
from service.files.preview import SHOWN_ROWS, preview
from service.files.reader import FileReader, Options, Unpacked, build_options
from service.files.values import BadFile, BadRow, Format, Row, failed_in_words, query_parameter
from service.http.bodies import RAW_FILE, Slices, StreamedBody, collect_fields, json_response, media_type
from service.http.routing import RoleRoute
from service.runtime.runtime import Runtime, Service
from service.store.values import DEFAULT_COLLECTION, MAX_ID_CHARACTERS

PREVIEW_BYTES = 1 << 20
STEP_BYTES = 1 << 16  # of a piece per step, on another thread
ALL = "*"

router = APIRouter(prefix="/files", route_class=RoleRoute, tags=["documents"])

_NAMES = "Names separated by commas. Names that contain a comma are in double quotes"


class FileQuery(BaseModel):
    name: str = Field("", max_length=MAX_ID_CHARACTERS, description="Of the file; its end says the format")
    format: Format | None = Field(None, description="`file`: one document, its id and title the name")
    encoding: str | None = Field(None, description="Such as cp1252; detected where the bytes say it")
    delimiter: str | None = Field(None, description="Of a table: a character, or `tab`; else detected")
    id: str | None = Field(None, description="Column; `id` or `_id` if left out; empty: made from the text")
    title: str | None = Field(None, description="Column; `title` if left out; empty: none")
    text: str = Field("text", description=f"Columns. {_NAMES}")
    metadata: str | None = Field(None, description=f"Columns; `{ALL}`: all others. {_NAMES}")
    types: str | None = Field(None, description="Such as price=number,created=date")
    html: Literal["strip"] | None = Field(None, description="Takes tags off title and text")


class PreviewQuery(FileQuery):
    whole: bool = Field(False, description="The body is the whole file, not only its beginning")


class PreviewOut(BaseModel):
    format: Format
    encoding: str
    certain: bool = Field(description="False: the encoding is a guess, and an import has to be told it")
    sample: str = Field(description="A word that shows whether the guess is right")
    delimiter: str | None
    columns: list[str]
    rows: list[list[str]] = Field(description=f"The first {SHOWN_ROWS}, long cells cut")
    lines: list[int]
    id: str | None
    title: str | None
    text: list[str]
    metadata: list[str]
    types: dict[str, str] = Field(description="Columns whose every value is a number or a date")
    html: bool = Field(description="The text has tags")
    problems: list[str]


class FileError(BaseModel):
    line: int
    last_line: int
    error: str


class FileNote(BaseModel):
    line: int
    note: str


class FileImported(BaseModel):
    """The answer to an imported file, even if some rows failed."""

    summary: str
    rows: int = Field(description="Rows that were stored")
    documents: int = Field(description="Fewer than `rows` if an id came more than once")
    created: int | None = Field(
        description="Documents with a new id. null: unknown, because some were stored again after an error"
    )
    replaced: int | None = Field(
        description="Documents whose id was stored before, changed or not; null as `created`"
    )
    failed: int = Field(description="Lines that were not stored")
    errors: list[FileError] = Field(description=f"The first {MAX_ERRORS}")
    notes: list[FileNote] = Field(description=f"On rows that look odd, the first {MAX_ERRORS}")
    truncated: int = Field(description="Number of texts that are longer than the model's input")
    unknown: int = Field(description="Number of embedded texts with words that the model does not know")
    sequence: int


_RAW = {RAW_FILE: {"type": "string", "format": "binary"}}


@router.post("/preview", **describe(Role.WRITE, PreviewOut, open_to=OpenTo.SCOPED, reads=_RAW))
async def preview_a_file(request: Request, params: Annotated[PreviewQuery, Query()]) -> Response:
    """Show how the start of a file is read, and guess the purpose of each column. Nothing is stored."""
    _require_raw(request)
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > PREVIEW_BYTES:
            raise TooLarge(f"A preview takes the first {PREVIEW_BYTES >> 20} MiB of a file. Send less of it.")
    try:
        options = _options(params, DEFAULT_COLLECTION)
        found = await asyncio.to_thread(preview, bytes(content), params.name, options, whole=params.whole)
    except BadFile as error:
        raise Validation(_sentence(params.name, error)) from error
    delimiter = found.layout.separator or None
    return json_response(collect_fields(PreviewOut, found, found.guess, found.layout, delimiter=delimiter))


_IMPORT = describe(
    Role.WRITE,
    FileImported,
    open_to=OpenTo.SCOPED,
    raises=(*EMBEDS, Storage),
    headers={**VERSIONED, "x-compute-tokens": COUNT},
    reads=_RAW,
)


@router.post("", **_IMPORT)
async def store_the_rows_of_a_file(
    request: Request, runtime: Service, params: Annotated[FileQuery, Query()]
) -> Response:
    """Store each row of a file as a document. The file may have any size.

    Rows that fail are reported with their line numbers, and the other rows are stored.
    """
    _require_raw(request)
    collection = get_collection(request)
    try:
        upload = _Upload(request, runtime, params, collection)
    except BadFile as error:
        raise Validation(_sentence(params.name, error)) from error
    tally = await upload.run()
    errors = [{"line": lines.first, "last_line": lines.last, "error": error} for lines, error in tally.errors]
    others = {"summary": _summary(tally), "rows": tally.upserted, "notes": upload.notes}
    return await import_response(runtime, FileImported, tally, errors=errors, **others)


class _Upload:
    """Reads an uploaded file and stores each row as a document.

    Raises:
        BadFile: An option is wrong, or the name of the file belongs to a binary format.

    """

    def __init__(self, request: Request, runtime: Runtime, params: FileQuery, collection: str) -> None:
        self._request = request
        self._name = params.name
        options = _options(params, collection)
        self._titled = options.format == "file"
        self._reader = FileReader(params.name or "file", options)
        self._unpacked = Unpacked()
        self._parse = partial(
            build_document,
            max_metadata_kb=runtime.settings.max_metadata_kb,
            salt=runtime.hash_filter(get_scope(request.scope)),
        )
        self._flow: StreamedBody = request.scope["flow"]
        self._importing = Import(request, runtime, collection)
        self._slices = Slices()
        self.notes: list[dict[str, Any]] = []

    async def run(self) -> Tally:
        """Stores every row and returns the counts.

        Raises:
            Empty: The file has no row to store.
            Validation: The rest of the file cannot be read. The message says how many documents are stored.
            ServiceError: The import cannot continue. The message says how many documents are stored.

        """
        async with aclosing(self._importing) as importing:
            try:
                async with aclosing(body_pieces(self._request)) as pieces:
                    async for piece in pieces:
                        for part in self._unpacked.feed(piece or b""):
                            await self._read(part)
                        await importing.look(idle=piece is None)
                for part in self._unpacked.finish():
                    await self._read(part)
                for row in await asyncio.to_thread(list, self._reader.finish()):
                    await self._take(row)
                tally = await importing.finish()
            except BadFile as error:
                tally = await importing.finish()
                stored = f" {tally}" if tally.upserted else " Nothing of it was stored."
                raise Validation(f"{_sentence(self._name, error)}{stored}") from error
        if not tally.upserted and not tally.failed:
            raise Empty("The file has no row to store.")
        return tally

    async def _read(self, part: bytes) -> None:
        for at in range(0, len(part), STEP_BYTES):
            rows = await asyncio.to_thread(list, self._reader.feed(part[at : at + STEP_BYTES]))
            self._flow.moved()
            for row in rows:
                await self._take(row)
                await self._slices.rest()

    async def _take(self, row: Row) -> None:
        if row.note and len(self.notes) < MAX_ERRORS:
            self.notes.append({"line": row.line, "note": row.note})
        if row.content is None:
            return
        lines = Span(row.line, max(row.last_line, row.line))
        if isinstance(row.content, BadRow):
            self._importing.fail(lines, f"{str(row.content).removesuffix('.')}.")
            return
        try:
            titled = {"title": self._name} if self._titled else {}
            document = self._parse({**titled, **row.content})
        except ServiceError as error:
            self._importing.fail(lines, error.message)
        else:
            await self._importing.add(lines, document)


def _summary(tally: Tally) -> str:
    documents, rows = tally.seen.distinct, tally.upserted
    if documents == rows:
        said = f"{amount(rows, 'row')} stored"
    else:
        said = f"{amount(rows, 'row')} stored as {amount(documents, 'document')} ({tally.seen.sentence()})"
    if tally.replaced:
        said += f"; {tally.replaced} of them had been stored before"
    return f"{said}; {failed_in_words(tally.failed_rows, tally.failed)}." if tally.failed else f"{said}."


def _require_raw(request: Request) -> None:
    if media_type(request) != RAW_FILE:
        raise MediaType(f"Content-Type must be {RAW_FILE}: the body is the file as it is, in any format.")


def _options(params: FileQuery, collection: str) -> Options:
    """Returns the options for the file reader.

    Raises:
        BadFile: An option is wrong.

    """
    every = params.metadata == ALL
    metadata = None if every else params.metadata
    placed: Placed = "unsaid" if collection == DEFAULT_COLLECTION else "one"
    kind = params.format or find_format(params.name) or ("file" if params.name else None)
    return build_options(
        params, params.name, kind, params.id, metadata, placed, every=every, spell=query_parameter
    )


def _sentence(name: str, error: BadFile) -> str:
    place = name or "The file"
    return f"{place}: {error}" if error.line is None else f"{place}, line {error.line}: {error}"

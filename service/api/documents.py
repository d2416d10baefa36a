"""Routes that store, read, list, count and delete documents."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.responses import Response

from models.search.content import derived_id
from service.api.bulk_import import Imported, import_lines
from service.api.collections import existing, find_bounds, get_collection
from service.api.embedding import VERSION_HEADER, check_count
from service.api.openapi import (
    COUNT,
    EMBEDS,
    FILTER_WITH_A_CONDITION,
    VERSIONED,
    DocumentId,
    FilterText,
    Limit,
    Metadata,
    OpenTo,
    Role,
    ShownAs,
    StoredText,
    StoredTitle,
    Warnings,
    describe,
    example,
)
from service.api.search_plan import find_warnings, parse_where
from service.auth.access import get_scope
from service.auth.audit import audit
from service.errors import Empty, NotFound, Overloaded, Storage, Validation
from service.files.metadata import check_metadata
from service.http.bodies import (
    NDJSON,
    JsonChunks,
    Slices,
    check_parameters,
    in_chunks,
    json_array,
    json_response,
    media_type,
    parsed_body,
    read_query,
    validated,
)
from service.http.routing import RoleRoute
from service.runtime.runtime import Service
from service.settings import Settings
from service.store.filters.grammar import parse_filter
from service.store.values import MAX_ID_CHARACTERS, Document, Record


class AnyText(PathConvertor):
    """Path convertor for document ids. It matches every character, including slashes and line breaks."""

    regex = r"[\s\S]+"


register_url_convertor("anything", AnyText())
router = APIRouter(prefix="/documents", route_class=RoleRoute, tags=["documents"])

SMALL_CHARACTERS = 512


_EXAMPLE = {"id": "refund", "text": "Unused goods may be sent back.", "metadata": {"topic": "support"}}


class DocumentIn(BaseModel):
    model_config = ConfigDict(extra="forbid")
    id: DocumentId | None = None
    title: StoredTitle | None = Field(None, description="Embedded and indexed together with the text")
    text: StoredText
    metadata: Metadata = {}


class DocumentsRequest(BaseModel):
    model_config = example({"documents": [_EXAMPLE]}) | ConfigDict(extra="forbid")
    # Validated one by one, after they were counted: millions at once would hold the event loop for seconds.
    documents: Annotated[list[Any], ShownAs(Annotated[list[DocumentIn], Field(min_length=1)])]


class Upserted(BaseModel):
    upserted: int
    truncated: int = Field(description="Number of texts that are longer than the model's input")
    unknown: int = Field(description="Number of embedded texts with words that the model does not know")
    sequence: int
    documents: int = Field(0, description="Fewer than `upserted`; absent if no id came more than once")
    ids: list[str] = Field([], description="All ids in order, if a document came without an id")


class DocumentOut(BaseModel):
    id: str
    title: str = Field("", description="Absent when the document has none")
    text: str
    metadata: dict[str, Any]


class Page(BaseModel):
    documents: list[DocumentOut]
    next: str | None
    warnings: Warnings = []


class Filtered(BaseModel):
    filter: FilterText = None


class Listing(Filtered):
    after: str = ""
    limit: Limit = 100
    id: str | None = None


class Deleted(BaseModel):
    deleted: int
    sequence: int


class DeletedSome(Deleted):
    warnings: Warnings = []


class Counted(BaseModel):
    count: int
    warnings: Warnings = []


_WRITES = (*EMBEDS, Storage)  # Conflict: too many collections
_LINE = {"type": "string", "description": "One JSON object per line: a document as in application/json"}
_UPSERTS = describe(
    Role.WRITE,
    Upserted | Imported,
    open_to=OpenTo.SCOPED,
    raises=_WRITES,
    headers={**VERSIONED, "x-compute-tokens": COUNT},
    reads={"application/json": DocumentsRequest, NDJSON: _LINE},
)


@router.post("", **_UPSERTS)
async def store_documents(request: Request, runtime: Service) -> Response:
    """Store documents. After the answer 200 the documents are on disk, and the next search finds them.

    An NDJSON body may have any number of documents. Lines that fail are reported, and the other lines
    are stored.
    """
    limit_kb, salt = runtime.settings.max_metadata_kb, runtime.hash_filter(get_scope(request.scope))
    if media_type(request) == NDJSON:
        parse = partial(build_document, max_metadata_kb=limit_kb, salt=salt)
        return await import_lines(request, runtime, parse, get_collection(request))
    documents, every_id = await _documents(request, runtime.settings, salt)
    # The last of two equal ids wins.
    distinct = list({document.id: document for document in documents}.values())
    stored = await runtime.corpus.put(distinct, get_collection(request), get_scope(request.scope))
    ids = {} if every_id else {"ids": [document.id for document in documents]}
    counts = {"truncated": stored.truncated, "unknown": stored.unknown}
    answer = {"upserted": len(documents), **counts, "sequence": stored.sequence}
    if len(distinct) < len(documents):
        answer["documents"] = len(distinct)
    headers = {VERSION_HEADER: stored.version, "x-compute-tokens": str(stored.tokens)}
    return json_response(answer | ids, headers)


async def _documents(request: Request, settings: Settings, salt: str) -> tuple[list[Document], bool]:
    """Returns the documents of a JSON body, and whether every document was sent with an id.

    The returned documents hold metadata as JSON text, because parsed metadata take up to 25 times as much
    memory.
    """
    documents, every_id, slices = [], True, Slices()
    async with parsed_body(request, DocumentsRequest, stored=True) as body:
        values = body.documents
        check_count(values, settings.max_inputs, "documents")
        for at, value in enumerate(values):
            documents.append(build_document(value, settings.max_metadata_kb, f"documents[{at}]", salt))
            every_id = every_id and value.get("id") is not None
            await slices.rest()
    return documents, every_id


def build_document(value: object, max_metadata_kb: int, name: str = "", salt: str = "") -> Document:
    """Builds a document from a parsed JSON value. Error messages put `name` before the names of fields.

    With a salt, a missing id differs from that of the same text of another tenant, who could not store it
    otherwise, and would know that it is there.

    Raises:
        Empty: The text is empty.
        Validation: A field is wrong.

    """
    field = f"{name}." if name else ""
    metadata = value.get("metadata", {}) if isinstance(value, dict) else {}
    # `validated` rejects metadata of other types.
    json = check_metadata(metadata, f"{field}metadata", max_metadata_kb) if isinstance(metadata, dict) else ""
    given = validated(DocumentIn, value, name)
    if not given.text or given.text.isspace():
        raise Empty(f"{field}text is empty, or white space only. Leave the document out.")
    title = given.title or ""
    if title.isspace():
        raise Validation(f"{field}title is white space only. Leave it out.")
    id = given.id or derived_id(title, given.text, salt)
    return Document(_copied(id), _copied(given.text), json, _copied(title))


def _copied(text: str) -> str:
    """Returns a copy of `text`, if the text is short.

    A short string that a JSON parser created shares memory blocks with other small objects of the parsed
    body. Python's allocator frees only whole blocks of a megabyte. Without copies, the ids of 240 documents
    kept 250 MiB of parsed metadata allocated.
    """
    return text if len(text) > SMALL_CHARACTERS else text.encode().decode()


@router.get("", **describe(Role.READ, Page, open_to=OpenTo.SCOPED, raises=[Overloaded, Storage]))
async def list_documents(request: Request, runtime: Service, params: Annotated[Listing, Query()]) -> Response:
    """List documents in the order of their ids, after the id `after`.

    Send `next` as `after` to get the next page.

    With `id`, the answer contains only the document with exactly this id, or no document. A document whose id
    is `count` can be read only in this way, because the path `/documents/count` returns the number of
    documents.
    """
    if params.id is not None and len(params.model_fields_set) > 1:
        raise Validation("id names one document; after, limit and filter are for listing. Leave them out.")
    where = parse_where(request, runtime, params.filter)
    collection, store = await existing(request, runtime), runtime.corpus.store
    if params.id is None:
        most = runtime.settings.max_answer_bytes
        found, more = await store.page(params.after, params.limit, where, most, collection)
    else:
        document = await store.document(params.id, collection, where)
        found, more = [] if document is None else [document], False
    following = found[-1].id if more else None
    rows = in_chunks(json_array(map(_as_json, found)))
    tail: dict[str, Any] = {"next": following}
    if not found and params.filter is not None:
        tail |= await find_warnings(request, runtime, params.filter, collection)
    return JsonChunks([b'{"documents":', *rows, b"," + orjson.dumps(tail)[1:]])


@router.get("/count", **describe(Role.READ, Counted, open_to=OpenTo.SCOPED, raises=[Storage]))
async def count_documents(
    request: Request, runtime: Service, params: Annotated[Filtered, Query()]
) -> Response:
    """Count the documents that match the filter, or all documents if no filter is given.

    To read a document whose id is `count`, send `GET /documents?id=count`.
    """
    where = parse_where(request, runtime, params.filter)
    collection = await existing(request, runtime)
    found = await runtime.corpus.store.count(where, collection)
    warnings = {} if found else await find_warnings(request, runtime, params.filter, collection)
    return json_response({"count": found, **warnings})


@router.get(
    "/{id:anything}", **describe(Role.READ, DocumentOut, open_to=OpenTo.SCOPED, raises=[NotFound, Storage])
)
async def read_document(request: Request, runtime: Service, id: str) -> Response:
    """Read a document by its percent-encoded id."""
    check_parameters(request)
    collection = await existing(request, runtime)
    document = await runtime.corpus.store.document(id, collection, find_bounds(request, runtime))
    if document is None:
        raise NotFound(f"There is no document {id[:MAX_ID_CHARACTERS]!r}.")
    return JsonChunks(_as_json(document))


@router.delete(
    "",
    **describe(
        Role.WRITE,
        DeletedSome,
        open_to=OpenTo.SCOPED,
        raises=[Storage],
        parameters=[FILTER_WITH_A_CONDITION],
    ),
)
async def delete_documents_by_filter(request: Request, runtime: Service) -> Response:
    """Delete the documents that match the filter at the time of the request.

    Documents are deleted in steps, oldest first, and other writes may run between the steps. Each step is on
    disk before the next one begins. Documents that are stored or changed during the deletion stay. If the
    answer is not 200, or if the service crashes, only some documents are deleted. Send the request again to
    delete the rest.
    """
    params = read_query(request, Filtered)
    where = parse_where(request, runtime, params.filter)
    if where is None or params.filter is None or not parse_filter(params.filter):
        raise Validation("Deleting needs a filter with a condition, or an id: DELETE /documents/{id}.")
    collection = await existing(request, runtime)
    deleted, sequence = await runtime.corpus.delete(where, collection)
    audit("delete", request.scope, collection=collection, deleted=deleted)
    warnings = {} if deleted else await find_warnings(request, runtime, params.filter, collection)
    return json_response({"deleted": deleted, "sequence": sequence, **warnings})


@router.delete("/{id:anything}", **describe(Role.WRITE, Deleted, open_to=OpenTo.SCOPED, raises=[Storage]))
async def delete_document(request: Request, runtime: Service, id: str) -> Response:
    """Delete one document. If no document has this id, `deleted` is 0."""
    check_parameters(request)
    collection = await existing(request, runtime)
    deleted, sequence = await runtime.corpus.store.delete_one(id, collection, find_bounds(request, runtime))
    return json_response({"deleted": deleted, "sequence": sequence})


def _as_json(record: Record) -> Iterator[bytes]:
    """Yields a document as parts of JSON."""
    yield b'{"id":' + orjson.dumps(record.id)
    if record.title_json:
        yield b',"title":' + record.title_json
    yield from (b',"text":', record.text_json, b',"metadata":', record.metadata_json, b"}")

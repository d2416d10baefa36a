"""Storing, reading and deleting documents."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import Response

from service.api.body import Slices, known_parameters, parameters, parsed_body, validated
from service.api.collections import collection_of, existing
from service.api.contract import COUNT, EMBEDS, VERSIONED, Role, describe
from service.api.inference import VERSION_HEADER, check_count
from service.api.json_schemas import (
    CONDITIONS,
    HOLDS,
    MAX_ID_CHARACTERS,
    METADATA,
    DocumentId,
    FilterText,
    Limit,
    StoredText,
    StoredTitle,
    Warnings,
)
from service.api.metadata import checked
from service.api.ndjson_import import Imported, import_lines
from service.api.responses import JsonChunks, in_chunks, json_array, json_response
from service.api.search_params import find_warnings, where_of
from service.auth.audit import audit
from service.errors import Empty, NotFound, Overloaded, Storage, Validation
from service.files.columns import derived_id
from service.http.body_budget import NDJSON
from service.http.routing import Direct
from service.runtime.runtime import runtime_of
from service.settings import Settings
from service.store.values import Document, Record


class Anything(Convertor[str]):
    """The rest of a path, slashes and line breaks included: an id is any text."""

    regex = r"[\s\S]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("anything", Anything())
router = APIRouter(prefix="/documents", route_class=Direct, tags=["documents"])

SMALL_CHARACTERS = 512


class DocumentIn(BaseModel):
    model_config = ConfigDict(extra="forbid")
    id: DocumentId | None = None
    title: StoredTitle | None = Field(None, description="Embedded and indexed together with the text")
    text: StoredText
    metadata: Annotated[dict[str, Any], WithJsonSchema(METADATA)] = {}


_MANY_DOCUMENTS = {"type": "array", "items": DocumentIn.model_json_schema(), "minItems": 1}


class DocumentsRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    # Validated one by one, after they were counted: millions at once would hold the event loop for seconds.
    documents: Annotated[list[Any], WithJsonSchema(_MANY_DOCUMENTS)]


class Upserted(BaseModel):
    upserted: int
    truncated: int = Field(description="How many of the texts the model does not see to their end")
    sequence: int
    ids: list[str] = Field([], description="Of all, in their order; when one came without")


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


_WRITES = (*EMBEDS, Storage)  # Conflict: a collection too many
_LINE = {"type": "string", "description": "One JSON object per line: a document as in application/json"}
_UPSERTS = describe(
    Role.WRITE,
    DocumentsRequest,
    Upserted | Imported,
    raises=_WRITES,
    headers={**VERSIONED, "x-compute-tokens": COUNT},
    reads={NDJSON: _LINE},
)


@router.post("", **_UPSERTS)
async def upsert(request: Request) -> Response:
    """Store documents: on disk, and in the next search, when this answers 200.

    As NDJSON, any number of them: a line that fails is reported and the others are stored.
    """
    runtime = runtime_of(request)
    limit_kb = runtime.settings.max_metadata_kb
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() == NDJSON:
        parse = partial(document_of, max_metadata_kb=limit_kb)
        return await import_lines(request, runtime, parse, collection_of(request))
    documents, every_id = await _documents(request, runtime.settings)
    # Of two equal ids the last wins.
    distinct = list({document.id: document for document in documents}.values())
    stored = await runtime.corpus.put(distinct, collection_of(request))
    answer: dict[str, Any] = {
        "upserted": len(documents),
        "truncated": stored.truncated,
        "sequence": stored.sequence,
    }
    if not every_id:
        answer["ids"] = [document.id for document in documents]
    headers = {VERSION_HEADER: stored.version, "x-compute-tokens": str(stored.tokens)}
    return json_response(answer, headers)


async def _documents(request: Request, settings: Settings) -> tuple[list[Document], bool]:
    """The documents of a JSON body, and whether all came with an id.

    Nothing of the body is kept when this returns but their texts and their metadata as JSON: parsed, metadata
    take up to 25 times as much.
    """
    documents, every_id, slices = [], True, Slices()
    async with parsed_body(request, DocumentsRequest, stored=True) as body:
        values = body.documents
        check_count(values, settings.max_inputs, "documents")
        for at, value in enumerate(values):
            metadata = _metadata(value, f"documents[{at}].metadata", settings.max_metadata_kb)
            given = validated(DocumentIn, value, f"documents[{at}]")
            documents.append(_document(given, metadata, f"documents[{at}]."))
            every_id = every_id and given.id is not None
            await slices.rest()
    return documents, every_id


def document_of(value: dict[str, Any], max_metadata_kb: int) -> Document:
    metadata = _metadata(value, "metadata", max_metadata_kb)
    return _document(validated(DocumentIn, value), metadata)


def _metadata(value: object, name: str, limit_kb: int) -> str:
    """The metadata of a document as it came, in JSON; what is no object is left to the schema to refuse."""
    given = value.get("metadata", {}) if isinstance(value, dict) else {}
    return checked(given, name, limit_kb) if isinstance(given, dict) else "{}"


def _document(given: DocumentIn, metadata: str, name: str = "") -> Document:
    """`name`: of `given`, as a refusal begins."""
    if not given.text or given.text.isspace():
        raise Empty(f"{name}text is empty, or white space only. Leave the document out.")
    title = given.title or ""
    if title.isspace():
        raise Validation(f"{name}title is white space only. Leave it out.")
    id = given.id or derived_id(title, given.text)
    return Document(_anew(id), _anew(given.text), metadata, _anew(title))


def _anew(text: str) -> str:
    """A copy of a short text that was parsed.

    It lies among the small objects of the whole body, and Python's allocator gives a megabyte back only when
    all of it is free: the ids of 240 documents kept 250 MiB of parsed metadata.
    """
    return text if len(text) > SMALL_CHARACTERS else text.encode().decode()


@router.get("", **describe(Role.READ, None, Page, query=Listing, raises=[Overloaded, Storage]))
async def list_documents(request: Request) -> Response:
    """Documents in id order, from the one after `after`; `next` is the `after` of the following page.

    With `id`, only the document of exactly this id, or none. It reaches every document, also one with the id
    `count`, whose path leads to the number of documents.
    """
    runtime = runtime_of(request)
    asked = parameters(request, Listing)
    if asked.id is not None and len(asked.model_fields_set) > 1:
        raise Validation("id names one document; after, limit and filter are for listing. Leave them out.")
    where = where_of(runtime, asked.filter)
    collection, store = await existing(request, runtime), runtime.corpus.store
    if asked.id is None:
        most = runtime.settings.max_answer_bytes
        shown, more = await store.page(asked.after, asked.limit, where, most, collection)
    else:
        found = await store.document(asked.id, collection)
        shown, more = [] if found is None else [found], False
    following = shown[-1].id if more else None
    rows = in_chunks(json_array(map(_as_json, shown)))
    tail: dict[str, Any] = {"next": following}
    if not shown and where is not None:
        tail |= await find_warnings(runtime, asked.filter, collection)
    return JsonChunks([b'{"documents":', *rows, b"," + orjson.dumps(tail)[1:]])


@router.get("/count", **describe(Role.READ, None, Counted, query=Filtered, raises=[Storage]))
async def count_documents(request: Request) -> Response:
    """Number of documents that pass the filter, or are stored in all.

    A document with the id `count` is read by `GET /documents?id=count`.
    """
    runtime = runtime_of(request)
    asked = parameters(request, Filtered)
    where = where_of(runtime, asked.filter)
    collection = await existing(request, runtime)
    found = await runtime.corpus.store.count(where, collection)
    warnings = {} if found else await find_warnings(runtime, asked.filter, collection)
    return json_response({"count": found, **warnings})


@router.get("/{id:anything}", **describe(Role.READ, None, DocumentOut, raises=[NotFound, Storage]))
async def get_document(request: Request) -> Response:
    """A document, by its percent-encoded id."""
    id: str = request.path_params["id"]
    runtime = runtime_of(request)
    known_parameters(request)
    collection = await existing(request, runtime)
    document = await runtime.corpus.store.document(id, collection)
    if document is None:
        raise NotFound(f"There is no document {id[:MAX_ID_CHARACTERS]!r}.")
    return JsonChunks(_as_json(document))


_SOME = {"in": "query", "name": "filter", "required": True, "schema": {HOLDS: CONDITIONS}}


@router.delete("", **describe(Role.WRITE, None, DeletedSome, raises=[Storage], parameters=[_SOME]))
async def delete_documents(request: Request) -> Response:
    """Delete every document that passes the filter at this moment.

    In steps, with other writes between them: each is on disk before the next, oldest documents first. A
    document that is stored or changed meanwhile stays. 200 when all are done; after anything else, or a
    crash, some are deleted, and sending it again deletes the rest.
    """
    runtime = runtime_of(request)
    asked = parameters(request, Filtered)
    where = where_of(runtime, asked.filter)
    if where is None or where.is_empty:
        raise Validation("Deleting needs a filter with a condition, or an id: DELETE /documents/{id}.")
    collection = await existing(request, runtime)
    deleted, sequence = await runtime.corpus.delete(where, collection)
    audit("delete", request.scope, collection=collection, deleted=deleted)
    warnings = {} if deleted else await find_warnings(runtime, asked.filter, collection)
    return json_response({"deleted": deleted, "sequence": sequence, **warnings})


@router.delete("/{id:anything}", **describe(Role.WRITE, None, Deleted, raises=[Storage]))
async def delete_document(request: Request) -> Response:
    """Delete one document; an id that is not there deletes 0."""
    runtime = runtime_of(request)
    known_parameters(request)
    collection = await existing(request, runtime)
    deleted, sequence = await runtime.corpus.store.delete_one(request.path_params["id"], collection)
    return json_response({"deleted": deleted, "sequence": sequence})


def _as_json(record: Record) -> Iterator[bytes]:
    """A document as parts of JSON."""
    yield b'{"id":' + orjson.dumps(record.id)
    if record.title_json:
        yield b',"title":' + record.title_json
    yield from (b',"text":', record.text_json, b',"metadata":', record.metadata_json, b"}")

"""`GET /search?q=` and `POST /search`."""

import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Query, Request
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    WithJsonSchema,
)
from pydantic.json_schema import SkipJsonSchema
from starlette.responses import Response

from service.api.body import known_parameters, read_body
from service.api.collections import existing
from service.api.contract import EMBEDS, TIMED, Role, describe
from service.api.inference import (
    VERSION_HEADER,
    inference_headers,
    pinned,
    runtime_of,
    texts_of,
)
from service.api.json_schemas import FILTER, TEXT, VECTOR, FilterText
from service.api.pieces import JsonChunks
from service.api.search_params import (
    MAX_FIELDS,
    MAX_K,
    MAX_OFFSET,
    MODES,
    Shown,
    answered,
    check_characters,
    check_kind,
    check_options,
    given_id,
    queries_of,
    shown_of,
    where_of,
)
from service.corpus import search as searching
from service.corpus.search import Hit, Search
from service.errors import NotFound, Storage, Validation
from service.http.routing import Direct
from service.live import Generation
from service.runtime.runtime import Runtime
from service.store.values import TooMuch

router = APIRouter(route_class=Direct, tags=["search"])

MILLION = 1_000_000

_K: dict[str, Any] = {"minimum": 1, "maximum": MAX_K}
_OFFSET: dict[str, Any] = {"minimum": 0, "maximum": MAX_OFFSET}
_MODE: dict[str, Any] = {"enum": [*MODES]}
_ID: dict[str, Any] = {"type": "string", "minLength": 1}
_LIKE: dict[str, Any] = {
    "type": "object",
    "properties": {"id": _ID},
    "required": ["id"],
    "additionalProperties": False,
}
_QUERIES: dict[str, Any] = {
    "anyOf": [{"type": "array", "items": kind, "minItems": 1} for kind in (TEXT, VECTOR, _LIKE)]
}
_PATH = r"text|metadata(\.[^.,]+)*"
_FIELDS: dict[str, Any] = {
    "type": "array",
    "items": {"type": "string", "pattern": r"^(text|metadata(\.[^.]+)*)$"},
    "maxItems": MAX_FIELDS,
}


_PASSAGES = "False: compare with the head of each document alone, as if no text were split"


class SearchRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    queries: Annotated[list[Any], WithJsonSchema(_QUERIES)]
    k: StrictInt = Field(10, json_schema_extra=_K)
    offset: StrictInt = Field(0, json_schema_extra=_OFFSET, description="Hits to leave out before the first")
    fields: Annotated[list[StrictStr], Field(fail_fast=True), WithJsonSchema(_FIELDS)] | None = Field(
        None, description="What a hit shows beside id and score: text, metadata, metadata.NAME; null: all"
    )
    filter: Annotated[dict[str, Any], WithJsonSchema(FILTER)] | None = None
    mode: StrictStr = Field("dense", json_schema_extra=_MODE)
    min_score: StrictFloat | StrictInt | None = Field(None, description="With mode dense only")
    passages: StrictBool = Field(True, description=_PASSAGES)
    prompt_name: StrictStr | None = None
    model: StrictStr | None = Field(None, description="Needed for vector queries: the version that made them")


class PassageFound(BaseModel):
    start: int = Field(description="Its first character (Unicode code points)")
    end: int = Field(description="The one behind its last")


class Found(BaseModel):
    id: str
    score: float
    text: str = Field("", description="Absent when `fields` leaves it out")
    metadata: dict[str, Any] = Field({}, description="Absent when `fields` leaves it out")
    passage: PassageFound | SkipJsonSchema[None] = Field(None, description="The best one of a split text")


class SearchAnswer(BaseModel):
    query: str = Field("", description="Absent when the search is by id")
    id: str = Field("", description="Of the document whose like is looked for")
    model: str
    mode: str
    took_ms: float
    hits: list[Found] = Field(description="Best first")


class SearchAnswers(BaseModel):
    model: str
    results: list[list[Found]] = Field(description="Of each query, in their order; best first")


_SEARCHES: dict[str, Any] = {"raises": (*EMBEDS, NotFound, Storage), "headers": TIMED}


@router.get("/search", **describe(Role.READ, None, SearchAnswer, **_SEARCHES))
async def search_one(
    request: Request,
    q: Annotated[str | None, Query(description="What to look for", json_schema_extra=TEXT)] = None,
    id: Annotated[
        str | None,
        Query(description="In place of q: a document whose like to look for", json_schema_extra=_ID),
    ] = None,
    k: Annotated[int, Query(json_schema_extra=_K)] = 10,
    offset: Annotated[
        int, Query(description="Hits to leave out before the first", json_schema_extra=_OFFSET)
    ] = 0,
    fields: Annotated[
        str | None,
        Query(
            description="What a hit shows beside id and score, separated by commas: text, metadata, "
            "metadata.NAME; absent: all",
            json_schema_extra={"pattern": rf"^(({_PATH})(,({_PATH}))*)?$"},
        ),
    ] = None,
    filter: FilterText = None,
    mode: Annotated[str, Query(json_schema_extra=_MODE)] = "dense",
    min_score: Annotated[float | None, Query(description="With mode dense only")] = None,
    passages: Annotated[Literal["true", "false"], Query(description=_PASSAGES)] = "true",
    prompt_name: str | None = None,
) -> Response:
    """The documents that answer one query best: give `q` or `id`."""
    runtime = runtime_of(request)
    started = time.perf_counter()
    known_parameters(
        request, "q", "id", "k", "offset", "fields", "filter", "mode", "min_score", "passages", "prompt_name"
    )
    split = passages == "true"
    check_options(k, offset, mode, min_score, prompt_name, passages=split)
    query = _one(q, id, mode, prompt_name)
    check_characters([query], runtime.settings.max_query_characters)
    shown = shown_of(None if fields is None else [field for field in fields.split(",") if fields])
    search = _search(
        runtime,
        collection=await existing(request, runtime),
        k=k,
        offset=offset,
        mode=mode,
        where=where_of(runtime, filter),
        min_score=min_score,
        passages=split,
        shown=shown,
    )
    version = pinned(request, None, ())
    with runtime.live.borrow(version) as generation:
        await _check_whole(runtime, generation, version, mode)
        queries, answer = await answered(runtime, generation, [query], mode, None, prompt_name)
        hits = await _hits(runtime, generation, queries, search, shown.one_list)
        headers = inference_headers(generation, answer, [query.text], started)
    found: dict[str, Any] = {"query": q} if id is None else {"id": id}
    found |= {
        "model": headers[VERSION_HEADER],
        "mode": mode,
        "took_ms": round((time.perf_counter() - started) * 1000, 3),
    }
    return JsonChunks([orjson.dumps(found)[:-1] + b',"hits":', *hits, b"}"], headers)


def _one(q: str | None, id: str | None, mode: str, prompt_name: str | None) -> searching.Query:
    if (q is None) == (id is None):
        raise Validation("Give q, a text to look for, or id, a document whose like to look for; not both.")
    if id is None:
        [text] = texts_of([q], 1, "q")
        return searching.Query(text)
    check_kind("document", mode, prompt_name)
    return searching.Query(similar_to=given_id(id, "id"))


@router.post("/search", **describe(Role.READ, SearchRequest, SearchAnswers, **_SEARCHES))
async def search_many(request: Request) -> Response:
    """The documents that answer each of several queries best: texts, vectors, or documents by their ids."""
    runtime = runtime_of(request)
    started = time.perf_counter()
    body = await read_body(request, SearchRequest)
    check_options(body.k, body.offset, body.mode, body.min_score, body.prompt_name, passages=body.passages)
    queries = queries_of(body.queries, runtime.settings.max_inputs, body.mode, body.prompt_name)
    check_characters(queries, runtime.settings.max_query_characters)
    shown = shown_of(body.fields)
    search = _search(
        runtime,
        collection=await existing(request, runtime),
        k=body.k,
        offset=body.offset,
        mode=body.mode,
        where=where_of(runtime, body.filter),
        min_score=body.min_score,
        passages=body.passages,
        shown=shown,
    )
    _check_work(runtime, len(queries), search)
    # Of vectors `model` says who made them: whoever wants another version than the live one says so twice.
    model = None if queries[0].vector is not None else body.model
    version = pinned(request, model, runtime.controller.published)
    texts = [query.text for query in queries]
    with runtime.live.borrow(version) as generation:
        await _check_whole(runtime, generation, version, body.mode)
        queries, answer = await answered(
            runtime, generation, queries, body.mode, body.model, body.prompt_name
        )
        results = await _hits(runtime, generation, queries, search, shown.lists)
        headers = inference_headers(generation, answer, texts, started)
    answered_by = orjson.dumps({"model": headers[VERSION_HEADER]})[:-1]
    return JsonChunks([answered_by + b',"results":', *results, b"}"], headers)


def _search(runtime: Runtime, *, shown: Shown, **options: Any) -> Search:
    max_bytes = runtime.settings.max_answer_mb * MILLION
    return Search(max_bytes=max_bytes, with_text=shown.text, with_metadata=shown.metadata, **options)


async def _hits(
    runtime: Runtime,
    generation: Generation,
    queries: list[searching.Query],
    search: Search,
    then: Callable[[list[list[Hit]]], list[bytes]],
) -> list[bytes]:
    """The hits as chunks of JSON, which `then` makes of them on the reading thread."""
    try:
        return await runtime.corpus.search(generation, queries, search, then)
    except TooMuch as error:
        raise Validation(
            f"The hits have more than {runtime.settings.max_answer_mb} million bytes together "
            "(SIMILE_MAX_ANSWER_MB). Ask for fewer hits, send fewer queries at once, or leave their text out "
            "(fields)."
        ) from error


async def _check_whole(runtime: Runtime, generation: Generation, version: str | None, mode: str) -> None:
    """Refuse to search an index that lacks documents; words are always those of the store."""
    if mode == "lexical":
        return
    if version is None:
        runtime.corpus.check_whole(generation)
    else:
        await runtime.corpus.check_kept(generation)


def _check_work(runtime: Runtime, queries: int, search: Search) -> None:
    """Refuse more hits, or more candidates to rank, than one request may ask for."""
    asked, limit = queries * search.reach, runtime.settings.max_hits
    if asked > limit:
        raise Validation(
            f"The queries ask for {asked} hits together, offsets included; at most {limit} "
            "(SIMILE_MAX_HITS) go in one answer."
        )
    ranked, most = queries * search.candidates, runtime.settings.max_candidates
    if ranked > most:
        raise Validation(
            f"The queries rank {ranked} candidates together, {search.candidates} each in mode {search.mode}; "
            f"at most {most} (SIMILE_MAX_CANDIDATES) go in one request. Send "
            f"{most // search.candidates} queries at a time."
        )

"""`GET /search?q=` and `POST /search`."""

import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

import orjson
from fastapi import APIRouter, Request
from fastapi import Query as QueryParameters
from pydantic import BaseModel, ConfigDict, Field, StrictStr
from pydantic.json_schema import SkipJsonSchema
from starlette.responses import Response

from service.api.collections import existing
from service.api.embedding import VERSION_HEADER, inference_headers, pinned
from service.api.openapi import (
    EMBEDS,
    TIMED,
    Filter,
    FilterText,
    Role,
    ShownAs,
    Text,
    Texts,
    Warnings,
    describe,
)
from service.api.search_hits import MAX_FIELDS, parse_fields
from service.api.search_params import (
    Options,
    answered,
    check_characters,
    find_warnings,
    parse_where,
    queries_of,
    query_of,
)
from service.corpus.search import Hit, Query, Search
from service.errors import NotFound, Storage, Validation
from service.http.bodies import JsonChunks
from service.http.routing import RoleRoute
from service.live import Generation
from service.runtime.runtime import Runtime, Service
from service.store.values import MAX_SHOWN, TooMuch

router = APIRouter(route_class=RoleRoute, tags=["search"])

_PATH = r"title|text|metadata(\.[^.,]+)*"
_Field = Annotated[str, Field(pattern=r"^(title|text|metadata(\.[^.]+)*)$")]
_Fields = Annotated[list[_Field], Field(max_length=MAX_FIELDS)]
_Vectors = Annotated[list[Annotated[list[float], Field(min_length=1)]], Field(min_length=1)]
_PASSAGES = "False: compare with the head of each document alone, as if no text were split"
_STUDENT = "The version that encoded the queries; absent when `model` did, or no text was encoded"
_SHOWS = "What a hit shows besides id and score"


class SearchParameters(Options):
    q: Text | None = Field(None, description="What to look for")
    id: str | None = Field(
        None,
        description="Instead of q: a document to find similar ones to",
        json_schema_extra={"minLength": 1},
    )
    fields: str | None = Field(
        None,
        description=f"{_SHOWS}, separated by commas: title, text, metadata, metadata.NAME; absent: all",
        json_schema_extra={"pattern": rf"^(({_PATH})(,({_PATH}))*)?$"},
    )
    filter: FilterText = None
    passages: Literal["true", "false"] = Field("true", description=_PASSAGES)


class SimilarTo(BaseModel):
    """A query: a document to find similar ones to."""

    model_config = ConfigDict(extra="forbid")
    id: Annotated[str, Field(min_length=1)]


_Similar = Annotated[list[SimilarTo], Field(min_length=1)]


class SearchRequest(Options):
    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"queries": ["how do I get my money back"], "k": 3}]},
    )
    queries: Annotated[list[Any], ShownAs(Texts | _Vectors | _Similar)]
    fields: Annotated[list[StrictStr], Field(fail_fast=True), ShownAs(_Fields)] | None = Field(
        None, description=f"{_SHOWS}: title, text, metadata, metadata.NAME; null: all"
    )
    filter: Annotated[dict[str, Any], ShownAs(Filter)] | None = None
    passages: bool = Field(True, description=_PASSAGES)
    model: str | None = Field(None, description="Needed for vector queries: the version that made them")


class PassageFound(BaseModel):
    start: int = Field(description="Its first character of the text (Unicode code points)")
    end: int = Field(description="The character after its last")


class Found(BaseModel):
    id: str
    score: float
    title: str = Field("", description="Absent when the document has none, or `fields` leaves it out")
    text: str = Field("", description="Absent when `fields` leaves it out")
    metadata: dict[str, Any] = Field({}, description="Absent when `fields` leaves it out")
    passage: PassageFound | SkipJsonSchema[None] = Field(None, description="The best one of a split text")


class SearchAnswer(BaseModel):
    query: str = Field("", description="Absent when the search is by id")
    id: str = Field("", description="Of the document to find similar ones to")
    model: str
    mode: str
    query_encoder: str = Field("", description=_STUDENT)
    took_ms: float
    search_id: str = Field("", description="For POST /events; absent with SIMILE_EVENTS=0")
    warnings: Warnings = []
    hits: list[Found] = Field(description="Best first")


class SearchAnswers(BaseModel):
    model: str
    query_encoder: str = Field("", description=_STUDENT)
    search_ids: list[str] = Field([], description="Of each query; absent with SIMILE_EVENTS=0")
    warnings: Warnings = []
    results: list[list[Found]] = Field(description="Of each query, in their order; best first")


# Hits, headers, search_ids, and what else is said: a pair's query encoder, warnings.
_Answer: TypeAlias = tuple[list[bytes], dict[str, str], list[str], dict[str, Any]]
_SEARCHES: dict[str, Any] = {"raises": (*EMBEDS, NotFound, Storage), "headers": TIMED}


@router.get("/search", **describe(Role.READ, SearchAnswer, **_SEARCHES))
async def search_for_one_query(
    request: Request, runtime: Service, asked: Annotated[SearchParameters, QueryParameters()]
) -> Response:
    """The documents that answer one query best: give `q` or `id`."""
    split, started = asked.passages == "true", request.scope["started"]
    query = query_of(asked.q, asked.id)
    check_characters([query], runtime.settings.max_query_characters)
    where = parse_where(runtime, asked.filter)
    shown = parse_fields(
        None if asked.fields is None else [field for field in asked.fields.split(",") if field]
    )
    collection = await existing(request, runtime)
    version = pinned(request, None, runtime)

    async def ask(generation: Generation) -> tuple[_Answer, str]:
        search = asked.search(runtime.settings, generation, collection, where, shown, [query], passages=split)
        kept = version is not None
        return await _found(
            runtime,
            generation,
            [query],
            asked,
            search,
            shown.one_list,
            started,
            kept=kept,
            filter=asked.filter,
        ), search.mode

    (hits, headers, ids, student), mode = await runtime.corpus.in_service(ask, version)
    found: dict[str, Any] = {"query": asked.q} if asked.id is None else {"id": asked.id}
    found |= {
        "model": headers[VERSION_HEADER],
        "mode": mode,
        **student,
        "took_ms": round((time.perf_counter() - started) * 1000, 3),
    }
    if ids:
        [found["search_id"]] = ids
    return JsonChunks([orjson.dumps(found)[:-1] + b',"hits":', *hits, b"}"], headers)


@router.post("/search", **describe(Role.READ, SearchAnswers, **_SEARCHES))
async def search_for_several_queries(request: Request, runtime: Service, body: SearchRequest) -> Response:
    """The documents that answer each of several queries best: texts, vectors, or documents by their ids."""
    asked, started = body, request.scope["started"]
    queries = queries_of(asked.queries, runtime.settings.max_inputs)
    check_characters(queries, runtime.settings.max_query_characters)
    shown = parse_fields(asked.fields)
    where = parse_where(runtime, asked.filter)
    collection = await existing(request, runtime)
    # Of vectors `model` says who made them: whoever wants another version than the live one says so twice.
    model = None if queries[0].vector is not None else asked.model
    version = pinned(request, model, runtime)

    async def ask(generation: Generation) -> _Answer:
        search = asked.search(
            runtime.settings, generation, collection, where, shown, queries, passages=asked.passages
        )
        _check_work(runtime, len(queries), search)
        return await _found(
            runtime,
            generation,
            queries,
            asked,
            search,
            shown.lists,
            started,
            kept=version is not None,
            filter=asked.filter,
            model=asked.model,
        )

    results, headers, ids, student = await runtime.corpus.in_service(ask, version)
    said = {"model": headers[VERSION_HEADER], **student} | ({"search_ids": ids} if ids else {})
    return JsonChunks([orjson.dumps(said)[:-1] + b',"results":', *results, b"}"], headers)


async def _found(
    runtime: Runtime,
    generation: Generation,
    queries: list[Query],
    asked: Options,
    search: Search,
    then: Callable[[list[list[Hit]]], list[bytes]],
    started: float,
    *,
    kept: bool,
    filter: object,
    model: str | None = None,
) -> _Answer:
    """The hits as chunks of JSON, which `then` makes of them on the reading thread, and all that goes along.

    Args:
        generation: the borrowed one that answers.
        kept: it was pinned, and need not be the one in service.
        filter: as it was sent.
        model: the version that made the vectors among the queries.

    """
    shown: list[list[str]] = []

    def noting(found: list[list[Hit]]) -> list[bytes]:
        shown[:] = [[hit.document.id for hit in hits[:MAX_SHOWN]] for hits in found]
        return then(found)

    searches = runtime.searches
    # An index that lacks documents is not searched; words are always those of the store.
    if search.mode != "lexical" and not kept:
        runtime.corpus.check_whole(generation)
    elif search.mode != "lexical":
        await runtime.corpus.check_kept(generation)
    embedded, answer, student = await answered(runtime, generation, queries, asked, search.mode, model)
    try:
        chunks = await runtime.corpus.search(generation, embedded, search, noting, kept=kept)
    except TooMuch as error:
        raise Validation(
            f"The hits have more than {runtime.settings.max_answer_mb} million bytes together "
            "(SIMILE_MAX_ANSWER_MB). Ask for fewer hits, send fewer queries at once, or leave their text "
            "out (fields)."
        ) from error
    texts = [query.text for query in queries]
    if searches is None:
        ids = []
    else:
        visitor = runtime.visitors.hashed(asked.user)
        note = partial(searches.note, search.collection, search.offset, visitor=visitor)
        ids = [note(text, hits) for text, hits in zip(texts, shown, strict=True)]
    headers = inference_headers(generation.version, answer, texts, started)
    said: dict[str, Any] = {"query_encoder": student} if student else {}
    if search.where is not None and not any(shown):
        said |= await find_warnings(runtime, filter, search.collection)
    return chunks, headers, ids, said


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

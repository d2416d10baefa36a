"""`GET /search?q=` and `POST /search`."""

import time
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, StrictStr, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema
from starlette.responses import Response

from service.api.body import Direct, known_parameters, read_body
from service.api.contract import EMBEDS, TIMED, Role, describe
from service.api.inference import (
    VERSION_HEADER,
    check_count,
    inference_headers,
    json_response,
    pinned,
    runtime_of,
    texts_of,
    unit,
    with_prompt,
)
from service.api.shapes import FILTER, TEXT, VECTOR, FilterText
from service.calls import Answer, Timing
from service.documents import TooMuch
from service.errors import Conflict, Storage, Validation
from service.filters import FilterError, Where, compile_filter, parse_filter
from service.library import Hit
from service.live import Generation
from service.runtime import Runtime

router = APIRouter(route_class=Direct, tags=["search"])

MAX_K = 1000
MILLION = 1_000_000
MODES = ("dense", "lexical", "hybrid")

_K: dict[str, Any] = {"minimum": 1, "maximum": MAX_K}
_MODE: dict[str, Any] = {"enum": ["dense"]}  # those that are built
_QUERIES: dict[str, Any] = {
    "anyOf": [{"type": "array", "items": kind, "minItems": 1} for kind in (TEXT, VECTOR)]
}


class SearchRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    queries: Annotated[list[Any], WithJsonSchema(_QUERIES)]
    k: StrictInt = Field(10, json_schema_extra=_K)
    filter: Annotated[dict[str, Any], WithJsonSchema(FILTER)] | None = None
    mode: StrictStr = Field("dense", json_schema_extra=_MODE)
    min_score: StrictFloat | StrictInt | None = None
    prompt_name: StrictStr | None = None
    model: StrictStr | None = Field(None, description="Needed for vector queries: the version that made them")


class PassageFound(BaseModel):
    start: int = Field(description="Its first character (Unicode code points)")
    end: int = Field(description="The one behind its last")


class Found(BaseModel):
    id: str
    score: float
    text: str
    metadata: dict[str, Any]
    passage: PassageFound | SkipJsonSchema[None] = Field(None, description="The best one of a split text")


class SearchAnswer(BaseModel):
    query: str
    model: str
    mode: str
    took_ms: float
    hits: list[Found] = Field(description="Best first")


class SearchAnswers(BaseModel):
    model: str
    results: list[list[Found]] = Field(description="Of each query, in their order; best first")


_SEARCHES: dict[str, Any] = {"raises": (*EMBEDS, Storage), "headers": TIMED}


def where_of(filter: object) -> Where | None:
    """A filter as SQL, None for none."""
    if filter is None:
        return None
    try:
        return compile_filter(parse_filter(filter) if isinstance(filter, str) else filter)
    except FilterError as error:
        raise Validation(f"filter: {error}") from error


@router.get("/search", **describe(Role.READ, None, SearchAnswer, **_SEARCHES))
async def search_one(
    request: Request,
    q: Annotated[str, Query(description="What to look for", json_schema_extra=TEXT)],
    k: Annotated[int, Query(json_schema_extra=_K)] = 10,
    filter: FilterText = None,
    mode: Annotated[str, Query(json_schema_extra=_MODE)] = "dense",
    min_score: float | None = None,
    prompt_name: str | None = None,
) -> Response:
    """The documents nearest to one query, best first."""
    runtime = runtime_of(request)
    started = time.perf_counter()
    known_parameters(request, "q", "k", "filter", "mode", "min_score", "prompt_name")
    check_options(k, mode, min_score)
    queries = texts_of([q], 1, "q")
    where = where_of(filter)
    version = pinned(request, None, ())
    with runtime.live.borrow(version) as generation:
        await _check_whole(runtime, generation, version)
        answer = await embed_queries(runtime, generation, queries, prompt_name)
        [hits] = await _search(runtime, generation, answer.vectors, k, where, min_score)
        headers = inference_headers(generation, answer, queries, started)
    found = {
        "query": q,
        "model": headers[VERSION_HEADER],
        "mode": mode,
        "took_ms": round((time.perf_counter() - started) * 1000, 3),
        "hits": [hit.as_json() for hit in hits],
    }
    return json_response(found, headers)


@router.post("/search", **describe(Role.READ, SearchRequest, SearchAnswers, **_SEARCHES))
async def search_many(request: Request) -> Response:
    """The documents nearest to each of several texts or vectors."""
    runtime = runtime_of(request)
    started = time.perf_counter()
    body = await read_body(request, SearchRequest)
    check_options(body.k, body.mode, body.min_score)
    check_count(body.queries, runtime.settings.max_inputs, "queries")
    _check_hits(len(body.queries) * body.k, runtime.settings.max_hits)
    where = where_of(body.filter)
    given = isinstance(body.queries[0], list)
    # Of vectors `model` says who made them: whoever wants another version than the live one says so twice.
    model = None if given else body.model
    version = pinned(request, model, runtime.watcher.published)
    with runtime.live.borrow(version) as generation:
        await _check_whole(runtime, generation, version)
        if given:
            texts: list[str] = []
            if body.prompt_name is not None:
                raise Validation("A prompt goes before a text; vectors take none. Leave prompt_name out.")
            vectors = vectors_of(body.queries, body.model, generation)
            answer = Answer(vectors, [], [], Timing(0.0, 0.0, 0.0))
        else:
            texts = texts_of(body.queries, runtime.settings.max_inputs, "queries")
            answer = await embed_queries(runtime, generation, texts, body.prompt_name)
        found = await _search(runtime, generation, answer.vectors, body.k, where, body.min_score)
        headers = inference_headers(generation, answer, texts, started)
    results = [[hit.as_json() for hit in hits] for hits in found]
    return json_response({"model": headers[VERSION_HEADER], "results": results}, headers)


async def _search(
    runtime: Runtime,
    generation: Generation,
    vectors: NDArray[np.float32],
    k: int,
    where: Where | None,
    min_score: float | None,
) -> list[list[Hit]]:
    limit = runtime.settings.max_answer_mb
    try:
        return await runtime.library.search(
            generation, vectors, k, where=where, min_score=min_score, most=limit * MILLION
        )
    except TooMuch as error:
        raise Validation(
            f"The hits have more than {limit} million characters together (SIMILE_MAX_ANSWER_MB). Ask for "
            "fewer hits, or send fewer queries at once."
        ) from error


async def _check_whole(runtime: Runtime, generation: Generation, version: str | None) -> None:
    if version is None:
        runtime.library.check_whole(generation)
    else:
        await runtime.library.check_kept(generation)


def _check_hits(asked: int, limit: int) -> None:
    if asked > limit:
        raise Validation(
            f"The queries ask for {asked} hits together; at most {limit} (SIMILE_MAX_HITS) go in one answer."
        )


def check_options(k: int, mode: str, min_score: float | None) -> None:
    if not 1 <= k <= MAX_K:
        raise Validation(f"k must be between 1 and {MAX_K}, not {k}.")
    if mode not in MODES:
        raise Validation(f"mode must be one of {', '.join(MODES)}, not {mode!r}.")
    if mode != "dense":
        raise Validation(f"mode {mode!r} is not built yet; use dense.")
    if min_score is not None and not np.isfinite(min_score):
        raise Validation("min_score must be a finite number.")


async def embed_queries(
    runtime: Runtime, generation: Generation, queries: list[str], prompt_name: str | None
) -> Answer:
    """Queries behind the named prompt, or behind the model's own search prompt."""
    manifest = generation.manifest
    if prompt_name is None:
        rows: Any = [manifest.search_prompt + query for query in queries]
    else:
        rows = with_prompt(queries, prompt_name, manifest.prompts)
    return await runtime.batcher.embed(generation.encoder, rows)


def vectors_of(queries: list[Any], model: str | None, generation: Generation) -> NDArray[np.float32]:
    """Vector queries (n, dimension), scaled to unit length.

    Raises:
        Validation: no model named, a wrong length, something that is no finite number, or a zero vector.
        Conflict: made by another version than the one in service.

    """
    if model is None:
        raise Validation(
            "Vector queries must name the version that made them: model. GET /models lists them."
        )
    if model != generation.version:
        raise Conflict(
            f"These vectors are of {model[:100]}; {generation.version} answers. Embed the queries again, or "
            f"send the header {VERSION_HEADER} while that version is kept."
        )
    dimension = generation.encoder.dimension
    for at, query in enumerate(queries):
        if not isinstance(query, list) or len(query) != dimension or not all(map(_is_number, query)):
            raise Validation(
                f"queries[{at}] must be a list of {dimension} numbers, as the first one is a vector."
            )
    # Numbers beyond float32 become infinite here and are refused below.
    with np.errstate(over="ignore"):
        vectors = np.array(queries, dtype=np.float64).astype(np.float32)
    if not np.isfinite(vectors).all() or not vectors.any(axis=1).all():
        raise Validation("queries: a vector must be finite and not all zeros.")
    # By the largest value first: squares of large numbers would overflow.
    return unit(vectors / np.abs(vectors).max(axis=1, keepdims=True))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

"""The routes `GET /search?q=`, `POST /search` and `GET /searches`. Start reading at `_search`."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Annotated, Any, ClassVar, Literal

import orjson
from fastapi import APIRouter, Request
from fastapi import Query as QueryParameters
from pydantic import BaseModel, ConfigDict, Field, StrictStr
from pydantic.json_schema import SkipJsonSchema
from starlette.responses import Response

from service.active import Generation
from service.api.collections import existing, find_bounds, find_tenant
from service.api.embedding import inference_headers, pinned
from service.api.openapi import (
    EMBEDS,
    TIMED,
    Filter,
    FilterText,
    NumberId,
    OpenTo,
    Role,
    ShownAs,
    Text,
    Texts,
    Warnings,
    describe,
    example,
)
from service.api.search_plan import (
    MAX_FACET_CHARACTERS,
    MAX_FACETS,
    MAX_FIELDS,
    Options,
    Plan,
    average_conditions,
    check_characters,
    embed_queries,
    find_facet_warnings,
    find_warnings,
    parse_conditions,
    parse_facets,
    parse_fields,
    parse_queries,
    parse_query,
    parse_where,
    show_facets,
)
from service.batching.request import Answer, Lane
from service.corpus.interleaving import Side, name_search
from service.corpus.query import Page, Query, Rival, Search
from service.corpus.recent_searches import sum_up
from service.corpus.rewriting import Rewritten
from service.errors import Conflict, Hung, NotFound, ServiceError, Storage, Validation
from service.http.bodies import JsonChunks, check_parameters, in_chunks, json_array, json_response
from service.http.routing import RoleRoute
from service.observability.metrics import Metrics
from service.runtime.runtime import Runtime, Service
from service.settings import Settings
from service.store.values import MAX_SHOWN, TooMuch

router = APIRouter(route_class=RoleRoute, tags=["search"])

TESTED_SECONDS = 2.0  # A search with less time left is not part of a live test.

_PATH = r"id|score|title|text|metadata(\.[^.,]+)*"
_Field = Annotated[str, Field(pattern=r"^(id|score|title|text|metadata(\.[^.]+)*)$")]
_Fields = Annotated[list[_Field], Field(max_length=MAX_FIELDS)]
_Vectors = Annotated[list[Annotated[list[float], Field(min_length=1)]], Field(min_length=1)]
_PASSAGES = "False: compare with the head of each document alone, as if no text were split"
_STUDENT = "The version that encoded the queries; absent when `model` did, or no text was encoded"
_EXPLAINS = (
    "Each hit shows the query's terms that it has. In mode hybrid, it shows how both rankings were fused, "
    "and each of the best 50 hits its features and their parts in its score"
)
_HIGHLIGHTS = "Each hit shows where it has the query's terms, and a snippet of its text"
_RERANKS = "Whether the active reranker orders the best `rerank_k` hits. Absent: SIMILE_RERANK_COLLECTIONS"
_TYPOS = "Correct words that no document has; not in mode dense. Absent: unless SIMILE_EXACT_COLLECTIONS"
_SYNTAX = 'Whether "exact words", -word and title:word are conditions; otherwise they are plain text'
_RERANKER = "The version that ordered the best hits; absent without one"
_SHOWS = "Parts of a hit besides id and score"
_FACET = r"metadata\.[^$.,\x00][^.,\x00]*(\.[^.,\x00]+)*"
_Facet = Annotated[
    str,
    Field(max_length=MAX_FACET_CHARACTERS, pattern=r"^metadata\.[^$.\x00][^.\x00]*(\.[^.\x00]+)*$"),
]
_Facets = Annotated[list[_Facet], Field(max_length=MAX_FACETS)]
_COUNTS = "Metadata fields whose values are counted among the matching documents, such as metadata.topic"


class SearchParameters(Options):
    q: Text | None = Field(None, description="The text to search for")
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
    facets: str | None = Field(
        None,
        description=f"{_COUNTS}; at most {MAX_FACETS}, separated by commas",
        json_schema_extra={"pattern": rf"^({_FACET}(,{_FACET}){{0,{MAX_FACETS - 1}}})?$"},
    )
    explain: Literal["true", "false"] = Field("false", description=_EXPLAINS)
    highlight: Literal["true", "false"] = Field("false", description=_HIGHLIGHTS)
    rerank: Literal["true", "false"] | None = Field(None, description=_RERANKS)
    typos: Literal["true", "false"] | None = Field(None, description=_TYPOS)
    syntax: Literal["true", "false"] = Field("false", description=_SYNTAX)


class SimilarTo(BaseModel):
    """A query that names a stored document, to find similar documents."""

    model_config = ConfigDict(extra="forbid")
    id: Annotated[str, Field(min_length=1)] | NumberId


_Similar = Annotated[list[SimilarTo], Field(min_length=1)]


class SearchRequest(Options):
    model_config = example({"queries": ["how do I get my money back"], "k": 3}) | ConfigDict(
        extra="forbid", strict=True
    )
    HINT: ClassVar[str] = 'One query: GET /search?q=TEXT. Several: POST /search with {"queries": ["TEXT"]}.'
    queries: Annotated[list[Any], ShownAs(Texts | _Vectors | _Similar)]
    fields: Annotated[list[StrictStr], Field(fail_fast=True), ShownAs(_Fields)] | None = Field(
        None, description=f"{_SHOWS}: title, text, metadata, metadata.NAME; null: all"
    )
    filter: Annotated[dict[str, Any], ShownAs(Filter)] | None = None
    passages: bool = Field(True, description=_PASSAGES)
    facets: Annotated[list[StrictStr], Field(fail_fast=True), ShownAs(_Facets)] | None = Field(
        None, description=_COUNTS
    )
    explain: bool = Field(False, description=_EXPLAINS)
    highlight: bool = Field(False, description=_HIGHLIGHTS)
    rerank: bool | None = Field(None, description=_RERANKS)
    typos: bool | None = Field(None, description=_TYPOS)
    syntax: bool = Field(False, description=_SYNTAX)
    model: str | None = Field(None, description="Needed for vector queries: the version that made them")


class PassageFound(BaseModel):
    start: int = Field(description="Its first character of the text (Unicode code points)")
    end: int = Field(description="The character after its last")


class HighlightsFound(BaseModel):
    title: list[list[int]] = Field(description="Start and end of each term (Unicode code points), in order")
    text: list[list[int]] = Field(description="The same for the text; at most the first 1,000")


class SnippetFound(BaseModel):
    start: int = Field(description="Its first character of the text (Unicode code points)")
    end: int = Field(description="The character after its last")
    text: str = Field(description="These characters, about 240 at most")


class TermFound(BaseModel):
    term: str = Field(description="As it is indexed: folded, without its ending")
    source: Literal["correction", "synonym"] | SkipJsonSchema[None] = Field(
        None, alias="from", description="Where it comes from; absent for a term as typed"
    )
    idf: float | SkipJsonSchema[None] = Field(
        None, description="Its inverse document frequency in the collection, by BM25; absent with a filter"
    )
    where: list[Literal["title", "text"]] = Field(alias="in")


class PartFound(BaseModel):
    score: float | None = Field(description="Cosine or BM25 score; null if the ranking lacks the hit")
    place: int | None = Field(description="Place in the ranking, from 1")
    weight: float = Field(description="Of the ranking")
    share: float = Field(description="In the fused score, which is the sum of both shares")


class FusionFound(BaseModel):
    dense: PartFound
    lexical: PartFound


class ExplanationFound(BaseModel):
    terms: list[TermFound] = Field(
        [], description="Of the query, in the title and text as `fields` shows them"
    )
    fusion: FusionFound | SkipJsonSchema[None] = Field(None, description="In mode hybrid")


class Found(BaseModel):
    id: str
    score: float
    title: str = Field("", description="Absent when the document has none, or `fields` leaves it out")
    text: str = Field("", description="Absent when `fields` leaves it out")
    metadata: dict[str, Any] = Field({}, description="Absent when `fields` leaves it out")
    passage: PassageFound | SkipJsonSchema[None] = Field(None, description="The best one of a split text")
    rerank_score: float | SkipJsonSchema[None] = Field(
        None, description="Of the reranker, for the hits that it has ordered; `score` is that of the search"
    )
    search_place: int | SkipJsonSchema[None] = Field(
        None, description="Of these hits: the place in the order of the search, from 1"
    )
    features: dict[str, float] | SkipJsonSchema[None] = Field(None, description="With `explain`")
    contributions: dict[str, float] | SkipJsonSchema[None] = Field(
        None,
        description="With `explain`: parts of the features and of the reranker in the hit's ranking score",
    )
    highlights: HighlightsFound | SkipJsonSchema[None] = Field(None, description="With `highlight`")
    snippet: SnippetFound | SkipJsonSchema[None] = Field(
        None, description="With `highlight`; absent if the text is blank"
    )
    explanation: ExplanationFound | SkipJsonSchema[None] = Field(None, description="With `explain`")


class CorrectedWord(BaseModel):
    term: str = Field(description="As typed")
    to: list[str] = Field(description="The words that replace it, most frequent first")


class FacetCount(BaseModel):
    value: str | float | bool | None
    count: int = Field(description="Documents that a filter for the value matches")


class FacetRange(BaseModel):
    start: str | float = Field(alias="from", description="A number or a time: $gte of a filter")
    end: str | float | SkipJsonSchema[None] = Field(None, alias="to", description="$lt. Absent: no limit")
    count: int


class FacetOut(BaseModel):
    """The counts of a field. If it has many different numbers, or times, these are in ranges."""

    counts: list[FacetCount] = Field([], alias="values", description="Most frequent first")
    ranges: list[FacetRange] = Field([], description="In ascending order, without empty ones")
    other: int = Field(description="Documents that have the field, but none of these values")
    missing: int = Field(description="Documents without the field")


_Counts = dict[str, FacetOut]


class SearchAnswer(BaseModel):
    query: str = Field("", description="Absent when the search is by id")
    id: str = Field("", description="Of the document to find similar ones to")
    model: str
    mode: str
    query_encoder: str = Field("", description=_STUDENT)
    reranker: str = Field("", description=_RERANKER)
    took_ms: float
    corrected_query: str = Field("", description="The query that was searched, if words were corrected")
    corrections: list[CorrectedWord] = Field([], description="The corrected words; absent without one")
    search_id: str = Field("", description="For POST /events; absent with SIMILE_EVENTS=0")
    warnings: Warnings = []
    facets: _Counts = Field({}, description="The counts of each field of `facets`, if any were asked for")
    hits: list[Found] = Field(description="Best first")


class SearchAnswers(BaseModel):
    model: str
    query_encoder: str = Field("", description=_STUDENT)
    reranker: str = Field("", description=_RERANKER)
    corrected_queries: list[str | None] = Field(
        [], description="Of each query, null without a correction; absent if none was corrected"
    )
    corrections: list[list[CorrectedWord]] = Field([], description="Of each query; absent without one")
    search_ids: list[str] = Field([], description="Of each query; absent with SIMILE_EVENTS=0")
    warnings: Warnings = []
    facets: list[_Counts] = Field([], description="Of each query, if any were asked for")
    results: list[list[Found]] = Field(description="Of each query, in their order; best first")


class QueryCount(BaseModel):
    query: str
    searches: int


class QueriesAnswer(BaseModel):
    searches: int = Field(description="Counted searches of the collection, at most since the start")
    frequent: list[QueryCount] = Field(description="Queries with at least two searches, most searches first")
    without_results: list[QueryCount] = Field(description="Queries without a hit, most searches first")


_SEARCHES: dict[str, Any] = {
    "open_to": OpenTo.SCOPED,
    "raises": (*EMBEDS, NotFound, Storage),
    "headers": TIMED,
}


@router.get("/search", **describe(Role.READ, SearchAnswer, **_SEARCHES))
async def search_for_one_query(
    request: Request, runtime: Service, params: Annotated[SearchParameters, QueryParameters()]
) -> Response:
    """Search with one query: a text (`q`) or the id of a stored document (`id`)."""
    query = parse_query(params.q, params.id)
    fields = None if params.fields is None else [field for field in params.fields.split(",") if field]
    more: dict[str, Any] = {
        "passages": params.passages == "true",
        "explain": params.explain == "true",
        "highlight": params.highlight == "true",
        "facets": parse_facets([name for name in (params.facets or "").split(",") if name]),
        "rerank": None if params.rerank is None else params.rerank == "true",
        "typos": None if params.typos is None else params.typos == "true",
        "syntax": params.syntax == "true",
    }
    plan = await _plan(request, runtime, params, [query], fields, **more)
    return await _search(request, runtime, plan, {"query": params.q} if query.text else {"id": params.id})


@router.post("/search", **describe(Role.READ, SearchAnswers, **_SEARCHES))
async def search_for_several_queries(request: Request, runtime: Service, body: SearchRequest) -> Response:
    """Search with several queries, which are texts, vectors, or ids of stored documents."""
    queries = parse_queries(body.queries, runtime.settings.max_inputs)
    # For vectors, `model` names the version that made them. Only the header chooses the version to search.
    model = None if queries[0].vector is not None else body.model
    more: dict[str, Any] = {"passages": body.passages, "explain": body.explain, "rerank": body.rerank}
    more |= {"vectors_version": body.model, "highlight": body.highlight}
    more |= {"typos": body.typos, "syntax": body.syntax, "facets": parse_facets(body.facets)}
    plan = await _plan(request, runtime, body, queries, body.fields, model, several=True, **more)
    return await _search(request, runtime, plan, {})


@router.get("/searches", **describe(Role.ADMIN, QueriesAnswer, raises=[Conflict, NotFound]))
async def sum_up_searches(request: Request, runtime: Service) -> Response:
    """Return the 20 most frequent queries, and the 20 most frequent queries without results.

    This process counts the latest searches that it remembers for events (`SIMILE_EVENTS`), at most since its
    start. Nothing is on disk. Not counted: later pages, searches of a named version (`x-model-version`), and
    a query that the next search of the same `user` continues, because a page may search while the user types.
    """
    check_parameters(request)
    collection = await existing(request, runtime)
    if runtime.searches is None:
        raise Conflict("This service remembers no searches (SIMILE_EVENTS=0). Set SIMILE_EVENTS=1.")
    found = await asyncio.to_thread(sum_up, runtime.searches.of(collection))
    lists = {
        name: [{"query": query, "searches": count} for query, count in getattr(found, name)]
        for name in ("frequent", "without_results")
    }
    return json_response({"searches": found.searches, **lists})


async def _plan(
    request: Request,
    runtime: Runtime,
    options: SearchParameters | SearchRequest,
    queries: list[Query],
    fields: Sequence[str] | None,
    model: str | None = None,
    **more: Any,
) -> Plan:
    check_characters(queries, runtime.settings.max_query_characters, several=bool(more.get("several")))
    return Plan(
        queries=queries,
        options=options,
        filter=options.filter,
        where=parse_where(request, runtime, options.filter),
        bounds=find_bounds(request, runtime),
        shown=parse_fields(fields),
        collection=await existing(request, runtime),
        version=pinned(request, model, runtime),
        **more,
    )


@dataclass
class Stages:
    """What the stages of a search say about the pages of an answer."""

    shown: list[list[tuple[str, Side]]] = field(default_factory=list)  # Ids, and sides of a tested search.
    reranker: str = ""
    tokens: list[int] = field(default_factory=list)
    faults: dict[str, None] = field(default_factory=dict)
    rerank_faults: dict[str, None] = field(default_factory=dict)
    highlight_faults: dict[str, None] = field(default_factory=dict)
    facet_faults: dict[str, None] = field(default_factory=dict)
    pages: Sequence[Page] = ()

    def note(self, pages: list[Page]) -> None:
        self.pages = [page._replace(hits=[]) for page in pages]
        self.shown = [[(hit.document.id, hit.side) for hit in page.hits[:MAX_SHOWN]] for page in pages]
        for page in pages:
            self.reranker = page.reranker or self.reranker
            self.tokens += page.tokens
            self.faults |= {page.fault: None} if page.fault else {}
            self.rerank_faults |= {page.rerank_fault: None} if page.rerank_fault else {}
            self.highlight_faults |= {page.highlight_fault: None} if page.highlight_fault else {}
            self.facet_faults |= dict.fromkeys(page.facet_faults)

    def add_to(self, notes: dict[str, Any], metrics: Metrics) -> None:
        """Counts the faults, and adds fields to those of the answer."""
        metrics.unranked.inc(bool(self.faults))
        metrics.unreranked.inc(bool(self.rerank_faults))
        said = [*self.faults, *self.rerank_faults, *self.highlight_faults, *self.facet_faults]
        if warnings := [*notes.get("warnings", []), *said]:
            notes["warnings"] = warnings
        if self.reranker:
            notes["reranker"] = self.reranker


async def _search(request: Request, runtime: Runtime, plan: Plan, answer: dict[str, Any]) -> Response:
    """Runs a search and answers with the hits.

    Args:
        request: The request.
        runtime: The service.
        plan: The parsed search.
        answer: Fields that the answer begins with. The function adds more fields.

    """
    corpus, stages = runtime.corpus, Stages()

    def write(found: list[Page]) -> list[bytes]:
        """Returns the hits as chunks of JSON, and notes ids and faults. Runs on another thread."""
        stages.note(found)
        lists = [json_array(map(plan.shown.of, page.hits)) for page in found]
        return in_chunks(json_array(lists) if plan.several else lists[0])

    with runtime.active.borrow(plan.version) as generation, ExitStack() as borrowed:
        search = plan.search(runtime.settings, generation)
        queries = parse_conditions(plan.queries, several=plan.several) if plan.syntax else plan.queries
        search = replace(search, ends=request.scope.get("ends", inf), conditions=average_conditions(queries))
        if plan.several:
            search = _without_default(runtime.settings, plan, search, stages)
            _check_work(runtime.settings, len(plan.queries), search)
        # An incomplete index is not searched. Keyword search reads the store, which is always complete.
        if search.mode != "lexical":
            await corpus.check_complete(generation, active=plan.version is None)
        given = queries
        queries, embedded, notes = await _prepare(runtime, generation, plan, given, search)
        visitor = runtime.hash_visitor(plan.options.user)
        prepared = queries, embedded
        rival = await _find_rival(runtime, generation, plan, prepared, given, search, visitor, borrowed)
        try:
            hits = await corpus.search(generation, queries, search, write, rival)
        except TooMuch as error:
            raise Validation(
                f"The hits have more than {runtime.settings.max_answer_mb} million bytes together "
                "(SIMILE_MAX_ANSWER_MB). Ask for fewer hits, send fewer queries at once, or leave their text "
                "out (fields)."
            ) from error
        texts = [query.text for query in plan.queries]
        search_ids = _note(runtime, plan, visitor, find_tenant(request), stages, rival)
        embedded = embedded._replace(tokens=[*embedded.tokens, *stages.tokens])
        headers = inference_headers(generation.version, embedded, texts, request.scope["started"])
        if plan.where is not None and not any(stages.shown):
            notes |= await find_warnings(request, runtime, plan.filter, plan.collection)
        unknown = await find_facet_warnings(request, runtime, plan.facets, stages.pages, plan.collection)
        stages.facet_faults |= dict.fromkeys(unknown)
    stages.add_to(notes, runtime.metrics)
    if plan.facets:
        shown = [show_facets(page) for page in stages.pages]
        notes["facets"] = shown if plan.several else shown[0]
    answer["model"] = generation.version
    if plan.several:
        answer |= notes | ({"search_ids": search_ids} if search_ids else {})
    else:
        took_ms = round((time.perf_counter() - request.scope["started"]) * 1000, 3)
        answer |= {"mode": search.mode, **notes, "took_ms": took_ms}
        if search_ids:
            [answer["search_id"]] = search_ids
    name = b"results" if plan.several else b"hits"
    return JsonChunks([b'%s,"%s":' % (orjson.dumps(answer)[:-1], name), *hits, b"}"], headers)


def _note(
    runtime: Runtime, plan: Plan, visitor: str, tenant: str, stages: Stages, rival: Rival | None
) -> list[str]:
    """Remembers the search of each query. Returns the search ids, or none if events are off."""
    if seconds := stages.pages[0].seconds:
        runtime.live_tests.note_seconds(seconds)
    if runtime.searches is None:
        return []
    note = partial(
        runtime.searches.note,
        plan.collection,
        plan.options.offset,
        visitor=visitor,
        pinned=plan.version is not None,
        tenant=tenant,
    )
    names = [""] * len(plan.queries)
    if runtime.settings.live_test:  # An untested search must not be told from a tested one.
        coins = None if rival is None else rival.coins
        names = [name_search(page, coins) for page in stages.shown]
    return [
        note(query.text, [id for id, _ in page], search_id=name)
        for query, page, name in zip(plan.queries, stages.shown, names, strict=True)
    ]


async def _prepare(
    runtime: Runtime,
    generation: Generation,
    plan: Plan,
    given: Sequence[Query],
    search: Search,
    lane: Lane = Lane.INTERACTIVE,
) -> tuple[list[Query], Answer, dict[str, Any]]:
    """Corrects and embeds the queries `given` for one side of a search.

    Returns:
        The queries, the batcher's answer, and fields to add to the HTTP answer.
    """
    rewritten = await runtime.corpus.rewrite(generation, given, search)
    queries = [
        query._replace(
            text=each.text,
            weights=each.weights,
            same=each.same,
            sources=each.sources,
            # Judgments name queries as they were sent.
            typed=sent.text if search.has_stage and sent.text != each.text else "",
        )
        for query, each, sent in zip(given, rewritten, plan.queries, strict=True)
    ]
    corrected = replace(plan, queries=queries)
    queries, embedded, notes = await embed_queries(runtime, generation, search.mode, corrected, lane)
    return queries, embedded, notes | _describe_corrections(rewritten, several=plan.several)


async def _find_rival(
    runtime: Runtime,
    generation: Generation,
    plan: Plan,
    prepared: tuple[Sequence[Query], Answer],
    given: Sequence[Query],
    search: Search,
    visitor: str,
    borrowed: ExitStack,
) -> Rival | None:
    """Returns the candidate's side of a search, or None if no live test covers it.

    In the same mode and with the same vectors, it has the queries `prepared` for the active version from
    those `given`. A candidate with its own vectors is `borrowed`, and must embed the query quickly.

    The later pages of a tested search have the same sides, so they neither repeat nor skip a hit. A key with
    a filter shares its collection with other tenants, who must not decide about its searches.
    """
    is_plain = not (plan.explain or search.rerank_k or plan.bounds is not None)
    text = plan.queries[0].text
    if runtime.searches is None or len(given) > 1 or not text or plan.version is not None or not is_plain:
        return None
    if search.ends - time.monotonic() < TESTED_SECONDS:
        return None
    found = runtime.live_tests.find_rival(generation, plan.collection, visitor, text, borrowed)
    if found is None:
        return None
    candidate, coins = found
    queries, embedded = prepared
    times = 0.0, 0.0
    try:
        other = plan.search(runtime.settings, candidate)
        other = replace(other, ends=search.ends, conditions=search.conditions)
        if other.mode != search.mode or candidate.number != generation.number:
            await runtime.corpus.check_complete(generation, active=True)
            # The service replaces threads of the lane RERANK that hang.
            lane = Lane.INTERACTIVE if candidate.number == generation.number else Lane.RERANK
            async with asyncio.timeout(TESTED_SECONDS / 2):
                queries, again, _ = await _prepare(runtime, candidate, plan, given, other, lane)
            own, others = _get_embedding_seconds(embedded), _get_embedding_seconds(again)
            times = (own, others) if own and others else times  # A cached vector takes no time.
    except TimeoutError:
        runtime.live_tests.note_seconds((_get_embedding_seconds(embedded), TESTED_SECONDS / 2))
        return None
    except ServiceError as error:  # Mostly: the options do not fit the candidate, or only it needs a vector.
        if isinstance(error, Hung):
            candidate.fault = error.message  # It ends the test.
        return None
    return Rival(candidate, queries, other, coins, times)


def _get_embedding_seconds(answer: Answer) -> float:
    return answer.timing.tokenize_seconds + answer.timing.inference_seconds


def _describe_corrections(rewritten: Sequence[Rewritten], *, several: bool) -> dict[str, Any]:
    """Returns the fields of an answer that say what was corrected, or no fields."""
    if not any(each.corrections for each in rewritten):
        return {}
    texts = [each.shown if each.corrections else None for each in rewritten]
    lists = [[word._asdict() for word in each.corrections] for each in rewritten]
    if several:
        return {"corrected_queries": texts, "corrections": lists}
    return {"corrected_query": texts[0], "corrections": lists[0]}


def _without_default(settings: Settings, plan: Plan, search: Search, stages: Stages) -> Search:
    """Returns a search without the reranker, with a warning, if the collection's default is too much work."""
    count, most = len(plan.queries), settings.max_candidates
    if plan.rerank is not None or not search.is_reranked or count == 1 or count * search.cost <= most:
        return search
    fault = (
        f"The hits are not reranked, because {count} queries are too many for it (SIMILE_MAX_CANDIDATES). "
        f"Send {max(1, most // search.cost)} queries at a time, or rerank false."
    )
    stages.rerank_faults[fault] = None
    return replace(search, rerank_k=0)


def _check_work(settings: Settings, queries: int, search: Search) -> None:
    """Rejects a search with more hits, or more candidates to rank, than one request may ask for.

    One query may rank any number of candidates, as in `GET /search`.

    Raises:
        Validation: The search exceeds SIMILE_MAX_HITS or SIMILE_MAX_CANDIDATES.

    """
    hits, limit = queries * search.reach, settings.max_hits
    if hits > limit:
        raise Validation(
            f"The queries ask for {hits} hits together, offsets included; at most {limit} "
            "(SIMILE_MAX_HITS) go in one answer."
        )
    work, most = queries * search.cost, settings.max_candidates
    if work > most and queries > 1:
        raise Validation(
            f"The queries rank {work} candidates together, {search.cost} each in mode {search.mode}; "
            f"at most {most} (SIMILE_MAX_CANDIDATES) go in one request. Send "
            f"{max(1, most // search.cost)} queries at a time."
        )

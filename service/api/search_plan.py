"""Parses search requests: queries, filters, options, and the fields of a hit to return.

Start reading at `Plan`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Annotated, Any, TypeAlias

import numpy as np
import orjson
from fastapi import Request
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from models.manifest import Mode, SearchDefaults
from models.search.fusion import get_mode, get_weight
from models.search.ranking import RERANKED
from models.search.syntax import SyntaxProblem, parse_syntax
from service.active import Generation
from service.api.collections import find_bounds, find_tenant
from service.api.embedding import VERSION_HEADER, check_count, get_prompt, parse_texts
from service.api.openapi import MAX_K, MAX_OFFSET, USER, User, number_as_text
from service.batching.request import Answer, Lane, Timing
from service.corpus.query import Hit, Page, Query, Search
from service.corpus.tokens import compares_tokens
from service.errors import Conflict, Empty, Validation
from service.index.kmeans import unit
from service.runtime.runtime import Runtime
from service.settings import Settings
from service.store.filters.explain import explain
from service.store.filters.grammar import (
    MAX_FIELD_PARTS,
    FilterError,
    Predicate,
    both,
    check_field,
    objects_in,
    parse_filter,
)
from service.store.scheduling import pause
from service.store.values import COLUMNS, Column, Facet

TOGETHER = 100  # Limit of all queries together, as a multiple of the limit of one query.


MAX_FIELDS = 100
MAX_RERANK_K = 200
MAX_NAMES = 1024  # names between the dots of all fields together
MAX_CHARACTERS = 65_536  # characters of all fields together
METADATA = "metadata"
MAX_FACETS = 10
MAX_FACET_CHARACTERS = 256
ALWAYS = {"id", "score"}  # fields of every hit

_Tree: TypeAlias = dict[str | None, "_Tree"]  # nested names of fields
_END = None  # stands below the last name of a field


@dataclass(frozen=True, slots=True)
class Shown:
    """Selection of the fields that each hit contains, in addition to the id and the score."""

    columns: tuple[Column, ...] = COLUMNS
    fields: _Tree | None = None  # fields of the metadata, None for all

    def of(self, hit: Hit) -> list[bytes]:
        """Returns a hit as parts of JSON. Runs on the store's reading thread."""
        pause()
        head = {"id": hit.document.id, "score": hit.score}
        parts = [orjson.dumps(head, option=orjson.OPT_SERIALIZE_NUMPY)[:-1]]
        if hit.document.title_json:
            parts += b',"title":', hit.document.title_json
        if "text" in self.columns:
            parts += b',"text":', hit.document.text_json
        if "metadata" in self.columns:
            chosen = hit.document.metadata_json
            if self.fields is not None:
                chosen = orjson.dumps(_chosen(hit.document.metadata, self.fields))
            parts += b',"metadata":', chosen
        if hit.passage is not None:
            start, end = hit.passage
            parts.append(b',"passage":{"start":%d,"end":%d}' % (start, end))
        if hit.search_place is not None:
            parts.append(b',"search_place":%d' % hit.search_place)
        if hit.rerank_score is not None:
            parts.append(
                b',"rerank_score":' + orjson.dumps(hit.rerank_score, option=orjson.OPT_SERIALIZE_NUMPY)
            )
        told = _describe(hit)
        if told:
            parts.append(b"," + orjson.dumps(told)[1:-1])
        parts.append(b"}")
        return parts


def _describe(hit: Hit) -> dict[str, Any]:
    """Returns the fields of a hit that `highlight` and `explain` add."""
    told: dict[str, Any] = {}
    if hit.highlight is not None:
        told["highlights"] = {"title": hit.highlight.title, "text": hit.highlight.text}
        if hit.highlight.snippet is not None:
            told["snippet"] = hit.highlight.snippet._asdict()
    if hit.explanation is not None:
        told |= {name: part for name, part in hit.explanation._asdict().items() if part is not None}
    explanation: dict[str, Any] = {}
    if hit.terms is not None:
        explanation["terms"] = [
            {"term": match.term}
            | ({} if match.source is None else {"from": match.source})
            | ({} if match.idf is None else {"idf": match.idf})
            | {"in": match.columns}
            for match in hit.terms
        ]
    if hit.fusion is not None:
        explanation["fusion"] = {name: part._asdict() for name, part in hit.fusion.items()}
    return told | ({"explanation": explanation} if explanation else {})


def _tree(fields: Iterable[str]) -> _Tree:
    tree: _Tree = {}
    for field in fields:
        inside = tree
        for name in field.split("."):
            inside = inside.setdefault(name, {})
        inside[_END] = {}
    return tree


def _chosen(metadata: dict[str, Any], fields: _Tree) -> dict[str, Any]:
    """Returns the selected metadata fields, within the objects and arrays that contain them.

    Each name in the metadata is visited once, regardless of the number of selected fields.

    Args:
        metadata: The metadata of a document.
        fields: Tree of the selected names. store/filters/grammar.py defines how names with dots are split.

    """
    chosen: dict[str, Any] = {}
    for name, value in metadata.items():
        inside = _below(fields, name)
        if inside is None:
            continue
        if _END in inside:
            chosen[name] = value
        elif found := [kept for inner in objects_in(value) if (kept := _chosen(inner, inside))]:
            chosen[name] = found if isinstance(value, list) else found[0]
    return chosen


def _below(fields: _Tree, name: str) -> _Tree | None:
    for part in name.split("."):
        if part not in fields:
            return None
        fields = fields[part]
    return fields


def parse_fields(fields: Sequence[str] | None) -> Shown:
    """Parses the names of fields to return. None selects all fields.

    A name is `title`, `text`, `metadata`, or `metadata.NAME`. NAME may contain dots, as in filters. `id` and
    `score` are accepted, and every hit has them.

    Raises:
        Validation: A field is unknown, or the fields are too many or too long.

    """
    if fields is None:
        return Shown()
    if len(fields) > MAX_FIELDS:
        raise Validation(f"fields has {len(fields)} entries; at most {MAX_FIELDS} go in one request.")
    for count, what, most in (
        (sum(field.count(".") for field in fields), "names behind dots", MAX_NAMES),
        (sum(map(len, fields)), "characters", MAX_CHARACTERS),
    ):
        if count > most:
            raise Validation(
                f"fields has {count:,} {what}; at most {most:,} go in one request. Ask for fewer fields, or "
                "for the object around them."
            )
    named = []
    fields = [field for field in fields if field not in ALWAYS]
    for field in fields:
        first, *names = field.split(".")
        nothing = first not in COLUMNS or (names and first != METADATA) or "" in names
        if nothing or len(names) > MAX_FIELD_PARTS:
            raise Validation(
                f"fields: {field[:80]!r} is nothing that a hit has. There are title, text, metadata, and one "
                "value of the metadata such as metadata.topic; id and score always come."
            )
        if names:
            named.append(".".join(names))
    columns = tuple(column for column in COLUMNS if column in fields or (column == METADATA and named))
    return Shown(columns, _tree(named) if named and METADATA not in fields else None)


def parse_facets(facets: Sequence[str] | None) -> list[str]:
    """Parses the names of fields to count. Returns the fields as in filters, without `metadata.`.

    Raises:
        Validation: A name is not a field of the metadata, or the names are too many or too long.

    """
    given = facets or ()
    if len(given) > MAX_FACETS:
        raise Validation(f"facets has {len(given)} fields; at most {MAX_FACETS} are counted in one request.")
    names = [*dict.fromkeys(given)]
    for name in names:
        first, _, field = name.partition(".")
        if first != METADATA or not field:
            raise Validation(
                f"facets: {name[:80]!r} cannot be counted. Name one value of the metadata, such as "
                "metadata.topic."
            )
        if len(name) > MAX_FACET_CHARACTERS:
            raise Validation(f"facets: {name[:80]!r} has more than {MAX_FACET_CHARACTERS} characters.")
        try:
            check_field(field)
        except FilterError as error:
            raise Validation(f"facets: {error}") from error
    return [name.partition(".")[2] for name in names]


def show_facets(page: Page) -> dict[str, Any]:
    """Returns the facets of a page as JSON."""
    return {f"{METADATA}.{field}": _show_facet(facet) for field, facet in (page.facets or {}).items()}


def _show_facet(facet: Facet) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    if facet.values or not facet.ranges:
        shown["values"] = [{"value": value, "count": count} for value, count in facet.values]
    if facet.ranges:
        shown["ranges"] = [
            {"from": first} | ({} if last is None else {"to": last}) | {"count": count}
            for first, last, count in facet.ranges
        ]
    return shown | {"other": facet.other, "missing": facet.missing}


async def find_facet_warnings(
    request: Request, runtime: Runtime, facets: Sequence[str], pages: Sequence[Page], collection: str
) -> list[str]:
    """Returns sentences about facets that no document has. Keys with a filter get none."""
    if find_tenant(request):
        return []
    counted = [page.facets for page in pages if page.facets is not None]
    suspect = {
        field
        for field in facets
        if counted and not any(field in found and _has_field(found[field]) for found in counted)
    }
    if not suspect:
        return []
    sample = await runtime.corpus.store.field_sample(collection)
    return [each for field in sorted(suspect) for each in explain({field: {"$exists": True}}, sample)]


def _has_field(facet: Facet) -> bool:
    return bool(facet.values or facet.ranges or facet.other)


def parse_where(request: Request, runtime: Runtime, filter: object) -> Predicate | None:
    """Parses the filter of a request into a SQL condition, and adds the filter of the key's scope.

    Returns None if there is no filter.

    Raises:
        Validation: The filter is invalid.

    """
    where = None
    if filter is not None:
        try:
            parsed = parse_filter(filter) if isinstance(filter, str) else filter
            where = runtime.corpus.store.filter(parsed)
        except FilterError as error:
            raise Validation(f"filter: {error}") from error
    return both(find_bounds(request, runtime), where)


async def find_warnings(
    request: Request, runtime: Runtime, filter: object, collection: str
) -> dict[str, list[str]]:
    """Returns the field `warnings` for an answer without hits, or no field if no mistake was found.

    A warning may name fields and values of any document, so keys with a filter get none.
    """
    if find_tenant(request):
        return {}
    parsed = parse_filter(filter) if isinstance(filter, str) else filter
    if not isinstance(parsed, dict) or not parsed:
        return {}
    found = explain(parsed, await runtime.corpus.store.field_sample(collection))
    return {"warnings": found} if found else {}


class Options(BaseModel):
    """The search options that `GET /search` and `POST /search` share."""

    k: int = Field(10, ge=1, le=MAX_K)
    offset: int = Field(0, ge=0, le=MAX_OFFSET, description="Hits to leave out before the first")
    mode: Mode | None = Field(
        None, description="Absent: SIMILE_SEARCH_MODE, else what the version learned, else hybrid"
    )
    min_score: Annotated[float, Field(allow_inf_nan=False)] | None = Field(
        None, description="With mode dense only"
    )
    prompt_name: str | None = None
    facet_values: int = Field(
        10, ge=1, le=100, description="Values, or ranges, that a facet lists; the others are counted together"
    )
    rerank_k: int = Field(
        RERANKED, ge=1, le=MAX_RERANK_K, description="Best hits that the reranker orders again"
    )
    user: User | None = Field(None, description=f"{USER}. Events of this search inherit it if they name none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A parsed search request. `search` completes it with the defaults of a model version.

    Args:
        queries: Texts, vectors, or ids of stored documents.
        options: The options as sent. `search` chooses the mode if none was sent.
        passages: Whether to compare queries with all passages, or only with the head of each document.
        filter: The filter as sent.
        where: The parsed filter, with that of the key's scope.
        bounds: The filter of the key's scope alone.
        shown: The fields of a hit to return.
        collection: The collection to search.
        version: The version that must answer. None means the active version.
        explain: Whether hits have features, contributions and an explanation.
        highlight: Whether hits have highlights and a snippet.
        rerank: Whether the reranker orders the best hits. None means the default of the collection.
        typos: Whether typos are corrected. None means the default of the collection.
        syntax: Whether the texts have phrases, excluded words and words of titles.
        facets: The metadata fields whose values are counted.
        several: Whether the answer has one list of hits per query, or only the hits of a single query.
        vectors_version: The version that computed the vectors in `queries`, according to the client.

    """

    queries: list[Query]
    options: Options
    passages: bool
    filter: object
    where: Predicate | None
    bounds: Predicate | None
    shown: Shown
    collection: str
    version: str | None
    explain: bool = False
    highlight: bool = False
    rerank: bool | None = None
    typos: bool | None = None
    syntax: bool = False
    facets: Sequence[str] = ()
    several: bool = False
    vectors_version: str | None = None

    def search(self, settings: Settings, generation: Generation) -> Search:
        """Returns the search to run on `generation`.

        Raises:
            Validation: The options contradict each other or do not fit the queries.

        """
        options, learned = self.options, generation.manifest.search.get(self.collection)
        of_text = self.queries[0].vector is None and self.queries[0].similar_to is None
        mode = options.mode or self._default(settings, learned, of_text=of_text)
        if not of_text:
            noun = "document" if self.queries[0].vector is None else "vector"
            if mode != "dense":
                raise Validation(f"A {noun} has no words to look for. Use mode dense, or send a text.")
            if options.prompt_name is not None:
                raise Validation("A prompt goes before a text; vectors take none. Leave prompt_name out.")
            if self.rerank:
                raise Validation("The reranker reads the text of a query. Send a text, or leave rerank out.")
            if self.syntax:
                raise Validation("Only texts have syntax. Send a text, or leave syntax out.")
        if options.min_score is not None and mode != "dense":
            raise Validation(f"min_score is a cosine, and the scores of mode {mode} are none. Leave it out.")
        if self.typos and mode == "dense":
            raise Validation("Mode dense looks for no words, so it corrects none. Leave typos out.")
        if not self.passages and mode == "lexical":
            raise Validation(
                "Mode lexical looks for words in whole texts, not in passages. Leave passages out."
            )
        if options.prompt_name is not None and mode == "lexical":
            raise Validation("A prompt is for the model, and mode lexical asks none. Leave prompt_name out.")
        return Search(
            collection=self.collection,
            k=options.k,
            offset=options.offset,
            mode=mode,
            weight=get_weight(learned),
            unrelated=generation.encoder.unrelated,
            where=self.where,
            bounds=self.bounds,
            min_score=options.min_score,
            passages=self.passages,
            max_bytes=settings.max_answer_bytes,
            columns=self.shown.columns,
            kept=self.version is not None,
            rank_seconds=settings.rank_seconds if settings.ranking else 0.0,
            explain=self.explain,
            highlight=self.highlight,
            rerank_k=options.rerank_k if self._reranks(settings, of_text=of_text) else 0,
            typos=mode != "dense" and self._corrects(settings),
            compares_tokens=compares_tokens(generation, generation.rankings[self.collection]),
            facets=self.facets,
            facet_values=options.facet_values,
            max_faceted=settings.max_faceted,
        )

    def _reranks(self, settings: Settings, *, of_text: bool) -> bool:
        return of_text and (settings.reranks(self.collection) if self.rerank is None else self.rerank)

    def _corrects(self, settings: Settings) -> bool:
        return settings.corrects(self.collection) if self.typos is None else self.typos

    def _default(self, settings: Settings, learned: SearchDefaults | None, *, of_text: bool) -> Mode:
        """Returns the mode of a search whose request does not name a mode.

        This is the mode of the settings, otherwise the learned mode, otherwise hybrid. If that mode does not
        support the other options of the request, the mode is dense.
        """
        mode = settings.search_mode or get_mode(learned)
        of_vectors = self.options.prompt_name is not None or not self.passages
        dense = not of_text or self.options.min_score is not None or (mode == "lexical" and of_vectors)
        return "dense" if dense else mode


def parse_query(q: str | None, id: str | None) -> Query:
    """Returns the query of `GET /search`, which is a text or the id of a stored document.

    Raises:
        Empty: The text or the id is empty.
        Validation: Both are given, or neither.

    """
    if (q is None) == (id is None):
        raise Validation("Give q, a text to look for, or id, a document whose like to look for; not both.")
    if id is None:
        if q is None or not q or q.isspace():
            raise Empty("q is empty, or white space only. Give a text to look for.", param="q")
        return Query(q)
    return Query(similar_to=given_id(id, "id"))


def parse_queries(given: Sequence[Any], limit: int) -> list[Query]:
    """Parses queries of one kind: texts, vectors, or objects `{"id": …}`.

    `embed_queries` checks the vectors later.

    Raises:
        Empty: The list of queries is empty, or a query is empty.
        Validation: The queries are of different kinds, of an unknown kind, or too many.

    """
    check_count(given, limit, "queries")
    if isinstance(given[0], list):
        return [Query(vector=vector) for vector in given]
    if isinstance(given[0], dict):
        return [Query(similar_to=_get_id(query, at)) for at, query in enumerate(given)]
    return [Query(text) for text in parse_texts(given, limit, "queries")]


def check_characters(queries: Sequence[Query], limit: int, *, several: bool) -> None:
    """Rejects queries that are too long, before anything is computed for them.

    `several`: messages say which query they are about.

    Raises:
        Validation: A query has more than `limit` characters, or all queries together have more than
            `TOGETHER` times `limit`.

    """
    for at, query in enumerate(queries):
        if len(query.text) > limit:
            raise Validation(
                f"{f'Query {at}' if several else 'The query'} has {len(query.text)} characters; at most "
                f"{limit} (SIMILE_MAX_QUERY_CHARACTERS) are looked for. Shorten it, or look for a stored "
                "document by its id."
            )
    together = sum(len(query.text) for query in queries)
    if together > TOGETHER * limit:
        raise Validation(
            f"The queries have {together} characters together; at most {TOGETHER * limit} ({TOGETHER} times "
            "SIMILE_MAX_QUERY_CHARACTERS) go in one request. Send fewer at once."
        )


def parse_conditions(queries: Sequence[Query], *, several: bool) -> list[Query]:
    """Parses the syntax of text queries. `several`: messages say which query they are about.

    Raises:
        Validation: A query breaks the syntax.

    """
    found = []
    for at, query in enumerate(queries):
        try:
            text, conditions = parse_syntax(query.text)
        except SyntaxProblem as problem:
            raise Validation(f"Query {at}: {problem}" if several else str(problem)) from problem
        found.append(query._replace(text=text, conditions=conditions, typed=query.text))
    return found


def average_conditions(queries: Sequence[Query]) -> int:
    """Returns how many conditions a query has on average, rounded up."""
    return ceil(sum(len(query.conditions) for query in queries) / len(queries))


def _get_id(query: object, at: int) -> str:
    id = number_as_text(query["id"]) if isinstance(query, dict) and [*query] == ["id"] else None
    if not isinstance(id, str):
        raise Validation(f'queries[{at}] must be {{"id": "…"}} and nothing else, as its kind is.')
    return given_id(id, f"queries[{at}].id")


def given_id(id: str, name: str) -> str:
    if not id:
        raise Empty(f"{name} is empty.", param=name)
    return id


async def embed_queries(
    runtime: Runtime, generation: Generation, mode: Mode, plan: Plan, lane: Lane = Lane.INTERACTIVE
) -> tuple[list[Query], Answer, dict[str, Any]]:
    """Embeds text queries if the mode needs vectors, and checks vector queries.

    The query encoder of a pair was trained only with the search prompt. With any other prompt, the document
    encoder embeds the queries.

    Queries that were sent as another text have the vectors of both texts.

    Returns:
        The queries with vectors, the batcher's answer, and fields to add to the HTTP answer.

    Raises:
        Validation: A vector cannot be compared, the request has vectors but no `model`, or a prompt is
            unknown.
        Conflict: The vectors are of another version than `generation`.

    """
    queries, none = plan.queries, Answer(np.empty((0, 0), np.float32), [], [], Timing(0.0, 0.0, 0.0), [])
    if queries[0].vector is not None:
        vectors = parse_vectors([query.vector for query in queries], plan.vectors_version, generation)
        return [Query(vector=vector) for vector in vectors], none, {}
    if mode == "lexical" or queries[0].similar_to is not None:
        return queries, none, {}
    encoder, manifest = generation.encoder, generation.manifest
    name = plan.options.prompt_name
    prompt = manifest.search_prompt if name is None else get_prompt(name, manifest)
    if prompt == manifest.search_prompt:
        encoder = encoder.for_queries
    typed = [at for at, query in enumerate(queries) if query.typed]
    texts = [*(query.text for query in queries), *(queries[at].typed for at in typed)]
    answer = await runtime.batcher.embed(encoder, [prompt + text for text in texts], lane=lane)
    vectors, count = answer.vectors, len(queries)
    embedded = [query._replace(vector=vector) for query, vector in zip(queries, vectors, strict=False)]
    for at, vector in zip(typed, vectors[count:], strict=True):
        embedded[at] = embedded[at]._replace(typed_vector=vector)
    answer = answer._replace(truncated=answer.truncated[:count], unknown=answer.unknown[:count])
    notes = {} if encoder is generation.encoder else {"query_encoder": encoder.manifest.version}
    return embedded, answer, notes


def parse_vectors(queries: list[Any], model: str | None, generation: Generation) -> NDArray[np.float32]:
    """Returns the query vectors scaled to length 1, shape (n, dimension).

    Raises:
        Validation: The request has no `model`, or a vector has the wrong length, is not finite, or is zero.
        Conflict: The vectors are of another version than `generation`.

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
        if not isinstance(query, list) or len(query) != dimension or {*map(type, query)} - {int, float}:
            raise Validation(
                f"queries[{at}] must be a list of {dimension} numbers, as the first one is a vector."
            )
    # Numbers beyond float32 become infinite here and are rejected below.
    with np.errstate(over="ignore"):
        vectors = np.array(queries, dtype=np.float64).astype(np.float32)
    if not np.isfinite(vectors).all() or not vectors.any(axis=1).all():
        raise Validation("queries: a vector must be finite and not all zeros.")
    # By the largest value first: squares of large numbers would overflow.
    return unit(vectors / np.abs(vectors).max(axis=1, keepdims=True))

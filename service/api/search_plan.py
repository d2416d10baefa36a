"""Parses search requests: queries, filters, options, and the parts of a hit to show. Start at `Plan`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from models.manifest import Mode, SearchDefaults
from models.search.fusion import get_weight
from service.active import Generation
from service.api.embedding import VERSION_HEADER, check_count, get_prompt, parse_texts, unit
from service.api.openapi import MAX_K, MAX_OFFSET, USER, User
from service.batching.request import Answer, Timing
from service.corpus.search import Hit, Query, Search
from service.errors import Conflict, Empty, Validation
from service.runtime.runtime import Runtime
from service.settings import Settings
from service.store.filters.explain import explain
from service.store.filters.grammar import MAX_FIELD_PARTS, FilterError, Predicate, objects_in, parse_filter
from service.store.scheduling import pause
from service.store.values import COLUMNS, Column

TOGETHER = 100  # Limit of all queries together, as a multiple of the limit of one query.


MAX_FIELDS = 100
MAX_NAMES = 1024  # of all fields together, between their dots
MAX_CHARACTERS = 65_536  # of all fields together
METADATA = "metadata"

_Tree: TypeAlias = dict[str | None, "_Tree"]  # nested names of fields
_END = None  # stands below the last name of a field


@dataclass(frozen=True, slots=True)
class Shown:
    """The parts of a hit to show, in addition to its id and its score."""

    columns: tuple[Column, ...] = COLUMNS
    fields: _Tree | None = None  # fields of the metadata, None for all

    def of(self, hit: Hit) -> list[bytes]:
        """Returns a hit as parts of JSON. Runs on the reading thread."""
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
        parts.append(b"}")
        return parts


def _tree(fields: Iterable[str]) -> _Tree:
    tree: _Tree = {}
    for field in fields:
        inside = tree
        for name in field.split("."):
            inside = inside.setdefault(name, {})
        inside[_END] = {}
    return tree


def _chosen(metadata: dict[str, Any], fields: _Tree) -> dict[str, Any]:
    """Returns the values of fields (store/filters/grammar.py), inside the objects and arrays around them.

    Visits each name once, regardless of the number of fields.
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
    """Parses `title`, `text`, `metadata`, or `metadata.NAME`, with dots as in filters. None means all parts.

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


def parse_where(runtime: Runtime, filter: object) -> Predicate | None:
    """Returns a filter as SQL, or None without a filter."""
    if filter is None:
        return None
    try:
        parsed = parse_filter(filter) if isinstance(filter, str) else filter
        return runtime.corpus.store.filter(parsed)
    except FilterError as error:
        raise Validation(f"filter: {error}") from error


async def find_warnings(runtime: Runtime, filter: object, collection: str) -> dict[str, list[str]]:
    """Returns the `warnings` of an answer without a match for `filter`, if any."""
    parsed = parse_filter(filter) if isinstance(filter, str) else filter
    if not isinstance(parsed, dict) or not parsed:
        return {}
    found = explain(parsed, await runtime.corpus.store.field_sample(collection))
    return {"warnings": found} if found else {}


class Options(BaseModel):
    """Options that `GET /search` and `POST /search` share."""

    k: int = Field(10, ge=1, le=MAX_K)
    offset: int = Field(0, ge=0, le=MAX_OFFSET, description="Hits to leave out before the first")
    mode: Mode | None = Field(
        None, description="Absent: SIMILE_SEARCH_MODE, else what the version learned, else dense"
    )
    min_score: Annotated[float, Field(allow_inf_nan=False)] | None = Field(
        None, description="With mode dense only"
    )
    prompt_name: str | None = None
    user: User | None = Field(None, description=f"{USER}. Events of this search inherit it if they name none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A search, before a version answers it.

    Args:
        queries: Texts, vectors, or documents to find similar ones to.
        options: The options as sent. The version's learned defaults replace missing ones.
        passages: Compare with passages, not only with the head of each document.
        filter: The filter as sent.
        where: The parsed filter.
        shown: The parts of a hit to show.
        collection: The collection to search.
        version: The version that must answer. None: the active version.
        several: The answer has a list of hits for each query. Otherwise it has the hits of the only query.
        vectors_version: The version that made the vectors among the queries.

    """

    queries: list[Query]
    options: Options
    passages: bool
    filter: object
    where: Predicate | None
    shown: Shown
    collection: str
    version: str | None
    several: bool = False
    vectors_version: str | None = None

    def search(self, settings: Settings, generation: Generation) -> Search:
        """Returns the search of this plan by a generation.

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
        if options.min_score is not None and mode != "dense":
            raise Validation(f"min_score is a cosine, and the scores of mode {mode} are none. Leave it out.")
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
            where=self.where,
            min_score=options.min_score,
            passages=self.passages,
            max_bytes=settings.max_answer_bytes,
            columns=self.shown.columns,
            kept=self.version is not None,
        )

    def _default(self, settings: Settings, learned: SearchDefaults | None, *, of_text: bool) -> Mode:
        """Returns the mode of a request that names none: the operator's, else the learned mode, else dense.

        If that mode does not support the request, the mode is also dense.
        """
        mode = settings.search_mode or (learned.mode if learned else "dense")
        of_vectors = self.options.prompt_name is not None or not self.passages
        dense = not of_text or self.options.min_score is not None or (mode == "lexical" and of_vectors)
        return "dense" if dense else mode


def parse_query(q: str | None, id: str | None) -> Query:
    """Returns the query of `GET /search`: a text, or a document by its id."""
    if (q is None) == (id is None):
        raise Validation("Give q, a text to look for, or id, a document whose like to look for; not both.")
    if id is None:
        if q is None or not q or q.isspace():
            raise Empty("q is empty, or white space only. Give a text to look for.", param="q")
        return Query(q)
    return Query(similar_to=given_id(id, "id"))


def parse_queries(given: Sequence[Any], limit: int) -> list[Query]:
    """Returns texts, vectors or `{"id": …}`, all of one kind. `embed_queries` checks the vectors.

    Raises:
        Empty: No query, or an empty one.
        Validation: A mixture, something else, or too many.

    """
    check_count(given, limit, "queries")
    if isinstance(given[0], list):
        return [Query(vector=vector) for vector in given]
    if isinstance(given[0], dict):
        return [Query(similar_to=_get_id(query, at)) for at, query in enumerate(given)]
    return [Query(text) for text in parse_texts(given, limit, "queries")]


def check_characters(queries: Sequence[Query], limit: int) -> None:
    """Rejects long queries before anything is computed for them.

    Raises:
        Validation: A query has more than `limit` characters, or all together have `TOGETHER` times as many.

    """
    for at, query in enumerate(queries):
        if len(query.text) > limit:
            raise Validation(
                f"Query {at} has {len(query.text)} characters; at most {limit} (SIMILE_MAX_QUERY_CHARACTERS) "
                "are looked for. Shorten it, or look for a stored document by its id."
            )
    together = sum(len(query.text) for query in queries)
    if together > TOGETHER * limit:
        raise Validation(
            f"The queries have {together} characters together; at most {TOGETHER * limit} ({TOGETHER} times "
            "SIMILE_MAX_QUERY_CHARACTERS) go in one request. Send fewer at once."
        )


def _get_id(query: object, at: int) -> str:
    if not isinstance(query, dict) or [*query] != ["id"] or not isinstance(query["id"], str):
        raise Validation(f'queries[{at}] must be {{"id": "…"}} and nothing else, as its kind is.')
    return given_id(query["id"], f"queries[{at}].id")


def given_id(id: str, name: str) -> str:
    if not id:
        raise Empty(f"{name} is empty.", param=name)
    return id


async def embed_queries(
    runtime: Runtime, generation: Generation, mode: Mode, plan: Plan
) -> tuple[list[Query], Answer, dict[str, Any]]:
    """Returns the queries with the vectors that the mode needs, the batcher's answer, and fields of the
    answer.

    The query encoder of a pair has learned the search prompt only. The encoder of documents therefore encodes
    queries with another prompt.

    Raises:
        Validation: A vector cannot be compared or has no `model`, or a prompt is unknown.
        Conflict: The vectors are of another version than the answering version.

    """
    queries, none = plan.queries, Answer(np.empty((0, 0), np.float32), [], [], Timing(0.0, 0.0, 0.0))
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
    answer = await runtime.batcher.embed(encoder, [prompt + query.text for query in queries])
    embedded = zip(queries, answer.vectors, strict=True)
    notes = {} if encoder is generation.encoder else {"query_encoder": encoder.manifest.version}
    return [query._replace(vector=vector) for query, vector in embedded], answer, notes


def parse_vectors(queries: list[Any], model: str | None, generation: Generation) -> NDArray[np.float32]:
    """Returns vector queries, shape (n, dimension), scaled to length 1.

    Raises:
        Validation: No model is named, or a vector has a wrong length, is not finite, or is zero.
        Conflict: Another version made them.

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

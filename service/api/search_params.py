"""Parameters of a search: queries as texts, vectors or ids, options, and the parts of a hit to show."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from service.api.inference import VERSION_HEADER, check_count, texts_of, unit, with_prompt
from service.api.responses import in_chunks, json_array
from service.batching.request import Answer, Timing
from service.corpus.search import Hit, Mode, Query, Search
from service.errors import Conflict, Empty, Validation
from service.live import Generation
from service.runtime.runtime import Runtime
from service.settings import Settings
from service.store.filters.grammar import FilterError, parse_filter
from service.store.filters.predicate import Predicate
from service.store.turns import pause
from service.store.values import Record

MAX_K = 1000
MAX_OFFSET = 10_000
MAX_FIELDS = 100
TOGETHER = 100  # times as many characters as one query may have, for the queries of a request
METADATA = "metadata"


def where_of(runtime: Runtime, filter: object) -> Predicate | None:
    """A filter as SQL, None for none."""
    if filter is None:
        return None
    try:
        parsed = parse_filter(filter) if isinstance(filter, str) else filter
        return runtime.corpus.store.filter(parsed)
    except FilterError as error:
        raise Validation(f"filter: {error}") from error


class Options(BaseModel):
    """Options that `GET /search` and `POST /search` share."""

    k: int = Field(10, ge=1, le=MAX_K)
    offset: int = Field(0, ge=0, le=MAX_OFFSET, description="Hits to leave out before the first")
    mode: Mode | None = Field(None, description="Absent: SIMILE_SEARCH_MODE, which is dense unless set")
    min_score: Annotated[float, Field(allow_inf_nan=False)] | None = Field(
        None, description="With mode dense only"
    )
    prompt_name: str | None = None

    def settle(self, default: Mode, *, of_words: bool, passages: bool) -> None:
        """Take the service's mode where none is named, or dense where that mode cannot do what is asked.

        Raises:
            Validation: options contradict each other.

        """
        if self.mode is None:
            dense = not of_words or self.min_score is not None
            of_vectors = self.prompt_name is not None or not passages
            self.mode = "dense" if dense or (default == "lexical" and of_vectors) else default
        if self.min_score is not None and self.mode != "dense":
            raise Validation(
                f"min_score is a cosine, and the scores of mode {self.mode} are none. Leave it out."
            )
        if not passages and self.mode == "lexical":
            raise Validation(
                "Mode lexical looks for words in whole texts, not in passages. Leave passages out."
            )
        if self.prompt_name is not None and self.mode == "lexical":
            raise Validation("A prompt is for the model, and mode lexical asks none. Leave prompt_name out.")

    def search(
        self, settings: Settings, collection: str, where: Predicate | None, shown: "Shown", *, passages: bool
    ) -> Search:
        """The search that these options describe."""
        return Search(
            collection=collection,
            k=self.k,
            offset=self.offset,
            mode=self.mode or "dense",  # `settle` was there before
            where=where,
            min_score=self.min_score,
            passages=passages,
            max_bytes=settings.max_answer_bytes,
            with_text=shown.text,
            with_metadata=shown.metadata,
        )


@dataclass(frozen=True, slots=True)
class Shown:
    """Parts of a hit that are shown beside its id and its score."""

    text: bool = True
    metadata: bool = True
    paths: tuple[tuple[str, ...], ...] = ()  # of the metadata these alone, when there are any

    def one_list(self, found: Sequence[Sequence[Hit]]) -> list[bytes]:
        """The hits of the one query as chunks of JSON; for a reading thread."""
        [hits] = found
        return in_chunks(json_array(map(self.of, hits)))

    def lists(self, found: Sequence[Sequence[Hit]]) -> list[bytes]:
        """The hits of each query as chunks of JSON; for a reading thread."""
        return in_chunks(json_array(json_array(map(self.of, hits)) for hits in found))

    def of(self, hit: Hit) -> list[bytes]:
        """A hit as parts of JSON."""
        pause()
        head = {"id": hit.document.id, "score": hit.score}
        parts = [orjson.dumps(head, option=orjson.OPT_SERIALIZE_NUMPY)[:-1]]
        if self.text:
            parts += b',"text":', hit.document.text_json
        if self.metadata:
            chosen = self._chosen(hit.document) if self.paths else hit.document.metadata_json
            parts += b',"metadata":', chosen
        if hit.passage is not None:
            start, end = hit.passage
            parts.append(b',"passage":{"start":%d,"end":%d}' % (start, end))
        parts.append(b"}")
        return parts

    def _chosen(self, document: Record) -> bytes:
        metadata = document.metadata
        chosen: dict[str, Any] = {}
        for *outer, last in self.paths:
            source, target = metadata, chosen
            for name in outer:
                source = source.get(name, {}) if isinstance(source, dict) else {}
            if not isinstance(source, dict) or last not in source:
                continue
            for name in outer:
                target = target.setdefault(name, {})
            target[last] = source[last]
        return orjson.dumps(chosen)


def shown_of(fields: Sequence[str] | None) -> Shown:
    """`text`, `metadata`, or `metadata.NAME`, where dots lead into objects; None is all there is.

    Raises:
        Validation: something else, or too many.

    """
    if fields is None:
        return Shown()
    if len(fields) > MAX_FIELDS:
        raise Validation(f"fields has {len(fields)} entries; at most {MAX_FIELDS} go in one request.")
    paths = []
    for field in fields:
        first, *names = field.split(".")
        if (first, bool(names)) not in {("text", False), (METADATA, False), (METADATA, True)} or "" in names:
            raise Validation(
                f"fields: {field[:80]!r} is nothing that a hit has. There are text, metadata, and one "
                "value of the metadata such as metadata.topic; id and score always come."
            )
        if names:
            paths.append(tuple(names))
    whole = METADATA in fields
    return Shown("text" in fields, whole or bool(paths), () if whole else tuple(paths))


def query_of(q: str | None, id: str | None, asked: Options) -> Query:
    """The one query of `GET /search`: a text, or a document by its id."""
    if (q is None) == (id is None):
        raise Validation("Give q, a text to look for, or id, a document whose like to look for; not both.")
    if id is None:
        if q is None or not q or q.isspace():
            raise Empty("q is empty, or white space only. Give a text to look for.", param="q")
        return Query(q)
    check_kind("document", asked)
    return Query(similar_to=given_id(id, "id"))


def queries_of(given: Sequence[Any], limit: int, asked: Options) -> list[Query]:
    """Texts, vectors or `{"id": …}`, all of one kind; `answered` looks into the vectors.

    Raises:
        Empty: no query, or an empty one.
        Validation: a mixture, something else, too many, or a kind that the mode cannot do with.

    """
    check_count(given, limit, "queries")
    if isinstance(given[0], list):
        check_kind("vector", asked)
        return [Query(vector=vector) for vector in given]
    if isinstance(given[0], dict):
        check_kind("document", asked)
        return [Query(similar_to=_id_of(query, at)) for at, query in enumerate(given)]
    return [Query(text) for text in texts_of(given, limit, "queries")]


def check_characters(queries: Sequence[Query], limit: int) -> None:
    """Refuse long queries before anything is computed for them.

    Raises:
        Validation: one has more than `limit` characters, or all together have `TOGETHER` times as many.

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


def _id_of(query: object, at: int) -> str:
    if not isinstance(query, dict) or [*query] != ["id"] or not isinstance(query["id"], str):
        raise Validation(f'queries[{at}] must be {{"id": "…"}} and nothing else, as its kind is.')
    return given_id(query["id"], f"queries[{at}].id")


def given_id(id: str, name: str) -> str:
    if not id:
        raise Empty(f"{name} is empty.", param=name)
    return id


def check_kind(noun: str, asked: Options) -> None:
    """Refuse for a query without words what needs words."""
    if asked.mode != "dense":
        raise Validation(f"A {noun} has no words to look for. Use mode dense, or send a text.")
    if asked.prompt_name is not None:
        raise Validation("A prompt goes before a text; vectors take none. Leave prompt_name out.")


async def answered(
    runtime: Runtime, generation: Generation, queries: list[Query], asked: Options, model: str | None
) -> tuple[list[Query], Answer]:
    """`queries` with the vectors that the mode needs, and what the batcher says of them.

    model: the version that made the vectors among them.

    Raises:
        Validation: a vector that cannot be compared, or no `model` for it; an unknown prompt.
        Conflict: vectors of another version than the one that answers.

    """
    none = Answer(np.empty((0, 0), np.float32), [], [], Timing(0.0, 0.0, 0.0))
    if queries[0].vector is not None:
        vectors = vectors_of([query.vector for query in queries], model, generation)
        return [Query(vector=vector) for vector in vectors], none
    if asked.mode == "lexical" or queries[0].similar_to is not None:
        return queries, none
    texts: Any = [query.text for query in queries]
    manifest = generation.encoder.manifest
    if asked.prompt_name is None:
        texts = [manifest.search_prompt + text for text in texts]
    else:
        texts = with_prompt(texts, asked.prompt_name, manifest.prompts)
    answer = await runtime.batcher.embed(generation.encoder, texts)
    embedded = zip(queries, answer.vectors, strict=True)
    return [query._replace(vector=vector) for query, vector in embedded], answer


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

"""Parameters of a search: queries as texts, vectors or ids, options, and the parts of a hit to show."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from models.manifest import Mode, SearchDefaults
from models.search.fusion import weight_of
from service.api.embedding import VERSION_HEADER, check_count, get_prompt, parse_texts, unit
from service.api.openapi import MAX_K, MAX_OFFSET, USER, User
from service.api.search_hits import Shown
from service.batching.request import Answer, Timing
from service.corpus.search import Query, Search
from service.errors import Conflict, Empty, Validation
from service.live import Generation
from service.runtime.runtime import Runtime
from service.settings import Settings
from service.store.filters.explain import explain
from service.store.filters.grammar import FilterError, parse_filter
from service.store.filters.predicate import Predicate

TOGETHER = 100  # times as many characters as one query may have, for the queries of a request


def parse_where(runtime: Runtime, filter: object) -> Predicate | None:
    """A filter as SQL, None for none."""
    if filter is None:
        return None
    try:
        parsed = parse_filter(filter) if isinstance(filter, str) else filter
        return runtime.corpus.store.filter(parsed)
    except FilterError as error:
        raise Validation(f"filter: {error}") from error


async def find_warnings(runtime: Runtime, filter: object, collection: str) -> dict[str, list[str]]:
    """Returns the `warnings` of an answer in which nothing passed `filter`, if there are any."""
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
        None,
        description="Absent: SIMILE_SEARCH_MODE, else what the version learned, else dense",
    )
    min_score: Annotated[float, Field(allow_inf_nan=False)] | None = Field(
        None, description="With mode dense only"
    )
    prompt_name: str | None = None
    user: User | None = Field(None, description=f"{USER}. Events of this search inherit it if they name none")

    def search(
        self,
        settings: Settings,
        generation: Generation,
        collection: str,
        where: Predicate | None,
        shown: Shown,
        queries: Sequence[Query],
        *,
        passages: bool,
    ) -> Search:
        """The search that these options describe; what they leave open, `generation` has learned.

        Raises:
            Validation: options contradict each other, or the kind of the queries.

        """
        learned = generation.manifest.search.get(collection)
        of_words = not queries or (queries[0].vector is None and queries[0].similar_to is None)
        mode = self.mode or self._default(settings, learned, of_words=of_words, passages=passages)
        if not of_words:
            self._check_without_words("document" if queries[0].vector is None else "vector", mode)
        if self.min_score is not None and mode != "dense":
            raise Validation(f"min_score is a cosine, and the scores of mode {mode} are none. Leave it out.")
        if not passages and mode == "lexical":
            raise Validation(
                "Mode lexical looks for words in whole texts, not in passages. Leave passages out."
            )
        if self.prompt_name is not None and mode == "lexical":
            raise Validation("A prompt is for the model, and mode lexical asks none. Leave prompt_name out.")
        return Search(
            collection=collection,
            k=self.k,
            offset=self.offset,
            mode=mode,
            weight=weight_of(learned),
            where=where,
            min_score=self.min_score,
            passages=passages,
            max_bytes=settings.max_answer_bytes,
            columns=shown.columns,
        )

    def _default(
        self, settings: Settings, learned: SearchDefaults | None, *, of_words: bool, passages: bool
    ) -> Mode:
        """The mode where none is named: the operator's, else the learned one, else dense.

        Dense, too, where that mode cannot do what is asked.
        """
        wanted = settings.search_mode or (learned.mode if learned else "dense")
        of_vectors = self.prompt_name is not None or not passages
        dense = not of_words or self.min_score is not None or (wanted == "lexical" and of_vectors)
        return "dense" if dense else wanted

    def _check_without_words(self, noun: str, mode: Mode) -> None:
        """Refuse for a query without words what needs words."""
        if mode != "dense":
            raise Validation(f"A {noun} has no words to look for. Use mode dense, or send a text.")
        if self.prompt_name is not None:
            raise Validation("A prompt goes before a text; vectors take none. Leave prompt_name out.")


def query_of(q: str | None, id: str | None) -> Query:
    """The one query of `GET /search`: a text, or a document by its id."""
    if (q is None) == (id is None):
        raise Validation("Give q, a text to look for, or id, a document whose like to look for; not both.")
    if id is None:
        if q is None or not q or q.isspace():
            raise Empty("q is empty, or white space only. Give a text to look for.", param="q")
        return Query(q)
    return Query(similar_to=given_id(id, "id"))


def queries_of(given: Sequence[Any], limit: int) -> list[Query]:
    """Texts, vectors or `{"id": …}`, all of one kind; `answered` looks into the vectors.

    Raises:
        Empty: no query, or an empty one.
        Validation: a mixture, something else, or too many.

    """
    check_count(given, limit, "queries")
    if isinstance(given[0], list):
        return [Query(vector=vector) for vector in given]
    if isinstance(given[0], dict):
        return [Query(similar_to=_id_of(query, at)) for at, query in enumerate(given)]
    return [Query(text) for text in parse_texts(given, limit, "queries")]


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


async def answered(
    runtime: Runtime,
    generation: Generation,
    queries: list[Query],
    asked: Options,
    mode: Mode,
    model: str | None,
) -> tuple[list[Query], Answer, str | None]:
    """`queries` with the vectors that the mode needs, and what the batcher says of them.

    The third is the version of a pair's query encoder, where that encoded them. It has learned the search
    prompt, so a query behind another one is encoded as documents are.

    model: the version that made the vectors among them.

    Raises:
        Validation: a vector that cannot be compared, or no `model` for it; an unknown prompt.
        Conflict: vectors of another version than the one that answers.

    """
    none = Answer(np.empty((0, 0), np.float32), [], [], Timing(0.0, 0.0, 0.0))
    if queries[0].vector is not None:
        vectors = vectors_of([query.vector for query in queries], model, generation)
        return [Query(vector=vector) for vector in vectors], none, None
    if mode == "lexical" or queries[0].similar_to is not None:
        return queries, none, None
    encoder, manifest = generation.encoder, generation.manifest
    usual = manifest.search_prompt
    prompt = usual if asked.prompt_name is None else get_prompt(asked.prompt_name, manifest)
    if prompt == usual:
        encoder = encoder.for_queries
    answer = await runtime.batcher.embed(encoder, [prompt + query.text for query in queries])
    embedded = zip(queries, answer.vectors, strict=True)
    student = None if encoder is generation.encoder else encoder.manifest.version
    return [query._replace(vector=vector) for query, vector in embedded], answer, student


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

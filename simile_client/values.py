"""The arguments and results of the client's methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class SimileError(Exception):
    """Raised if the service rejected a request, did not answer, or is not Simile.

    Args:
        message: What is wrong and what to do.
        status: HTTP status; None without a response.
        error_type: A name from docs/ERRORS.md.
    """

    def __init__(self, message: str, status: int | None = None, error_type: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.error_type = error_type


@dataclass(frozen=True)
class Document:
    """A document to store. Without an id, the service derives one from title and text."""

    text: str
    id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""  # Embedded and indexed before the text.

    def as_json(self) -> dict[str, Any]:
        named = ({} if self.id is None else {"id": self.id}) | ({"title": self.title} if self.title else {})
        return named | {"text": self.text, "metadata": dict(self.metadata)}


@dataclass(frozen=True)
class DocumentPage:
    """A page of documents. `next` is the `after` of the following page; None on the last page."""

    documents: tuple[Document, ...]
    next: str | None


@dataclass(frozen=True)
class Snippet:
    """A part of a hit's text, with its start and end in characters."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Highlights:
    """Where a hit has the query's terms: starts and ends in the title and in the text, in characters."""

    title: tuple[tuple[int, int], ...]
    text: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Hit:
    """A document that a search found.

    Args:
        score: A cosine, a BM25 score or a fused score. Larger is better.
        passage: Start and end of the best passage of a long text, in characters.
        highlights: With `highlight`: where the hit has the query's terms.
        snippet: With `highlight`: the part of the text to show. None if the text is blank.
        explanation: With `explain`: `terms`, each with its origin in `from`, and `fusion` (docs/SEARCH.md).
    """

    id: str
    score: float
    text: str
    metadata: Mapping[str, Any]
    passage: tuple[int, int] | None = None
    title: str = ""
    rerank_score: float | None = None  # Of the reranker, if it has scored the hit.
    search_place: int | None = None  # The place before the reranker ordered the hits, from 1.
    highlights: Highlights | None = None
    snippet: Snippet | None = None
    explanation: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Rank:
    """A text that was ranked: its position in the request, its score and the text itself."""

    index: int
    score: float
    text: str


@dataclass(frozen=True)
class SearchAnswer:
    """The result of a search: hits, best first, and the version and mode that were used."""

    hits: tuple[Hit, ...]
    model: str
    mode: str
    search_id: str | None = None  # For `POST /events`; None if the service stores no events.
    query_encoder: str | None = None  # The student that encoded the query, if `model` is a pair.
    warnings: tuple[str, ...] = ()  # Mistakes in a filter, or a stage of the search that failed or was late.
    reranker: str | None = None  # The version that ordered the best hits.
    corrected_query: str | None = None  # The query that was searched, if words were corrected.
    corrections: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # By the word as typed.
    facets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # As the service answers, by field.


@dataclass(frozen=True)
class Suggestion:
    """A completion of what a user types. `kind` is `title`, `term` or `query`."""

    text: str
    kind: str


@dataclass(frozen=True)
class Imported:
    """The result of storing documents: how many were stored, how many were truncated, and their ids.

    `unknown` is the number of newly embedded documents with words that the model does not know.
    """

    upserted: int
    truncated: int
    ids: tuple[str, ...]
    unknown: int = 0


@dataclass(frozen=True)
class Version:
    """A published version.

    `state` is the state in `GET /models`, such as `active`, `refused` or `retired`. `kind` is `encoder` or
    `reranker`, each with an active version of its own. None: the version, or the service, does not tell.
    """

    version: str
    state: str
    scores: Mapping[str, Any]
    kind: str | None = None

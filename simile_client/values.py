"""Values that the client takes and gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class SimileError(Exception):
    """A refusal of the service, or none of its answers; `message` says what to do.

    status: of the HTTP answer, None when there was none. error_type: as docs/ERRORS.md lists them.
    """

    def __init__(self, message: str, status: int | None = None, error_type: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.error_type = error_type


@dataclass(frozen=True)
class Document:
    """A document to store, or a stored one. Without an id it gets one from its text."""

    text: str
    id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""  # embedded and indexed in front of the text

    def as_json(self) -> dict[str, Any]:
        named = ({} if self.id is None else {"id": self.id}) | ({"title": self.title} if self.title else {})
        return named | {"text": self.text, "metadata": dict(self.metadata)}


@dataclass(frozen=True)
class Hit:
    """A document found. `score` is a cosine, a BM25 or a fused score: larger is better.

    passage: the characters of the best part of a long text.
    """

    id: str
    score: float
    text: str
    metadata: Mapping[str, Any]
    passage: tuple[int, int] | None = None
    title: str = ""


@dataclass(frozen=True)
class SearchAnswer:
    """Hits, best first, and the version and the mode that found them."""

    hits: tuple[Hit, ...]
    model: str
    mode: str
    search_id: str | None = None  # for `POST /events`; None where the service keeps no events
    query_encoder: str | None = None  # the student that encoded the query, where `model` is a pair
    warnings: tuple[str, ...] = ()  # what may be wrong with a filter that nothing passed


@dataclass(frozen=True)
class Imported:
    """Stored documents: how many, how many of them were cut, and their ids."""

    upserted: int
    truncated: int
    ids: tuple[str, ...]


@dataclass(frozen=True)
class Version:
    """A published model. state: as `GET /models` has it, such as `active`, `refused` or `retired`."""

    version: str
    state: str
    scores: Mapping[str, Any]

"""Requests to the service's API: their paths and the parsers of responses. clients.py sends the requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote

from simile_client.values import Document, DocumentPage, Highlights, Hit, SearchAnswer, Snippet, Version

T = TypeVar("T")
Mode = Literal["dense", "lexical", "hybrid"]
Event = Literal["click", "open", "convert", "skip"]
Filter = Mapping[str, Any]


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request to the API. `read` parses the JSON of the response."""

    method: str
    path: str
    read: Callable[[Any], T]
    body: Any = None
    params: Mapping[str, Any] | None = None
    version: str | None = None  # The version that answers; None for the active version.


def build_path(collection: str, path: str, id: str | None = None) -> str:
    """Returns the path of a route of a collection. `id` appends the id of a document."""
    path += "" if id is None else f"/{_part(id)}"
    return path if collection == "default" else f"/collections/{_part(collection)}{path}"


def build_synonyms_path(collection: str) -> str:
    return f"/collections/{_part(collection)}/synonyms"


def _part(name: str) -> str:
    """Quotes a name as one segment of a path, so that a name such as `..` cannot change the path."""
    return "%2E" * len(name) if name in {".", ".."} else quote(name, safe="")


def read_document(answer: Any) -> Document:
    return Document(answer["text"], answer["id"], answer["metadata"], answer.get("title", ""))


def read_page(answer: Any) -> DocumentPage:
    return DocumentPage(tuple(map(read_document, answer["documents"])), answer["next"])


def read_versions(answer: Any) -> tuple[Version, ...]:
    return tuple(
        Version(each["version"], each["state"], each["scores"], each.get("kind")) for each in answer["models"]
    )


def read_search(answer: Any) -> SearchAnswer:
    hits = (
        Hit(
            hit["id"],
            hit["score"],
            hit["text"],
            hit["metadata"],
            (hit["passage"]["start"], hit["passage"]["end"]) if "passage" in hit else None,
            hit.get("title", ""),
            hit.get("rerank_score"),
            hit.get("search_place"),
            _read_highlights(hit["highlights"]) if "highlights" in hit else None,
            _read_snippet(hit["snippet"]) if "snippet" in hit else None,
            hit.get("explanation"),
        )
        for hit in answer["hits"]
    )
    own = answer["model"], answer["mode"], answer.get("search_id"), answer.get("query_encoder")
    return SearchAnswer(
        tuple(hits),
        *own,
        tuple(answer.get("warnings", ())),
        answer.get("reranker"),
        answer.get("corrected_query"),
        {each["term"]: tuple(each["to"]) for each in answer.get("corrections", ())},
        answer.get("facets", {}),
    )


def _read_highlights(answer: Any) -> Highlights:
    title, text = ([(start, end) for start, end in answer[name]] for name in ("title", "text"))
    return Highlights(tuple(title), tuple(text))


def _read_snippet(answer: Any) -> Snippet:
    return Snippet(answer["start"], answer["end"], answer["text"])

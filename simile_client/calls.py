"""Builds the requests of the service's API, and parses the responses. clients.py sends the requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote

from simile_client.values import Document, Hit, Imported, SearchAnswer, Version

T = TypeVar("T")
Mode = Literal["dense", "lexical", "hybrid"]
Filter = Mapping[str, Any]


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request of the API, with the function that parses the JSON of the response."""

    method: str
    path: str
    read: Callable[[Any], T]
    body: Any = None
    params: Mapping[str, Any] | None = None
    version: str | None = None  # The version that answers; None for the active version.


def embed(
    texts: Sequence[str], dimensions: int | None, prompt_name: str | None, version: str | None
) -> Call[list[list[float]]]:
    options = {"dimensions": dimensions, "prompt_name": prompt_name}
    body = {"inputs": list(texts)} | {name: value for name, value in options.items() if value is not None}
    return Call("POST", "/embed", list, body, version=version)


def similarity(pairs: Sequence[tuple[str, str]]) -> Call[list[float]]:
    return Call("POST", "/similarity", list, {"pairs": [list(pair) for pair in pairs]})


def search(
    query: str,
    k: int,
    mode: Mode | None,
    filter: Filter | None,
    user: str | None,
    collection: str,
    version: str | None,
) -> Call[SearchAnswer]:
    options = {"mode": mode, "user": user}
    params = {"q": query, "k": k} | {name: value for name, value in options.items() if value is not None}
    if filter is not None:
        params["filter"] = json.dumps(filter)
    return Call("GET", _build_path(collection, "/search"), _answer, params=params, version=version)


def put(documents: Sequence[Document], collection: str) -> Call[Imported]:
    def read(answer: Any) -> Imported:
        ids = answer.get("ids") or [document.id for document in documents]
        return Imported(answer["upserted"], answer["truncated"], tuple(ids))

    body = {"documents": [document.as_json() for document in documents]}
    return Call("POST", _build_path(collection, "/documents"), read, body)


def get(id: str, collection: str) -> Call[Document]:
    def read(answer: Any) -> Document:
        return Document(answer["text"], answer["id"], answer["metadata"], answer.get("title", ""))

    return Call("GET", _build_path(collection, f"/documents/{_part(id)}"), read)


def delete(id: str, collection: str) -> Call[int]:
    path = _build_path(collection, f"/documents/{_part(id)}")
    return Call("DELETE", path, lambda answer: int(answer["deleted"]))


def judge(query: str, id: str, user: str | None, collection: str, *, relevant: bool) -> Call[int]:
    body = {"query": query, "id": id, "relevant": relevant} | ({} if user is None else {"user": user})
    return Call("POST", _build_path(collection, "/feedback"), lambda answer: int(answer["stored"]), body)


def info() -> Call[dict[str, Any]]:
    return Call("GET", "/info", dict)


def versions() -> Call[tuple[Version, ...]]:
    def read(answer: Any) -> tuple[Version, ...]:
        return tuple(Version(each["version"], each["state"], each["scores"]) for each in answer["models"])

    return Call("GET", "/models", read)


def retraining(*, begin: bool) -> Call[dict[str, Any]]:
    return Call("POST" if begin else "GET", "/retraining", dict)


def _build_path(collection: str, path: str) -> str:
    return path if collection == "default" else f"/collections/{_part(collection)}{path}"


def _part(name: str) -> str:
    """Quotes a name as one segment of a path, so that a name such as `..` cannot change the path."""
    return "%2E" * len(name) if name in {".", ".."} else quote(name, safe="")


def _answer(answer: Any) -> SearchAnswer:
    hits = (
        Hit(
            hit["id"],
            hit["score"],
            hit["text"],
            hit["metadata"],
            (hit["passage"]["start"], hit["passage"]["end"]) if "passage" in hit else None,
            hit.get("title", ""),
        )
        for hit in answer["hits"]
    )
    own = answer["model"], answer["mode"], answer.get("search_id"), answer.get("query_encoder")
    return SearchAnswer(tuple(hits), *own, tuple(answer.get("warnings", ())))

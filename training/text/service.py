"""Read documents, feedback and events from a running service, over HTTP in pages.

Functions read the default collection unless the caller names others. ("*",) means all collections. All
functions that send requests raise TrainingError if the service does not answer as expected. Documents in two
collections may have the same id; `qualified` returns a name that is unique over all collections.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from os import environ
from pathlib import Path
from typing import Any, NamedTuple, get_args

import httpx2
import numpy as np
from numpy.typing import NDArray

from models.files.bounded import parse_json
from models.manifest import Mode
from models.progress import Progress
from models.search.content import Content
from models.search.features import FEATURES
from models.search.ranking import MAX_RECALLED
from training.errors import TrainingError

DEFAULT = "default"
ONLY_DEFAULT = (DEFAULT,)
ALL = ("*",)
_PAGE = 1000  # rows, the maximum of the service
MAX_CLICKED = 20_000  # clicked answers of a collection, the maximum of the service
_SEARCHES = 4  # hybrid queries in one request, which every SIMILE_MAX_CANDIDATES allows
_NEAREST = 1000  # hits of a query, as many as hybrid search fuses; every SIMILE_MAX_HITS allows them
_TIMEOUT = 120.0  # seconds
_RERANK_SECONDS = 600.0  # for the scores of a reranker in a collection
_TRIES = 5
_LONGEST_WAIT_SECONDS = 30.0  # before a retry
_BUSY = (429, 503)


def fetch_collections(url: str, requested: Sequence[str] = ONLY_DEFAULT) -> Sequence[str]:
    """Returns the names of the requested collections. Asks the service for all names if `requested` is ALL.

    Raises:
        TrainingError: The service did not answer as expected.

    """
    if tuple(requested) != ALL:
        return requested
    answer = _answer(url, "/collections")
    return [row["name"] for row in _listed(url, answer, "collections", {"name": str})]


def fetch_documents(url: str, collection: str = DEFAULT) -> Iterator[dict[str, Any]]:
    """Yields the documents of a collection in the order of ids. Each document has a string `text`."""
    return _rows(url, collection, "documents", {"text": str})


def fetch_feedback(url: str, collection: str = DEFAULT) -> Iterator[dict[str, Any]]:
    """Yields feedback rows, the oldest first. A row has query, id, relevant, and the name of the key."""
    return _rows(url, collection, "feedback", {"query": str, "id": str, "relevant": bool})


def fetch_events(url: str, collection: str = DEFAULT) -> Iterator[dict[str, Any]]:
    """Yields events of users, the oldest first. The `position` of an event may be None."""
    fields: dict[str, type] = dict.fromkeys(("search_id", "query", "id", "type"), str)
    return _rows(url, collection, "events", {**fields, "shown": list})


class Searches(NamedTuple):
    """The search settings of a service."""

    mode: Mode | None = None  # default mode of searches; None means that of the model version
    passages: bool = True  # splits long documents; False searches only their beginnings


def fetch_searches(url: str) -> Searches:
    """Returns the search settings of the service at `url`."""
    answer = fetch_info(url)
    # Older services do not report passages, and nearly all of them split.
    found = Searches(answer.get("search_mode"), answer.get("passages", True))
    if found.mode not in (None, *get_args(Mode)) or not isinstance(found.passages, bool):
        raise _stranger(url)
    return found


def fetch_info(url: str) -> dict[str, Any]:
    """Returns the response of `GET /info` from the service at `url`."""
    return _answer(url, "/info")


def fetch_explained(
    url: str, collection: str, queries: Sequence[str], hits: int, version: str
) -> Iterator[list[dict[str, Any]]]:
    """Yields the best hits of each query by hybrid search, with their `id` and `features`, as users see them.

    Hits that are candidates only because they were judged for this or a similar query are left out. They
    would be training rows whose label is known from how they were found.

    The request names the version, so `GET /searches` does not count it.

    Raises:
        TrainingError: The service serves another version than `version`.
    """
    body = {
        "mode": "hybrid",
        "k": hits + MAX_RECALLED,
        "explain": True,
        "fields": [],
        "rerank": False,
        "model": version,
    }
    for found in _search(url, collection, queries, body, _SEARCHES, version):
        named = {"id": str, "features": dict}
        told = [hit for hit in found if _has(hit, named) and hit["features"].keys() >= {*FEATURES}]
        if len(told) < min(hits, len(found)):
            raise TrainingError(f"{shown(url)} does not explain its hits. Update the service.")
        best = sorted(range(len(told)), key=lambda at: -float(told[at]["features"]["hybrid"]))[:hits]
        yield [told[at] for at in sorted(best)]


def fetch_reranker(url: str, collection: str) -> str | None:
    """Returns the active reranker if it orders the hits of a collection by default, or else None."""
    reranker: Any = fetch_info(url).get("reranker")
    if not _has(reranker, {"version": str, "labels": list, "collections": list}):
        return None
    reranks = not reranker["labels"] and not {collection, *ALL}.isdisjoint(reranker["collections"])
    return str(reranker["version"]) if reranks else None


def fetch_reranked(
    url: str, collection: str, queries: Sequence[str], hits: int, reranker: str, version: str
) -> Iterator[dict[str, float]]:
    """Yields the scores of the reranker for the best hits of each query by hybrid search, by id.

    The service scores hits for a limited time and remembers scores, so the query is sent again while that
    scores further hits. Hits that still have no score are missing, and so are all hits of the queries that
    are left after _RERANK_SECONDS. The request names the version, so `GET /searches` does not count it.

    Args:
        url: Address of the service.
        collection: Collection to search.
        queries: The queries.
        hits: Number of hits to score, of each query.
        reranker: The active reranker.
        version: The active version.

    Raises:
        TrainingError: Another reranker is active, `version` is not loaded any more, or the service does not
            answer as expected.
    """
    # Every SIMILE_MAX_CANDIDATES allows a single query.
    path = f"{_scope(collection)}/search"
    body = {"mode": "hybrid", "k": hits, "rerank": True, "rerank_k": hits, "fields": [], "model": version}
    ends = time.monotonic() + _RERANK_SECONDS
    with connect() as client, Progress("queries", len(queries), "reranking") as progress:
        for query in queries:
            scores: dict[str, float] = {}
            missing = True
            while missing and time.monotonic() < ends:
                answer = _get(client, url, path, body={**body, "queries": [query]})
                if not isinstance(answer, dict) or not isinstance(answer.get("results"), list):
                    raise _stranger(url)
                if answer.get("reranker") != reranker:
                    raise TrainingError(f"{shown(url)} does not rerank with {reranker} any more.")
                [found] = answer["results"]
                scored = {hit["id"]: hit["rerank_score"] for hit in found if "rerank_score" in hit}
                missing = len(scores) < len(scored) < len(found)
                scores |= scored
            yield scores
            progress.add(1)


def fetch_nearest(
    url: str, collection: str, vectors: NDArray[np.float32], version: str
) -> Iterator[list[dict[str, Any]]]:
    """Yields the nearest documents of each query vector by dense search, the best first.

    The service embeds nothing and remembers no search, because it is sent no text.

    Args:
        url: Address of the service.
        collection: Collection to search.
        vectors: Vectors of the queries, shape (q, d).
        version: Active version of the service, which computed the vectors.

    Yields:
        Up to 1,000 hits with `id`, `score` (a cosine), and `passage` if the text is split.

    Raises:
        TrainingError: Another version is active, or the service does not answer as expected.

    """
    body = {"mode": "dense", "k": _NEAREST, "fields": [], "model": version}
    for found in _search(url, collection, vectors.tolist(), body, 1, version):
        if not all(_has(hit, {"id": str, "score": float}) for hit in found):
            raise _stranger(url)
        yield found


def _search(
    url: str, collection: str, queries: Sequence[Any], body: dict[str, Any], together: int, version: str
) -> Iterator[list[dict[str, Any]]]:
    """Yields the hits of each query. A request has at most `together` queries.

    Raises TrainingError if the service serves another version than `version`.
    """
    path = f"{_scope(collection)}/search"
    with connect() as client, Progress("queries", len(queries), "searching") as progress:
        for at in range(0, len(queries), together):
            some = [*queries[at : at + together]]
            answer = _get(client, url, path, body={**body, "queries": some})
            results = answer.get("results") if isinstance(answer, dict) else None
            if isinstance(answer, dict) and answer.get("model", version) != version:
                raise TrainingError(f"{shown(url)} serves {answer['model']}, and not {version} any more.")
            if not isinstance(results, list) or len(results) != len(some):
                raise _stranger(url)
            yield from results
            progress.add(len(some))


def send_clicked(url: str, collection: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replaces the clicked answers of a collection: rows of query, id and gain."""
    with connect() as client:
        _get(client, url, f"/collections/{collection}/clicked", body={"clicked": rows}, method="PUT")


def fetch_texts(url: str, collection: str, ids: Sequence[str]) -> dict[str, str]:
    """Returns, by id, title and text of documents as one text. Documents that do not exist are missing."""
    texts: dict[str, str] = {}
    with connect() as client:
        for at in range(0, len(ids), _SEARCHES):
            parameters = {"filter": json.dumps({"$ids": [*ids[at : at + _SEARCHES]]})}
            page = _get(client, url, f"{_scope(collection)}/documents", parameters=parameters)
            rows = _listed(url, page, "documents", {"id": str, "text": str})
            texts |= {row["id"]: get_content(row, row["text"]).whole for row in rows}
    return texts


def fetch_count(url: str, requested: Sequence[str] = ONLY_DEFAULT) -> int:
    """Returns the number of documents in the requested collections."""
    scopes = map(_scope, fetch_collections(url, requested))
    return sum(_answer(url, f"{scope}/documents/count", count=int)["count"] for scope in scopes)


def _answer(url: str, path: str, **fields: type) -> dict[str, Any]:
    with connect() as client:
        answer = _get(client, url, path)
    if not _has(answer, fields):
        raise _stranger(url)
    return dict(answer)


def _scope(collection: str) -> str:
    """Returns the path prefix of a collection's routes."""
    return "" if collection == DEFAULT else f"/collections/{collection}"


def _rows(url: str, collection: str, name: str, fields: Mapping[str, type]) -> Iterator[dict[str, Any]]:
    path = f"{_scope(collection)}/{name}"
    address = url.rstrip("/") + path
    after: str | None = None
    with connect() as client, Progress(name, step="reading") as progress:
        while True:
            parameters = {"limit": str(_PAGE)} | ({} if after is None else {"after": after})
            page = _get(client, url, path, parameters=parameters)
            rows = _listed(address, page, name, fields)
            yield from rows
            progress.add(len(rows))
            following = page.get("next")
            if following is None:
                return
            if str(following) == after:
                raise TrainingError(f"{shown(address)} answers the same page again and again.")
            after = str(following)


def key_header() -> dict[str, str]:
    """Returns the request header with the API key of the service, or no header if no key is set.

    The key is in SIMILE_SERVICE_KEY, or in the file that SIMILE_SERVICE_KEY_FILE names.

    Raises:
        TrainingError: The file cannot be read, or the key is malformed. The message never contains the key.

    """
    key, file = environ.get("SIMILE_SERVICE_KEY", ""), environ.get("SIMILE_SERVICE_KEY_FILE")
    if file and not key:
        try:
            key = Path(file).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not ASCII"
            raise TrainingError(f"SIMILE_SERVICE_KEY_FILE={file} cannot be read: {why}.") from None
    if not (key.isascii() and key.isprintable()):
        raise TrainingError("SIMILE_SERVICE_KEY must be one line of printable ASCII.")
    return {"authorization": f"Bearer {key}"} if key else {}


def shown(url: str) -> str:
    """Removes user name and password from a URL, for messages."""
    before, at, after = url.rpartition("@")
    scheme, slashes, _ = before.partition("//")
    return f"{scheme}{slashes}{after}" if at and slashes else after


def _listed(address: str, answer: Any, name: str, fields: Mapping[str, type]) -> list[dict[str, Any]]:
    """Returns the rows under `name` in an answer. Raises TrainingError if a row lacks a field."""
    rows = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(rows, list) or not all(_has(row, fields) for row in rows):
        raise _stranger(address)
    return rows


def _has(row: object, fields: Mapping[str, type]) -> bool:
    return isinstance(row, dict) and all(isinstance(row.get(name), kind) for name, kind in fields.items())


def connect() -> httpx2.Client:
    """Returns a client that sends the key of the service and uses no proxy."""
    return httpx2.Client(timeout=_TIMEOUT, trust_env=False, headers=key_header())


def _get(client: httpx2.Client, url: str, path: str, **request: Any) -> Any:
    """Returns the JSON of a response. `request` has further arguments of `send`."""
    response = send(client, url, path, **request)
    try:
        return parse_json(response.content)
    except ValueError:
        raise _stranger(url.rstrip("/") + path) from None


def send(
    client: httpx2.Client,
    url: str,
    path: str,
    parameters: dict[str, str] | None = None,
    body: dict[str, Any] | None = None,
    method: str | None = None,
    *,
    accept: str = "application/json",
    allowed: tuple[int, ...] = (200,),
) -> httpx2.Response:
    """Sends a request, and repeats it while the service is busy and asks for another try.

    Without a `method`, GET is used, or POST if there is a body.

    Raises:
        TrainingError: The service cannot be reached, or the status is not in `allowed`.

    """
    address = url.rstrip("/") + path
    method = method or ("GET" if body is None else "POST")
    for attempt in range(1, _TRIES + 1):
        try:
            response = client.request(
                method, address, params=parameters, json=body, headers={"accept": accept}
            )
        except (httpx2.UnsupportedProtocol, httpx2.InvalidURL):
            raise TrainingError(
                f"{shown(url)} is no address. Name a service as http://127.0.0.1:8000."
            ) from None
        except httpx2.HTTPError as error:
            raise TrainingError(
                f"{shown(url)} cannot be reached: {str(error).rstrip('.')}. Is the service running there?"
            ) from None
        wait = response.headers.get("retry-after", "")  # in seconds; dates are ignored
        if response.status_code not in _BUSY or not wait.isdecimal() or attempt == _TRIES:
            break
        time.sleep(min(float(wait), _LONGEST_WAIT_SECONDS))
    if response.status_code not in allowed:
        raise TrainingError(f"{shown(address)} answered {response.status_code}: {_refusal(response)}")
    return response


def _refusal(response: httpx2.Response) -> str:
    """Returns the error message in a response, or else the beginning of the response."""
    try:
        return str(parse_json(response.content)["error"])
    except (ValueError, TypeError, KeyError):
        return response.text[:200].strip()


def _stranger(address: str) -> TrainingError:
    return TrainingError(f"{shown(address)} does not answer as a Simile service does. Is the address right?")


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_MARK = "collection:"


def is_name(name: str) -> bool:
    """Returns True if `name` is a valid name of a collection."""
    return _NAME.fullmatch(name) is not None


def qualified(collection: str, id: str) -> str:
    """Returns a name for a document that is unique over all collections.

    For documents of the default collection, the name is usually the id.
    """
    plain = collection == DEFAULT and not id.startswith(_MARK)
    return id if plain else f"{_MARK}{collection}/{id}"


def split_qualified(name: str) -> tuple[str, str]:
    """Returns the collection and the id of a document from its name by `qualified`."""
    if not name.startswith(_MARK):
        return DEFAULT, name
    collection, _, id = name.removeprefix(_MARK).partition("/")
    return collection, id


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options `--collection` and `--all-collections`, which need `--from-service`."""
    which = command.add_mutually_exclusive_group()
    which.add_argument(
        "--collection",
        action="append",
        metavar="NAME",
        help="of the service; may be repeated (default: the collection `default`)",
    )
    which.add_argument("--all-collections", action="store_true", help="of the service")


def chosen(options: argparse.Namespace) -> tuple[str, ...]:
    """Returns the collections that the options of `add_options` name.

    Raises:
        TrainingError: A name is invalid, or a collection is named without `--from-service`.

    """
    names: list[str] | None = options.collection
    if (names or options.all_collections) and not options.from_service:
        raise TrainingError("--collection and --all-collections go with --from-service alone.")
    for name in names or ():
        if not is_name(name):
            raise TrainingError(f"--collection {name!r}: no collection can have this name.")
    return ALL if options.all_collections else tuple(names or ONLY_DEFAULT)


def get_content(document: Mapping[str, Any], text: str) -> Content:
    """Returns title and text of a document, as the service embeds them."""
    title, searched = find_title(document)
    return Content(text, title if searched else "")


def find_title(document: Mapping[str, Any]) -> tuple[str, bool]:
    """Finds the title of a document.

    Returns:
        The title, or an empty string, and True if searches include the title. Older documents have the title
        in `metadata.title`, which searches do not include.

    """
    own, metadata = document.get("title"), document.get("metadata")
    if isinstance(own, str) and own.strip():
        return own.strip(), True
    kept = metadata.get("title") if isinstance(metadata, Mapping) else None
    return (kept.strip(), False) if isinstance(kept, str) else ("", True)

"""The blocking client and the client for asyncio. Both retry if the service is overloaded or not ready."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2

from simile_client.calls import (
    Call,
    Event,
    Filter,
    Mode,
    build_path,
    build_synonyms_path,
    read_document,
    read_page,
    read_search,
    read_versions,
)
from simile_client.values import (
    Document,
    DocumentPage,
    Imported,
    Rank,
    SearchAnswer,
    SimileError,
    Suggestion,
    Version,
)

T = TypeVar("T")
P = ParamSpec("P")
URL = "http://127.0.0.1:8000"
_LATER = {429, 503}  # The service is full or not ready, and did nothing, so a retry is safe.
_PAUSE, _MAX_SECONDS = 0.5, 60.0  # First pause, and limit of all pauses, even by Retry-After.


def is_loopback(host: str) -> bool:
    """Returns whether a host is this machine by its name or address, without asking a name server."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def find_proxy(url: str) -> str | None:
    """Returns the proxy that the environment names for a URL, without its user and password."""
    parts = urlsplit(url)
    host, proxies = parts.hostname or "", getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or is_loopback(host) or proxy_bypass(host):
        return None
    scheme, there, rest = proxy.rpartition("://")
    return scheme + there + rest.rpartition("@")[2]


class _Options:
    """Base class of both clients: options, connection and retries. See `Client`."""

    _kind: Any  # The class of `_http`, set by subclasses.
    _direct: Any  # Its transport without a proxy, set by subclasses.
    _http: Any

    def __init__(
        self, url: str = URL, *, key: str | None = None, timeout: float = 130.0, retries: int = 3
    ) -> None:
        self._url = url
        self._retries = retries
        if key and not (key.isascii() and key.isprintable()):
            raise SimileError("The API key must be one line of printable ASCII.")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        # A client with its own transport ignores the proxy variables.
        transport = self._direct() if is_loopback(urlsplit(url).hostname or "") else None
        self._proxy = find_proxy(url)
        try:
            self._http = self._kind(base_url=url, timeout=timeout, headers=headers, transport=transport)
        except (ImportError, ValueError) as error:  # A SOCKS proxy without socksio, or an unknown scheme.
            if self._proxy is None:
                raise
            raise SimileError(f"The proxy{self._through} cannot be used: {error}") from error

    @property
    def _through(self) -> str:
        """The proxy as the end of a phrase, with the way around it. Empty without a proxy."""
        if self._proxy is None:
            return ""
        return f" {self._proxy} (proxy variables of the environment; NO_PROXY names hosts without a proxy)"

    def _pause(self, attempt: int, answer: httpx2.Response | None) -> float | None:
        """Returns the seconds to wait before the next try, or None for no further try.

        Args:
            attempt: Number of the try, from 0.
            answer: The response. None if the connection failed, after which a retry is safe.
        """
        if attempt >= self._retries or (answer is not None and answer.status_code not in _LATER):
            return None
        header = "" if answer is None else answer.headers.get("retry-after", "")
        return min(float(header) if header.isdigit() else _PAUSE * 2.0 ** min(attempt, 9), _MAX_SECONDS)

    def _unanswered(self, error: httpx2.HTTPError) -> SimileError:
        by = f" through the proxy{self._through}" if self._proxy else ""
        if isinstance(error, httpx2.TimeoutException):
            advice = "Send less at once, or raise timeout."
            return SimileError(f"{self._url} did not answer in time{by}. {advice}")
        kind = type(error).__name__
        return SimileError(f"{self._url} does not answer{by} ({kind}). Is the service running?")


class Client(_Options):
    """A blocking client. Use it in a `with` statement, or call `close`. It is thread-safe.

    Every method raises SimileError if the service rejects the request or does not answer. Proxy variables of
    the environment (`HTTPS_PROXY`) apply, but not to this machine.

    Args:
        url: Base URL of the service.
        key: API key (docs/ACCESS.md).
        timeout: Time limit of each try in seconds. The service itself gives up after 120 seconds.
        retries: Number of retries after 429, 503 and failed connections.
    """

    _kind = httpx2.Client
    _direct = httpx2.HTTPTransport
    _http: httpx2.Client

    def embed(
        self,
        texts: Sequence[str],
        *,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        version: str | None = None,
    ) -> list[list[float]]:
        """Embeds texts.

        Args:
            texts: The texts.
            dimensions: Size to which vectors are truncated; None for the model's size.
            prompt_name: Name of a prompt of the model.
            version: A loaded version; None for the active version.

        Returns:
            A unit vector for each text.
        """
        options = {"dimensions": dimensions, "prompt_name": prompt_name}
        body = {"inputs": list(texts)} | {name: value for name, value in options.items() if value is not None}
        return self._do(Call("POST", "/embed", list, body, version=version))

    def similarity(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Returns the cosine of each pair of texts."""
        body = {"pairs": [list(pair) for pair in pairs]}
        return self._do(Call("POST", "/similarity", list, body))

    def rerank(
        self, query: str, texts: Sequence[str], *, top_n: int | None = None, raw_scores: bool = False
    ) -> list[Rank]:
        """Scores texts together with a query by the active reranker.

        Args:
            query: The query.
            texts: The texts.
            top_n: Number of texts to return; None for all.
            raw_scores: Whether to return scores before the model's activation.

        Returns:
            The texts with their positions and scores, best first.
        """

        def read(answer: Any) -> list[Rank]:
            return [Rank(each["index"], each["score"], texts[each["index"]]) for each in answer][:top_n]

        body = {"query": query, "texts": list(texts), "raw_scores": raw_scores}
        return self._do(Call("POST", "/rerank", read, body))

    def search(
        self,
        query: str,
        *,
        k: int = 10,
        mode: Mode | None = None,
        filter: Filter | None = None,
        user: str | None = None,
        rerank: bool | None = None,
        rerank_k: int | None = None,
        highlight: bool = False,
        explain: bool = False,
        typos: bool | None = None,
        syntax: bool | None = None,
        facets: Sequence[str] = (),
        facet_values: int | None = None,
        collection: str = "default",
        version: str | None = None,
    ) -> SearchAnswer:
        """Searches documents. See docs/SEARCH.md for `filter`, `user` and `facets`.

        Args:
            k: Maximum number of hits.
            mode: The search mode; None for the collection's default.
            rerank: Whether the active reranker orders the best hits; None for the collection's default.
            rerank_k: Number of hits that it orders; None for 20.
            highlight: Whether hits show where they have the query's terms, and a snippet.
            explain: Whether hits have an explanation.
            typos: Whether words that no document has are corrected; None for the collection's default.
            syntax: Whether `"exact words"`, `-word` and `title:word` are conditions.
            facets: Metadata fields whose values are counted, such as `metadata.topic`.
            facet_values: Maximum number of values of a facet; None for 10.
            version: A loaded version; None for the active version.
        """
        options: dict[str, Any] = {"mode": mode, "user": user, "rerank_k": rerank_k}
        options |= {"facets": ",".join(facets) or None, "facet_values": facet_values}
        options["filter"] = None if filter is None else json.dumps(filter)
        for name, value in (("rerank", rerank), ("typos", typos), ("syntax", syntax)):
            options[name] = None if value is None else str(value).lower()
        options |= {"highlight": "true" if highlight else None, "explain": "true" if explain else None}
        params = {"q": query, "k": k} | {name: value for name, value in options.items() if value is not None}
        path = build_path(collection, "/search")
        return self._do(Call("GET", path, read_search, params=params, version=version))

    def suggest(
        self, beginning: str, *, k: int = 8, filter: Filter | None = None, collection: str = "default"
    ) -> tuple[Suggestion, ...]:
        """Returns at most `k` completions of what a user types. With a filter, no past queries."""

        def read(answer: Any) -> tuple[Suggestion, ...]:
            return tuple(Suggestion(each["text"], each["kind"]) for each in answer["suggestions"])

        params = {"q": beginning, "k": k} | ({} if filter is None else {"filter": json.dumps(filter)})
        return self._do(Call("GET", build_path(collection, "/suggest"), read, params=params))

    def put(self, documents: Sequence[Document], *, collection: str = "default") -> Imported:
        """Stores documents, and replaces documents with the same id.

        When this returns, the documents are on disk and searches find them.
        """

        def read(answer: Any) -> Imported:
            ids = answer.get("ids") or [document.id for document in documents]
            return Imported(answer["upserted"], answer["truncated"], tuple(ids), answer.get("unknown", 0))

        body = {"documents": [document.as_json() for document in documents]}
        return self._do(Call("POST", build_path(collection, "/documents"), read, body))

    def get(self, id: str, *, collection: str = "default") -> Document:
        """Returns a stored document."""
        return self._do(Call("GET", build_path(collection, "/documents", id), read_document))

    def delete(self, id: str, *, collection: str = "default") -> int:
        """Deletes a document. Returns the number of deleted documents, 0 or 1."""
        path = build_path(collection, "/documents", id)
        return self._do(Call("DELETE", path, lambda answer: int(answer["deleted"])))

    def delete_matching(self, filter: Filter, *, collection: str = "default") -> int:
        """Deletes the documents that match a filter. Returns their number."""
        params = {"filter": json.dumps(filter)}
        path = build_path(collection, "/documents")
        return self._do(Call("DELETE", path, lambda answer: int(answer["deleted"]), params=params))

    def count(self, filter: Filter | None = None, *, collection: str = "default") -> int:
        """Returns the number of documents that match a filter, or of all documents."""
        params = {} if filter is None else {"filter": json.dumps(filter)}
        path = build_path(collection, "/documents/count")
        return self._do(Call("GET", path, lambda answer: int(answer["count"]), params=params))

    def list_documents(
        self,
        filter: Filter | None = None,
        *,
        after: str = "",
        limit: int = 100,
        collection: str = "default",
    ) -> DocumentPage:
        """Returns a page of documents in the order of their ids.

        Args:
            filter: Which documents to list; None for all.
            after: The id before the page: `next` of the previous page.
            limit: Maximum number of documents of the page.
        """
        params = {"limit": limit} | ({"after": after} if after else {})
        named = {} if filter is None else {"filter": json.dumps(filter)}
        path = build_path(collection, "/documents")
        return self._do(Call("GET", path, read_page, params=params | named))

    def judge(
        self,
        query: str,
        id: str,
        *,
        relevant: bool,
        user: str | None = None,
        search_id: str | None = None,
        collection: str = "default",
    ) -> int:
        """Stores a judgment: whether a document is relevant to a query. Retrainings learn from judgments.

        With the `search_id` of the answer that had the hit, the judgment also counts in a live test.

        Returns the number of stored judgments.
        """
        named = {"user": user, "search_id": search_id}
        body = {"query": query, "id": id, "relevant": relevant} | {
            name: value for name, value in named.items() if value is not None
        }
        path = build_path(collection, "/feedback")
        return self._do(Call("POST", path, lambda answer: int(answer["stored"]), body))

    def report(
        self,
        search_id: str,
        id: str,
        event: Event = "click",
        *,
        query: str | None = None,
        shown: Sequence[str] | None = None,
        position: int | None = None,
        user: str | None = None,
        collection: str = "default",
    ) -> int:
        """Stores what a visitor did with a hit. Retrainings learn from events. See docs/SEARCH.md.

        Args:
            search_id: `search_id` of the answer that had the hit.
            id: The id of the document.
            event: What the visitor did.
            query: The query; None if the service remembers the search.
            shown: Ids of the hits on the page, best first.
            position: Rank of the hit, from 1; None for its place in `shown`.
            user: Opaque id of the visitor; None for that of the search.

        Returns:
            The number of stored events.
        """
        options: dict[str, Any] = {"query": query, "position": position, "user": user}
        options["shown"] = None if shown is None else list(shown)
        body: dict[str, Any] = {"search_id": search_id, "id": id, "type": event}
        body |= {name: value for name, value in options.items() if value is not None}
        path = build_path(collection, "/events")
        return self._do(Call("POST", path, lambda answer: int(answer["stored"]), body))

    def synonyms(self, *, collection: str = "default") -> dict[str, Any]:
        """Returns the synonyms of a collection: `version`, `groups` and `one_way`."""
        return self._do(Call("GET", build_synonyms_path(collection), dict))

    def replace_synonyms(
        self,
        groups: Sequence[Sequence[str]] = (),
        one_way: Sequence[Mapping[str, Any]] = (),
        *,
        collection: str = "default",
        version: int | None = None,
    ) -> int:
        """Replaces all synonyms of a collection. See docs/SEARCH.md.

        Args:
            groups: Phrases that find each other.
            one_way: Entries `{"from": phrase, "to": [phrase, …]}`.
            version: The version that these replace; None for any.

        Returns:
            The new version.
        """
        body: dict[str, Any] = {"groups": [*map(list, groups)], "one_way": [*map(dict, one_way)]}
        body |= {} if version is None else {"version": version}
        return self._do(Call("PUT", build_synonyms_path(collection), _read_version, body))

    def delete_synonyms(self, *, collection: str = "default") -> int:
        """Deletes all synonyms of a collection. Returns the new version."""
        return self._do(Call("DELETE", build_synonyms_path(collection), _read_version))

    def info(self) -> dict[str, Any]:
        """Returns `GET /info`: the active version, its dimension, its index and more."""
        return self._do(Call("GET", "/info", dict))

    def versions(self) -> tuple[Version, ...]:
        """Returns the published versions, oldest first."""
        return self._do(Call("GET", "/models", read_versions))

    def activate(self, version: str) -> str:
        """Requests that an encoder or a reranker becomes active (role admin). `versions` shows its state.

        Returns the requested version.
        """
        path = f"{build_path('default', '/models', version)}/activate"
        return self._do(Call("POST", path, lambda answer: str(answer["wanted"])))

    def deactivate(self) -> str | None:
        """Requests that no reranker is served (role admin). Returns the version that was served before."""

        def read(answer: Any) -> str | None:
            previous: str | None = answer["previous"]
            return previous

        return self._do(Call("POST", "/models/deactivate", read))

    def retraining(self) -> dict[str, Any]:
        """Returns `GET /retraining`: `state`, `says`, `progress`, `last_run`, `next_run` and more."""
        return self._do(Call("GET", "/retraining", dict))

    def retrain(self) -> dict[str, Any]:
        """Requests a retraining (role admin). Returns the new state, like the method `retraining`."""
        return self._do(Call("POST", "/retraining", dict))

    def _do(self, call: Call[T]) -> T:
        attempt = 0
        while True:
            answer, failed = None, None
            try:
                answer = self._http.request(call.method, call.path, **_sent(call))
            except httpx2.ConnectError as error:
                failed = self._unanswered(error)
            except httpx2.HTTPError as error:
                raise self._unanswered(error) from error
            wait = None if answer is not None and answer.is_success else self._pause(attempt, answer)
            if wait is None:
                return _read(call, answer, failed, self._through)
            time.sleep(wait)
            attempt += 1

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _awaited(
    method: Callable[Concatenate[Client, P], T],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """Adapts a method of `Client` to `AsyncClient`, where it returns a coroutine, as `_do` does there."""
    return cast("Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]", method)


class AsyncClient(_Options):
    """A client for asyncio with the methods of `Client`, which return coroutines.

    Use it in an `async with` statement, or await `close`.
    """

    _kind = httpx2.AsyncClient
    _direct = httpx2.AsyncHTTPTransport
    _http: httpx2.AsyncClient

    embed = _awaited(Client.embed)
    similarity = _awaited(Client.similarity)
    rerank = _awaited(Client.rerank)
    search = _awaited(Client.search)
    suggest = _awaited(Client.suggest)
    put = _awaited(Client.put)
    get = _awaited(Client.get)
    delete = _awaited(Client.delete)
    delete_matching = _awaited(Client.delete_matching)
    count = _awaited(Client.count)
    list_documents = _awaited(Client.list_documents)
    judge = _awaited(Client.judge)
    report = _awaited(Client.report)
    synonyms = _awaited(Client.synonyms)
    replace_synonyms = _awaited(Client.replace_synonyms)
    delete_synonyms = _awaited(Client.delete_synonyms)
    info = _awaited(Client.info)
    versions = _awaited(Client.versions)
    activate = _awaited(Client.activate)
    deactivate = _awaited(Client.deactivate)
    retraining = _awaited(Client.retraining)
    retrain = _awaited(Client.retrain)

    async def _do(self, call: Call[T]) -> T:
        attempt = 0
        while True:
            answer, failed = None, None
            try:
                answer = await self._http.request(call.method, call.path, **_sent(call))
            except httpx2.ConnectError as error:
                failed = self._unanswered(error)
            except httpx2.HTTPError as error:
                raise self._unanswered(error) from error
            wait = None if answer is not None and answer.is_success else self._pause(attempt, answer)
            if wait is None:
                return _read(call, answer, failed, self._through)
            await asyncio.sleep(wait)
            attempt += 1

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _read_version(answer: Any) -> int:
    return int(answer["version"])


def _sent(call: Call[T]) -> dict[str, Any]:
    """Returns the body, parameters and headers of a request, as arguments for httpx2."""
    named = {} if call.version is None else {"x-model-version": call.version}
    return {"json": call.body, "params": call.params, "headers": named}


def _read(call: Call[T], answer: httpx2.Response | None, failed: SimileError | None, through: str) -> T:
    """Parses the response. `through` names the proxy for errors that may come from it.

    Raises:
        SimileError: The status is an error, or the body is not an answer of Simile. If `answer` is None, the
            error is `failed`.
    """
    if answer is None:
        raise failed or SimileError("The service did not answer.")
    try:
        content = answer.json()
    except (ValueError, RecursionError):
        content = None if answer.is_success else {}
    if answer.is_success:
        try:
            return call.read(content)
        except (KeyError, TypeError, AttributeError):
            by = through and f" The request went through the proxy{through}."
            raise SimileError(f"The server at {answer.url} is not Simile.{by}", answer.status_code) from None
    refusal = content if isinstance(content, dict) else {}
    by = through and f" through the proxy{through}"
    message = str(refusal.get("error") or f"HTTP status {answer.status_code}{by}")
    raise SimileError(message, answer.status_code, str(refusal.get("error_type", "")))

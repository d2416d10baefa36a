"""Haystack: a document store, a retriever and embedders. The extra `haystack` installs what they need.

The service embeds texts and queries, so the document store sends texts. It refuses documents with an
embedding, unless `ignore_embeddings` is set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Self

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.errors import FilterError
from haystack.utils import Secret, deserialize_secrets_inplace

from simile_client.calls import Mode
from simile_client.clients import URL, AsyncClient, Client
from simile_client.filters import join, negate
from simile_client.operations import Operations, Steps
from simile_client.values import Document as StoredDocument
from simile_client.values import Hit, SearchAnswer

_KEY = Secret.from_env_var("SIMILE_API_KEY", strict=False)
_NOTHING: dict[str, Any] = {"$ids": []}
_RANGES = {">": "$gt", ">=": "$gte", "<": "$lt", "<=": "$lte"}
_ATTRIBUTES = {"content", "blob", "score", "embedding", "sparse_embedding"}


class _Connection:
    """Opens the clients of a component when they are first used, one for asyncio in each event loop."""

    def __init__(self, url: str, api_key: Secret | None) -> None:
        self._url = url
        self._api_key = api_key
        self._client: Client | None = None
        self._async_clients: dict[asyncio.AbstractEventLoop, AsyncClient] = {}

    def build_operations(self, collection: str = "default", *, asynchronous: bool = False) -> Operations:
        key = None if self._api_key is None else self._api_key.resolve_value()
        if self._client is None:
            self._client = Client(self._url, key=key)
        if not asynchronous:
            return Operations(self._client, None, collection)
        loop = asyncio.get_running_loop()
        if loop not in self._async_clients:
            clients = self._async_clients.items()
            self._async_clients = {each: client for each, client in clients if not each.is_closed()}
            self._async_clients[loop] = AsyncClient(self._url, key=key)
        return Operations(self._client, self._async_clients[loop], collection)


class _Configured:
    """Base class with `to_dict` and `from_dict`, which save the name of the key's variable, not the key."""

    _arguments: tuple[str, ...]  # set by subclasses

    def __init__(self, url: str, api_key: Secret | None) -> None:
        self.url = url
        self.api_key = api_key
        self._connection = _Connection(url, api_key)

    def to_dict(self) -> dict[str, Any]:
        arguments = {name: getattr(self, name) for name in self._arguments}
        key = None if self.api_key is None else self.api_key.to_dict()
        data: dict[str, Any] = default_to_dict(self, url=self.url, api_key=key, **arguments)
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        deserialize_secrets_inplace(data["init_parameters"], keys=["api_key"])
        made: Self = default_from_dict(cls, data)
        return made


class SimileDocumentStore(_Configured):
    """A collection of documents in a Simile service, which embeds their content without their metadata.

    Args:
        url: Base URL of the service.
        api_key: API key, by default from the environment variable SIMILE_API_KEY; None for none.
        collection: The collection. The first document creates it.
        ignore_embeddings: Whether embeddings of documents are ignored. By default they are an error.
    """

    _arguments = ("collection", "ignore_embeddings")

    def __init__(
        self,
        url: str = URL,
        api_key: Secret | None = _KEY,
        collection: str = "default",
        *,
        ignore_embeddings: bool = False,
    ) -> None:
        super().__init__(url, api_key)
        self.collection = collection
        self.ignore_embeddings = ignore_embeddings

    def build_operations(self, *, asynchronous: bool = False) -> Operations:
        return self._connection.build_operations(self.collection, asynchronous=asynchronous)

    def count_documents(self) -> int:
        operations = self.build_operations()
        return operations.run(operations.count())

    async def count_documents_async(self) -> int:
        operations = self.build_operations(asynchronous=True)
        return await operations.run_async(operations.count())

    def count_documents_by_filter(self, filters: dict[str, Any]) -> int:
        operations = self.build_operations()
        return operations.run(operations.count(translate(filters)))

    async def count_documents_by_filter_async(self, filters: dict[str, Any]) -> int:
        operations = self.build_operations(asynchronous=True)
        return await operations.run_async(operations.count(translate(filters)))

    def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """Returns the documents that match the filters, in the order of their ids.

        Raises:
            FilterError: The filters are malformed, or filters of Simile cannot express them.
        """
        operations = self.build_operations()
        return [*map(_read_document, operations.run(operations.list_documents(translate(filters))))]

    async def filter_documents_async(self, filters: dict[str, Any] | None = None) -> list[Document]:
        operations = self.build_operations(asynchronous=True)
        found = await operations.run_async(operations.list_documents(translate(filters)))
        return [*map(_read_document, found)]

    def write_documents(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        """Stores documents. Returns their number.

        Args:
            documents: The documents.
            policy: What happens to a document with a stored id. NONE replaces it, as OVERWRITE does. FAIL and
                SKIP look before they write, so a concurrent write may come between.

        Raises:
            DuplicateDocumentError: With FAIL, before anything is written.
            ValueError: A document has no content, or an embedding that would be ignored.
        """
        operations = self.build_operations()
        return operations.run(self._write(operations, documents, policy))

    async def write_documents_async(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        operations = self.build_operations(asynchronous=True)
        return await operations.run_async(self._write(operations, documents, policy))

    def delete_documents(self, document_ids: list[str]) -> None:
        """Deletes documents. Ids without a document change nothing."""
        operations = self.build_operations()
        operations.run(operations.delete(document_ids))

    async def delete_documents_async(self, document_ids: list[str]) -> None:
        operations = self.build_operations(asynchronous=True)
        await operations.run_async(operations.delete(document_ids))

    def delete_by_filter(self, filters: dict[str, Any]) -> int:
        """Deletes the documents that match the filters. Returns their number."""
        operations = self.build_operations()
        return operations.run(operations.delete_matching(translate(filters) or {}))

    async def delete_by_filter_async(self, filters: dict[str, Any]) -> int:
        operations = self.build_operations(asynchronous=True)
        return await operations.run_async(operations.delete_matching(translate(filters) or {}))

    def delete_all_documents(self) -> None:
        operations = self.build_operations()
        operations.run(operations.delete_all())

    async def delete_all_documents_async(self) -> None:
        operations = self.build_operations(asynchronous=True)
        await operations.run_async(operations.delete_all())

    def _write(
        self, operations: Operations, documents: list[Document], policy: DuplicatePolicy
    ) -> Steps[int]:
        if not isinstance(documents, list) or not all(isinstance(each, Document) for each in documents):
            raise ValueError("Give a list of haystack.Document.")
        built = [*map(self._build_document, documents)]
        if policy in {DuplicatePolicy.FAIL, DuplicatePolicy.SKIP}:
            distinct = {document.id: document for document in reversed(built)}  # the first of equal ids
            stored = yield from operations.get(document.id for document in documents)
            known = {document.id for document in stored}
            if policy == DuplicatePolicy.FAIL and (known or len(distinct) < len(built)):
                ids = ", ".join(sorted(map(repr, known))[:10]) or "in the list"
                raise DuplicateDocumentError(f"Documents with these ids exist: {ids}. Nothing was written.")
            built = [document for id, document in reversed(distinct.items()) if id not in known]
        return len((yield from operations.put(built)))

    def _build_document(self, document: Document) -> StoredDocument:
        if document.content is None:
            raise ValueError(f"Document {document.id!r} has no content. Simile stores texts only.")
        if document.embedding is not None and not self.ignore_embeddings:
            raise ValueError(
                f"Document {document.id!r} has an embedding, and the service embeds the content itself. Set "
                "ignore_embeddings=True, or leave the embedder out."
            )
        return StoredDocument(document.content, document.id, document.meta)


@component
class SimileRetriever:
    """Searches a SimileDocumentStore by the text of a query.

    Each document has a `score`, and a `search_id` in its `meta`, with which `Client.report` stores a click.

    Args:
        document_store: The store.
        filters: Filters of each search, unless `run` has others.
        top_k: Maximum number of documents.
        mode: Search mode; None for the collection's default.
    """

    def __init__(
        self,
        document_store: SimileDocumentStore,
        *,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        mode: Mode | None = None,
    ) -> None:
        self.document_store = document_store
        self.filters = filters
        self.top_k = top_k
        self.mode = mode

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = default_to_dict(
            self,
            document_store=self.document_store.to_dict(),
            filters=self.filters,
            top_k=self.top_k,
            mode=self.mode,
        )
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        arguments = data["init_parameters"]
        arguments["document_store"] = SimileDocumentStore.from_dict(arguments["document_store"])
        made: Self = default_from_dict(cls, data)
        return made

    @component.output_types(documents=list[Document])
    def run(
        self,
        query: str,
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
        user: str | None = None,
    ) -> dict[str, list[Document]]:
        """Searches.

        Args:
            filters: Filters that replace those of the retriever.
            top_k: Maximum number of documents; None for that of the retriever.
            user: Opaque id of the visitor.
        """
        operations = self.document_store.build_operations()
        answer = operations.run(self._search(operations, query, filters, top_k, user))
        return {"documents": _read_hits(answer)}

    @component.output_types(documents=list[Document])
    async def run_async(
        self,
        query: str,
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
        user: str | None = None,
    ) -> dict[str, list[Document]]:
        operations = self.document_store.build_operations(asynchronous=True)
        answer = await operations.run_async(self._search(operations, query, filters, top_k, user))
        return {"documents": _read_hits(answer)}

    def _search(
        self,
        operations: Operations,
        query: str,
        filters: dict[str, Any] | None,
        top_k: int | None,
        user: str | None,
    ) -> Steps[SearchAnswer | None]:
        return operations.search(
            query,
            filter=translate(self.filters if filters is None else filters),
            k=self.top_k if top_k is None else top_k,
            mode=self.mode,
            user=user,
        )


class _Embedder(_Configured):
    """Base class of the embedders. The active version embeds.

    Args:
        url: Base URL of the service.
        api_key: API key, by default from the environment variable SIMILE_API_KEY; None for none.
        prompt_name: Name of a prompt of the model.
    """

    _arguments = ("prompt_name",)

    def __init__(self, url: str = URL, api_key: Secret | None = _KEY, prompt_name: str | None = None) -> None:
        super().__init__(url, api_key)
        self.prompt_name = prompt_name


@component
class SimileTextEmbedder(_Embedder):
    """Embeds a text. Vectors that you store are stale after a swap of the model (docs/CLIENTS.md)."""

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, list[float]]:
        operations = self._connection.build_operations()
        return {"embedding": operations.run(operations.embed([text], self.prompt_name))[0]}

    @component.output_types(embedding=list[float])
    async def run_async(self, text: str) -> dict[str, list[float]]:
        operations = self._connection.build_operations(asynchronous=True)
        return {"embedding": (await operations.run_async(operations.embed([text], self.prompt_name)))[0]}


@component
class SimileDocumentEmbedder(_Embedder):
    """Embeds the content of documents for another document store."""

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, list[Document]]:
        operations = self._connection.build_operations()
        vectors = operations.run(operations.embed(map(_get_content, documents), self.prompt_name))
        return {"documents": _add_vectors(documents, vectors)}

    @component.output_types(documents=list[Document])
    async def run_async(self, documents: list[Document]) -> dict[str, list[Document]]:
        operations = self._connection.build_operations(asynchronous=True)
        steps = operations.embed(map(_get_content, documents), self.prompt_name)
        return {"documents": _add_vectors(documents, await operations.run_async(steps))}


def _get_content(document: Document) -> str:
    if document.content is None:
        raise ValueError(f"Document {document.id!r} has no content to embed. Leave it out.")
    content: str = document.content
    return content


def _add_vectors(documents: Iterable[Document], vectors: Iterable[list[float]]) -> list[Document]:
    return [replace(each, embedding=vector) for each, vector in zip(documents, vectors, strict=True)]


def _read_document(document: StoredDocument | Hit) -> Document:
    title = {"title": document.title} if document.title else {}
    return Document(id=document.id or "", content=document.text, meta=title | dict(document.metadata))


def _read_hits(answer: SearchAnswer | None) -> list[Document]:
    if answer is None:
        return []
    found = []
    for hit in answer.hits:
        document = _read_document(hit)
        meta = document.meta | {"search_id": answer.search_id}
        found.append(replace(document, score=hit.score, meta=meta))
    return found


def translate(filters: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Returns filters of Haystack in the syntax of docs/SEARCH.md. None for all documents.

    Raises:
        FilterError: The filters are malformed, or filters of Simile cannot express them.
    """
    if not filters:
        return None
    try:
        return _translate(filters)
    except ValueError as error:
        raise FilterError(str(error)) from error


def _translate(filters: Mapping[str, Any]) -> dict[str, Any]:
    needed = ("operator", "value") if "field" in filters else ("operator", "conditions")
    for name in needed:
        if name not in filters:
            raise FilterError(f"The filter {dict(filters)!r} has no {name!r}.")
    operator = filters["operator"]
    if "field" in filters:
        return _translate_comparison(filters["field"], operator, filters["value"])
    conditions = filters["conditions"]
    if not isinstance(conditions, list) or not conditions:
        raise FilterError("conditions is a list of at least one filter.")
    parts = [*map(_translate, conditions)]
    if operator == "NOT":
        return negate({"$and": parts})
    if operator not in {"AND", "OR"}:
        raise FilterError(f"Unknown operator {operator!r}. Conditions are joined by AND, OR and NOT.")
    return join(f"${operator.lower()}", parts)


def _translate_comparison(field: str, operator: str, value: Any) -> dict[str, Any]:
    if field in _ATTRIBUTES:
        raise FilterError(f"{field} cannot be filtered. Filter by id and metadata.")
    if operator in _RANGES:
        return _translate_range(field, operator, value)
    if operator not in _OPERATORS:
        raise FilterError(
            f"Unknown operator {operator!r}. It is one of {', '.join([*_OPERATORS, *_RANGES])}."
        )
    if operator in {"in", "not in"} and not isinstance(value, list):
        raise FilterError(f"{operator} needs a list, not {type(value).__name__}.")
    if field == "id":
        if operator not in {"==", "in"}:
            raise FilterError("id is filtered by == and in only.")
        return {"$ids": value if operator == "in" else [value]}
    return _OPERATORS[operator](field.removeprefix("meta."), value)


def _translate_range(field: str, operator: str, value: Any) -> dict[str, Any]:
    if value is None:
        return _NOTHING
    if isinstance(value, datetime):
        value = value.isoformat()
    if isinstance(value, str):
        try:
            datetime.fromisoformat(value)
        except ValueError:
            raise FilterError(f"{operator} compares numbers and ISO dates, not {value!r}.") from None
    elif not isinstance(value, int | float):
        raise FilterError(f"{operator} compares numbers and ISO dates, not {type(value).__name__}.")
    return {field.removeprefix("meta."): {_RANGES[operator]: value}}


def _equal(field: str, value: Any) -> dict[str, Any]:
    """Returns the filter for an equal value. None also equals a missing field."""
    return {"$or": [{field: {"$exists": False}}, {field: None}]} if value is None else {field: value}


def _among(field: str, values: list[Any]) -> dict[str, Any]:
    if None in values:
        return {"$or": [{field: {"$in": values}}, {field: {"$exists": False}}]}
    return {field: {"$in": values}}


_OPERATORS: dict[str, Callable[[str, Any], dict[str, Any]]] = {
    "==": _equal,
    "!=": lambda field, value: negate(_equal(field, value)),
    "in": _among,
    "not in": lambda field, value: negate(_among(field, value)),
}

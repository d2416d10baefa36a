"""LangChain: a vector store, a retriever and embeddings. The extra `langchain` installs what they need.

The service embeds texts and queries, so the vector store sends texts and accepts no vectors.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn, Self

import numpy as np
from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance
from pydantic import Field

from simile_client.calls import Filter, Mode
from simile_client.clients import AsyncClient, Client
from simile_client.filters import exclude, join, negate
from simile_client.operations import Operations, Steps
from simile_client.values import Document as StoredDocument
from simile_client.values import Hit, SearchAnswer

_JOINS = ("$and", "$or")


class SimileEmbeddings(Embeddings):
    """Embeddings of the active version. Stored vectors are stale after a swap of the model (docs/CLIENTS.md).

    Args:
        client: A client. It stays open.
        async_client: For the asynchronous methods; None: threads use `client`.
        query_prompt_name: Name of the model's prompt for queries, if it has one.
        document_prompt_name: Name of the model's prompt for documents, if it has one.
    """

    def __init__(
        self,
        client: Client,
        async_client: AsyncClient | None = None,
        *,
        query_prompt_name: str | None = None,
        document_prompt_name: str | None = None,
    ) -> None:
        self._operations = Operations(client, async_client)
        self._query_prompt_name = query_prompt_name
        self._document_prompt_name = document_prompt_name

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self._operations.run(self._operations.embed(texts, self._document_prompt_name))

    def embed_query(self, text: str) -> list[float]:
        return self._operations.run(self._operations.embed([text], self._query_prompt_name))[0]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        return await self._operations.run_async(self._operations.embed(texts, self._document_prompt_name))

    async def aembed_query(self, text: str) -> list[float]:
        steps = self._operations.embed([text], self._query_prompt_name)
        return (await self._operations.run_async(steps))[0]


class SimileVectorStore(VectorStore):
    """A collection of documents in a Simile service, which embeds texts and queries.

    The methods that search take the options of `Client.search`, such as `filter`, `mode` and `user`. A filter
    may also have `$eq`, `$nin` and `$not`. Methods that take a vector raise NotImplementedError.

    Args:
        client: A client. It stays open.
        async_client: For the asynchronous methods; None: threads use `client`.
        collection: The collection. The first document creates it.
        mode: Search mode; None for the collection's default.
        title_key: The metadata with the title of a document, which is embedded before its text; None for no
            titles.
    """

    def __init__(
        self,
        client: Client,
        async_client: AsyncClient | None = None,
        *,
        collection: str = "default",
        mode: Mode | None = None,
        title_key: str | None = "title",
    ) -> None:
        self._operations = Operations(client, async_client, collection)
        self._mode = mode
        self._title_key = title_key

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Creates a store and adds texts.

        Args:
            embedding: None, or SimileEmbeddings. The service embeds the texts.
            kwargs: Arguments of the class, such as `client`.

        Raises:
            ValueError: `embedding` is another class.
        """
        store = cls(**_check_embedding(embedding, kwargs))
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @classmethod
    async def afrom_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Creates a store and adds texts. See `from_texts`."""
        store = cls(**_check_embedding(embedding, kwargs))
        await store.aadd_texts(texts, metadatas, ids=ids)
        return store

    def add_documents(
        self, documents: list[Document], ids: list[str] | None = None, **kwargs: Any
    ) -> list[str]:
        """Stores documents, and replaces documents with the same id.

        Args:
            documents: The documents.
            ids: Their ids; None for those of the documents. A document without an id gets a random one.

        Returns:
            The ids.
        """
        return self._operations.run(self._operations.put(self._build_documents(documents, ids)))

    async def aadd_documents(
        self, documents: list[Document], ids: list[str] | None = None, **kwargs: Any
    ) -> list[str]:
        return await self._operations.run_async(self._operations.put(self._build_documents(documents, ids)))

    def delete(
        self, ids: list[str] | None = None, *, filter: Filter | None = None, **kwargs: Any
    ) -> bool | None:
        """Deletes documents by their ids, or those that match a filter.

        Raises:
            ValueError: Neither or both are given. To delete all, delete the collection.
        """
        self._operations.run(self._delete(ids, filter))
        return True

    async def adelete(
        self, ids: list[str] | None = None, *, filter: Filter | None = None, **kwargs: Any
    ) -> bool | None:
        await self._operations.run_async(self._delete(ids, filter))
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        return [*map(_read_document, self._operations.run(self._operations.get(ids)))]

    async def aget_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        return [*map(_read_document, await self._operations.run_async(self._operations.get(ids)))]

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        return [_read_document(hit) for hit in self._operations.run(self._search(query, k, **kwargs))]

    async def asimilarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        hits = await self._operations.run_async(self._search(query, k, **kwargs))
        return [*map(_read_document, hits)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Returns documents with the scores of the mode (docs/SEARCH.md). Larger is better."""
        hits = self._operations.run(self._search(query, k, **kwargs))
        return [(_read_document(hit), hit.score) for hit in hits]

    async def asimilarity_search_with_score(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        hits = await self._operations.run_async(self._search(query, k, **kwargs))
        return [(_read_document(hit), hit.score) for hit in hits]

    def _similarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Returns documents with their cosine, at least 0. Only cosines compare between queries.

        Raises:
            ValueError: The mode is set, and is not dense.
        """
        hits = self._operations.run(self._search(query, k, **self._densely(kwargs)))
        return [(_read_document(hit), min(max(hit.score, 0.0), 1.0)) for hit in hits]

    async def _asimilarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        hits = await self._operations.run_async(self._search(query, k, **self._densely(kwargs)))
        return [(_read_document(hit), min(max(hit.score, 0.0), 1.0)) for hit in hits]

    def max_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """Returns relevant hits that differ from each other. Embeds the query and `fetch_k` texts.

        Args:
            lambda_mult: 1 for the most relevant hits, 0 for the most different ones.
        """
        return self._operations.run(self._search_diverse(query, k, fetch_k, lambda_mult, kwargs))

    async def amax_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        steps = self._search_diverse(query, k, fetch_k, lambda_mult, kwargs)
        return await self._operations.run_async(steps)

    def similarity_search_by_vector(self, embedding: list[float], k: int = 4, **kwargs: Any) -> NoReturn:
        _refuse_vector("similarity_search")

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        **kwargs: Any,
    ) -> NoReturn:
        _refuse_vector("max_marginal_relevance_search")

    def _build_documents(
        self, documents: Sequence[Document], ids: Sequence[str | None] | None
    ) -> Iterable[StoredDocument]:
        if ids is not None and len(ids) != len(documents):
            raise ValueError(f"{len(documents)} documents have {len(ids)} ids. Give each document an id.")
        for at, document in enumerate(documents):
            given = document.id if ids is None else ids[at]
            title = document.metadata.get(self._title_key) if self._title_key else None
            yield StoredDocument(
                document.page_content,
                given or str(uuid.uuid4()),
                document.metadata,
                title if isinstance(title, str) and title.strip() else "",
            )

    def _delete(self, ids: list[str] | None, filter: Filter | None) -> Steps[int]:
        if (ids is None) == (filter is None):
            raise ValueError("Give ids, or a filter. To delete all documents, delete the collection.")
        if filter is not None:
            return (yield from self._operations.delete_matching(_translate(filter)))
        return (yield from self._operations.delete(ids or []))

    def _search(
        self, query: str, k: int, *, filter: Filter | None = None, mode: Mode | None = None, **options: Any
    ) -> Steps[tuple[Hit, ...]]:
        options["filter"] = None if filter is None else _translate(filter)
        answer = yield from self._operations.search(query, k=k, mode=mode or self._mode, **options)
        return () if answer is None else answer.hits

    def _densely(self, options: dict[str, Any]) -> dict[str, Any]:
        mode = options.get("mode") or self._mode
        if mode not in {None, "dense"}:
            raise ValueError(f"Relevance scores are cosines, and mode is {mode!r}. Use mode='dense'.")
        return options | {"mode": "dense"}

    def _search_diverse(
        self, query: str, k: int, fetch_k: int, lambda_mult: float, options: dict[str, Any]
    ) -> Steps[list[Document]]:
        hits = yield from self._search(query, fetch_k, **options)
        if not hits:
            return []
        vectors = yield from self._operations.embed([query, *map(_get_embedded, hits)])
        chosen = maximal_marginal_relevance(np.array(vectors[0]), vectors[1:], lambda_mult, k)
        return [_read_document(hits[at]) for at in chosen]


class SimileRetriever(BaseRetriever):
    """Retrieves documents of a collection, and keeps what an application needs to report clicks.

    The metadata of each document has `search_id`, `score` and `position` (from 1) in addition to its own:
    `client.report(metadata["search_id"], document.id, query=query)`. An unknown collection is an error.
    """

    client: Client
    async_client: AsyncClient | None = None
    """For asynchronous calls. None: threads use `client`."""
    collection: str = "default"
    k: int = 10
    mode: Mode | None = None
    """Search mode. None: the collection's default."""
    filter: dict[str, Any] | None = None
    user: str | None = None
    """Opaque id of the visitor."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Further options of `Client.search`, such as `rerank`."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        return _read_hits(self.client.search(query, **self._build_options(kwargs)))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        options = self._build_options(kwargs)
        if self.async_client is None:
            return _read_hits(await asyncio.to_thread(self.client.search, query, **options))
        return _read_hits(await self.async_client.search(query, **options))

    def _build_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the options of a search. Those that a call gives replace the retriever's own."""
        own = {name: getattr(self, name) for name in ("collection", "k", "mode", "filter", "user")}
        options: dict[str, Any] = own | self.options | dict(given)
        return options | {"filter": None if options["filter"] is None else _translate(options["filter"])}


def _check_embedding(embedding: Embeddings | None, options: dict[str, Any]) -> dict[str, Any]:
    if embedding is None or isinstance(embedding, SimileEmbeddings):
        return options
    raise ValueError(
        f"The service embeds the texts, so {type(embedding).__name__} would not be used. Give embedding=None."
    )


def _refuse_vector(method: str) -> NoReturn:
    raise NotImplementedError(
        f"The service embeds queries, and a vector does not tell its model. Call {method} with the text."
    )


def _read_document(document: StoredDocument | Hit) -> Document:
    title = {"title": document.title} if document.title else {}
    return Document(document.text, id=document.id, metadata=title | dict(document.metadata))


def _get_embedded(hit: Hit) -> str:
    """Returns the text that the service embeds for a document."""
    return f"{hit.title}\n{hit.text}" if hit.title else hit.text


def _read_hits(answer: SearchAnswer) -> list[Document]:
    found = []
    for position, hit in enumerate(answer.hits, 1):
        document = _read_document(hit)
        document.metadata |= {"search_id": answer.search_id, "score": hit.score, "position": position}
        found.append(document)
    return found


def _translate(filter: Filter) -> dict[str, Any]:
    """Returns a filter of LangChain's usual syntax in that of docs/SEARCH.md.

    Other operators stay as they are, and the service refuses those that it does not know.
    """
    if not isinstance(filter, Mapping):
        raise TypeError(f"A filter is a dictionary, not {type(filter).__name__}.")
    conditions: list[dict[str, Any]] = []
    for field, condition in filter.items():
        if field in _JOINS and isinstance(condition, Sequence):
            conditions.append({field: [*map(_translate, condition)]})
        elif field == "$not":
            conditions.append(negate(_translate(condition)))
        elif isinstance(condition, Mapping) and condition:
            conditions += [_translate_operator(field, *each) for each in condition.items()]
        else:
            conditions.append({field: condition})
    return join("$and", conditions) if conditions else {}


def _translate_operator(field: str, operator: str, operand: Any) -> dict[str, Any]:
    if operator == "$eq":
        return {field: operand}
    return exclude(field, operand) if operator == "$nin" else {field: {operator: operand}}

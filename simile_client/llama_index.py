"""LlamaIndex: a vector store and embeddings. The extra `llama-index` installs what they need.

The service embeds texts and queries, so the vector store sends texts. It refuses vectors of nodes and of
queries, unless `ignore_embeddings` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import BaseNode, TextNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from simile_client.calls import Mode
from simile_client.clients import AsyncClient, Client
from simile_client.filters import exclude, join, negate
from simile_client.operations import Operations, Steps
from simile_client.values import Document, Hit, SearchAnswer

_SEARCH_ID = "search_id"
_MODES: dict[VectorStoreQueryMode, Mode | None] = {
    VectorStoreQueryMode.DEFAULT: None,  # the store's mode
    VectorStoreQueryMode.SPARSE: "lexical",
    VectorStoreQueryMode.TEXT_SEARCH: "lexical",
    VectorStoreQueryMode.HYBRID: "hybrid",
    VectorStoreQueryMode.SEMANTIC_HYBRID: "hybrid",
}
_RANGES = {
    FilterOperator.GT: "$gt",
    FilterOperator.GTE: "$gte",
    FilterOperator.LT: "$lt",
    FilterOperator.LTE: "$lte",
}
_UNSUPPORTED = (
    "query_embedding",
    "alpha",
    "hybrid_top_k",
    "sparse_top_k",
    "mmr_threshold",
    "embedding_field",
)


class SimileEmbedding(BaseEmbedding):
    """Embeddings of the active version. Stored vectors are stale after a swap of the model (docs/CLIENTS.md).

    Args:
        client: A client. It stays open.
        async_client: For the asynchronous methods; None: threads use `client`.
        query_prompt_name: Name of the model's prompt for queries, if it has one.
        text_prompt_name: Name of the model's prompt for texts, if it has one.
        options: Further options of BaseEmbedding, such as `embed_batch_size`.
    """

    query_prompt_name: str | None = None
    text_prompt_name: str | None = None
    _operations: Operations = PrivateAttr()

    def __init__(
        self,
        client: Client,
        async_client: AsyncClient | None = None,
        *,
        query_prompt_name: str | None = None,
        text_prompt_name: str | None = None,
        **options: Any,
    ) -> None:
        options = {"model_name": "simile"} | options
        super().__init__(query_prompt_name=query_prompt_name, text_prompt_name=text_prompt_name, **options)
        self._operations = Operations(client, async_client)

    @classmethod
    def class_name(cls) -> str:
        return "SimileEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._operations.run(self._operations.embed([query], self.query_prompt_name))[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        steps = self._operations.embed([query], self.query_prompt_name)
        return (await self._operations.run_async(steps))[0]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return (await self._aget_text_embeddings([text]))[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._operations.run(self._operations.embed(texts, self.text_prompt_name))

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await self._operations.run_async(self._operations.embed(texts, self.text_prompt_name))


class SimileVectorStore(BasePydanticVectorStore):
    """A collection of documents in a Simile service, which embeds texts and queries.

    The text of a node is stored and embedded without its metadata. Nodes of a query have the `search_id` in
    their metadata, which language models and embeddings do not get:
    `client.report(node.metadata["search_id"], node.node_id, query=query)`.

    Args:
        client: A client. It stays open.
        async_client: For the asynchronous methods; None: threads use `client`.
        collection: The collection. The first node creates it.
        mode: Search mode of default queries; None for the collection's default.
        ignore_embeddings: Whether vectors of nodes and queries are ignored. By default they are an error. A
            VectorStoreIndex gives every node a vector, so it needs this, with
            `embed_model=MockEmbedding(embed_dim=1)`.
    """

    stores_text: bool = True
    is_embedding_query: bool = False
    collection: str = "default"
    mode: Mode | None = None
    ignore_embeddings: bool = False
    _client: Client = PrivateAttr()
    _operations: Operations = PrivateAttr()

    def __init__(
        self,
        client: Client,
        async_client: AsyncClient | None = None,
        *,
        collection: str = "default",
        mode: Mode | None = None,
        ignore_embeddings: bool = False,
    ) -> None:
        super().__init__(
            stores_text=True, collection=collection, mode=mode, ignore_embeddings=ignore_embeddings
        )
        self._client = client
        self._operations = Operations(client, async_client, collection)

    @classmethod
    def class_name(cls) -> str:
        return "SimileVectorStore"

    @property
    def client(self) -> Client:
        return self._client

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Stores nodes, and replaces nodes with the same id. Returns the ids."""
        return self._operations.run(self._operations.put(self._build_documents(nodes)))

    async def async_add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        return await self._operations.run_async(self._operations.put(self._build_documents(nodes)))

    def get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        return [*map(_read_node, self._operations.run(self._list(node_ids, filters)))]

    async def aget_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        return [*map(_read_node, await self._operations.run_async(self._list(node_ids, filters)))]

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Deletes the nodes of a source document."""
        self._operations.run(self._operations.delete_matching({"ref_doc_id": ref_doc_id}))

    async def adelete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        await self._operations.run_async(self._operations.delete_matching({"ref_doc_id": ref_doc_id}))

    def delete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **delete_kwargs: Any,
    ) -> None:
        """Deletes the nodes with these ids that match the filters.

        Raises:
            ValueError: Neither is given. `clear` deletes all nodes.
        """
        self._operations.run(self._delete(node_ids, filters))

    async def adelete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **delete_kwargs: Any,
    ) -> None:
        await self._operations.run_async(self._delete(node_ids, filters))

    def clear(self) -> None:
        """Deletes all documents of the collection."""
        self._operations.run(self._operations.delete_all())

    async def aclear(self) -> None:
        await self._operations.run_async(self._operations.delete_all())

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Searches with the text of a query.

        Args:
            query: The query.
            kwargs: Further options of `Client.search`, such as `user`.

        Raises:
            ValueError: The query has no text, or something that the service does not support.
        """
        return self._operations.run(self._search(query, kwargs))

    async def aquery(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        return await self._operations.run_async(self._search(query, kwargs))

    def _build_documents(self, nodes: Sequence[BaseNode]) -> Iterable[Document]:
        for node in nodes:
            if node.embedding is not None and not self.ignore_embeddings:
                raise ValueError(
                    f"Node {node.node_id!r} has a vector, and the service embeds the text itself. Set "
                    "ignore_embeddings=True, or add nodes without embeddings."
                )
            metadata = node_to_metadata_dict(node, remove_text=True, flat_metadata=False)
            yield Document(node.get_content(), node.node_id, metadata)

    def _list(self, node_ids: list[str] | None, filters: MetadataFilters | None) -> Steps[list[Document]]:
        if node_ids is not None and filters is None:
            return (yield from self._operations.get(node_ids))
        return (yield from self._operations.list_documents(_select(node_ids, filters)))

    def _delete(self, node_ids: list[str] | None, filters: MetadataFilters | None) -> Steps[int]:
        if node_ids is not None and filters is None:
            return (yield from self._operations.delete(node_ids))
        selected = _select(node_ids, filters)
        if selected is None:
            raise ValueError("Give node_ids or filters. clear() deletes all nodes.")
        return (yield from self._operations.delete_matching(selected))

    def _search(self, query: VectorStoreQuery, options: dict[str, Any]) -> Steps[VectorStoreQueryResult]:
        _check_query(query, ignore_embeddings=self.ignore_embeddings)
        sources = {"ref_doc_id": {"$in": query.doc_ids}} if query.doc_ids else None
        # The retriever of an index gives an empty list of ids, which selects nothing in particular.
        selected = _select(query.node_ids or None, query.filters)
        given = [each for each in (selected, sources) if each]
        answer = yield from self._operations.search(
            query.query_str or "",
            k=query.similarity_top_k,
            mode=_MODES[query.mode] or self.mode,
            filter=join("$and", given) if given else None,
            **options,
        )
        return _read_answer(answer)


def _check_query(query: VectorStoreQuery, *, ignore_embeddings: bool) -> None:
    """Raises ValueError if a query has no text, or something that the service does not support."""
    if not query.query_str:
        raise ValueError("The query has no text. The service embeds queries; set query_str.")
    if query.mode not in _MODES:
        raise ValueError(f"Simile has no query mode {query.mode.value!r}. Use one of {_list_values(_MODES)}.")
    for name in _UNSUPPORTED:
        if getattr(query, name) is None or (name == "query_embedding" and ignore_embeddings):
            continue
        advice = ", or set ignore_embeddings=True" if name == "query_embedding" else ""
        raise ValueError(f"{name} is not supported: the service ranks by the text. Leave it out{advice}.")


def _read_node(document: Document | Hit) -> BaseNode:
    metadata = dict(document.metadata)
    if "_node_content" in metadata:
        return metadata_dict_to_node(metadata, text=document.text)
    title = {"title": document.title} if document.title else {}
    return TextNode(id_=document.id or "", text=document.text, metadata=title | metadata)


def _read_answer(answer: SearchAnswer | None) -> VectorStoreQueryResult:
    if answer is None:
        return VectorStoreQueryResult(nodes=[], similarities=[], ids=[])
    nodes = [*map(_read_node, answer.hits)]
    for node in nodes:
        node.metadata[_SEARCH_ID] = answer.search_id
        node.excluded_embed_metadata_keys.append(_SEARCH_ID)
        node.excluded_llm_metadata_keys.append(_SEARCH_ID)
    return VectorStoreQueryResult(
        nodes=nodes,
        similarities=[hit.score for hit in answer.hits],
        ids=[hit.id for hit in answer.hits],
    )


def _select(ids: Sequence[str] | None, filters: MetadataFilters | None) -> dict[str, Any] | None:
    """Returns the filter for documents with these ids that match the filters. None for all documents."""
    conditions = [] if ids is None else [{"$ids": [*ids]}]
    if filters is not None and filters.filters:
        conditions.append(_translate(filters))
    return join("$and", conditions) if conditions else None


def _translate(filters: MetadataFilters) -> dict[str, Any]:
    """Returns filters in the syntax of docs/SEARCH.md.

    Raises:
        ValueError: The service does not have the operator.
    """
    parts = [
        _translate(part) if isinstance(part, MetadataFilters) else _translate_filter(part)
        for part in filters.filters
    ]
    if filters.condition == FilterCondition.OR:
        return join("$or", parts)
    if filters.condition == FilterCondition.NOT:
        return join("$and", [*map(negate, parts)])
    return join("$and", parts)


def _translate_filter(filter: MetadataFilter) -> dict[str, Any]:
    key, operand = filter.key, filter.value
    if filter.operator in _RANGES:
        return {key: {_RANGES[filter.operator]: operand}}
    build = _OPERATORS.get(filter.operator)
    if build is None:
        there_are = _list_values([*_OPERATORS, *_RANGES])
        raise ValueError(f"Simile has no filter operator {filter.operator.value!r}. It has {there_are}.")
    return build(key, operand)


def _list_values(members: Iterable[FilterOperator | VectorStoreQueryMode]) -> str:
    return ", ".join(member.value for member in members)


# An array matches if one of its members does.
_OPERATORS: dict[FilterOperator, Callable[[str, Any], dict[str, Any]]] = {
    FilterOperator.EQ: lambda key, value: {key: value},
    FilterOperator.NE: lambda key, value: {key: {"$ne": value}},
    FilterOperator.IN: lambda key, value: {key: {"$in": value}},
    FilterOperator.NIN: exclude,
    FilterOperator.ANY: lambda key, value: {key: {"$in": value}},
    FilterOperator.ALL: lambda key, value: join("$and", [{key: each} for each in value]),
    FilterOperator.CONTAINS: lambda key, value: {key: value},
    FilterOperator.IS_EMPTY: lambda key, _: {"$or": [{key: {"$exists": False}}, {key: None}]},
}

"""`simile_client.llama_index`: the methods of LlamaIndex's base classes, which has no standard tests."""

from typing import Any

import numpy as np
import pytest
from llama_index.core import MockEmbedding, StorageContext, VectorStoreIndex
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)

from simile_client import AsyncClient, Client, Document, SimileError
from simile_client.llama_index import SimileEmbedding, SimileVectorStore
from tests.clients import page
from tests.clients.running import Running

QUERY = "paper comes out white"


def node(id: str, text: str, source: str, **metadata: Any) -> TextNode:
    related = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=source)}
    return TextNode(id_=id, text=text, metadata=metadata, relationships=related)


NODES = [
    node("a", "The printer prints blank pages.", "mail-1", n=1, tags=["printer", "paper"], empty=None),
    node("b", "The printer is out of paper.", "mail-1", n=2, tags=["paper"]),
    node("c", "Invoices arrive without the order number.", "mail-2", n=3, empty="no"),
    node("d", "The train to the coast was late.", "mail-3"),
]


@pytest.fixture
def store(clients: tuple[Client, AsyncClient], collection: str) -> SimileVectorStore:
    store = SimileVectorStore(*clients, collection=collection)
    assert store.add(NODES) == ["a", "b", "c", "d"]
    return store


def ids(nodes: Any) -> str:
    return "".join(sorted(each.node_id for each in nodes))


def one(operator: FilterOperator, value: Any, key: str = "n") -> MetadataFilters:
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=operator)])


def joined(condition: FilterCondition, *filters: MetadataFilters) -> MetadataFilters:
    return MetadataFilters(filters=[*filters], condition=condition)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (MetadataFilters(filters=[]), "abcd"),
        (one(FilterOperator.EQ, 1), "a"),
        (one(FilterOperator.NE, 1), "bcd"),
        (one(FilterOperator.GT, 1), "bc"),
        (one(FilterOperator.GTE, 2), "bc"),
        (one(FilterOperator.LT, 2), "a"),
        (one(FilterOperator.LTE, 2), "ab"),
        (one(FilterOperator.IN, [1, 3]), "ac"),
        (one(FilterOperator.NIN, [1, 3]), "bd"),
        (one(FilterOperator.CONTAINS, "paper", "tags"), "ab"),
        (one(FilterOperator.ANY, ["printer", "none"], "tags"), "a"),
        (one(FilterOperator.ALL, ["printer", "paper"], "tags"), "a"),
        (one(FilterOperator.IS_EMPTY, None, "empty"), "abd"),
        (joined(FilterCondition.AND, one(FilterOperator.GT, 1), one(FilterOperator.NE, 3)), "b"),
        (joined(FilterCondition.OR, one(FilterOperator.EQ, 1), one(FilterOperator.EQ, 3)), "ac"),
        (joined(FilterCondition.NOT, one(FilterOperator.EQ, 1), one(FilterOperator.IN, [3])), "bd"),
    ],
)
def test_every_filter_operator_means_what_llama_index_means_by_it(
    store: SimileVectorStore, filters: MetadataFilters, expected: str
) -> None:
    assert ids(store.get_nodes(filters=filters)) == expected
    found = store.query(VectorStoreQuery(query_str=QUERY, similarity_top_k=10, filters=filters))
    assert ids(found.nodes) == expected


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        (one(FilterOperator.TEXT_MATCH, "a"), "no filter operator 'text_match'. It has ==, !=, in"),
        (joined(FilterCondition.NOT, one(FilterOperator.GT, 1)), "Use the opposite comparison"),
        (one(FilterOperator.NIN, []), "excludes an empty list"),
    ],
)
def test_a_filter_that_does_not_exist_is_refused(
    store: SimileVectorStore, filters: MetadataFilters, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        store.get_nodes(filters=filters)


def test_nodes_come_back_as_they_were_and_are_replaced_and_deleted(store: SimileVectorStore) -> None:
    assert store.get_nodes(["c", "none", "a"]) == [NODES[2], NODES[0]]
    changed = node("a", "The printer burns.", "mail-1", n=7)
    store.add([changed])
    assert store.get_nodes(["a"]) == [changed]
    store.delete("mail-1")
    assert ids(store.get_nodes()) == "cd"
    store.delete_nodes(["c", "d"], one(FilterOperator.EQ, 3))
    assert ids(store.get_nodes()) == "d"
    store.delete_nodes(["none"])
    with pytest.raises(ValueError, match=r"clear\(\) deletes all nodes"):
        store.delete_nodes()
    assert ids(store.get_nodes()) == "d"
    store.clear()
    assert store.get_nodes() == []


@pytest.mark.parametrize(
    ("mode", "service_mode"),
    [("default", "hybrid"), ("sparse", "lexical"), ("text_search", "lexical"), ("hybrid", "hybrid")],
)
def test_a_query_finds_what_a_search_finds(
    store: SimileVectorStore, open_service: Running, mode: str, service_mode: str
) -> None:
    query = VectorStoreQuery(query_str="blank paper", similarity_top_k=2, mode=VectorStoreQueryMode(mode))
    found = store.query(query)
    path = f"/collections/{store.collection}/search"
    hits = open_service.get(path, q="blank paper", k=2, mode=service_mode)["hits"]
    assert (found.ids, found.similarities) == ([hit["id"] for hit in hits], [hit["score"] for hit in hits])
    assert [each.get_content() for each in found.nodes or ()] == [hit["text"] for hit in hits]


def test_a_query_selects_by_sources_and_nodes(store: SimileVectorStore) -> None:
    query = VectorStoreQuery(query_str=QUERY, similarity_top_k=10, doc_ids=["mail-1", "mail-2"])
    assert ids(store.query(query).nodes) == "abc"
    query.node_ids = ["a", "d"]
    assert ids(store.query(query).nodes) == "a"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"query_str": None, "query_embedding": [0.1]}, "The query has no text"),
        ({"query_embedding": [0.1]}, "set ignore_embeddings=True"),
        ({"alpha": 0.5}, "alpha is not supported"),
        ({"mode": VectorStoreQueryMode.MMR}, "no query mode 'mmr'. Use one of default, sparse"),
    ],
)
def test_what_a_query_cannot_have_is_refused(
    store: SimileVectorStore, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        store.query(VectorStoreQuery(**({"query_str": QUERY} | options)))


def test_vectors_are_refused_or_ignored_as_told(store: SimileVectorStore, clients: Any) -> None:
    given = TextNode(id_="e", text="A new text.", embedding=[0.1])
    with pytest.raises(ValueError, match=r"Node 'e' has a vector.*ignore_embeddings=True"):
        store.add([given])
    ignoring = SimileVectorStore(clients[0], collection=store.collection, ignore_embeddings=True)
    assert ignoring.add([given]) == ["e"]
    query = VectorStoreQuery(query_str="A new text.", query_embedding=[0.1], similarity_top_k=1)
    assert ignoring.query(query).ids == ["e"]


async def test_the_asynchronous_methods_give_the_same(
    store: SimileVectorStore, clients: Any, collection: str
) -> None:
    query = VectorStoreQuery(query_str=QUERY, similarity_top_k=3)
    assert (await store.aquery(query)).ids == store.query(query).ids
    assert await store.aget_nodes(["b"]) == [NODES[1]]
    assert await store.async_add([node("e", "A new text.", "mail-9")]) == ["e"]
    await store.adelete("mail-9")
    await store.adelete_nodes(["a"])
    assert ids(await store.aget_nodes()) == "bcd"
    await store.aclear()
    assert store.get_nodes() == []
    with pytest.raises(SimileError, match="k must be between"):
        await store.aquery(VectorStoreQuery(query_str=QUERY, similarity_top_k=0))


def test_an_index_inserts_retrieves_and_deletes(clients: Any, collection: str, open_service: Running) -> None:
    store = SimileVectorStore(*clients, collection=collection, ignore_embeddings=True)
    context = StorageContext.from_defaults(vector_store=store)
    index = VectorStoreIndex(NODES, storage_context=context, embed_model=MockEmbedding(embed_dim=1))
    [best] = index.as_retriever(similarity_top_k=1).retrieve("blank pages")
    assert (best.node_id, best.text) == ("a", NODES[0].text)
    assert best.metadata["n"] == 1
    assert best.metadata["search_id"] not in best.get_content("llm") + best.get_content("embed")
    assert clients[0].report(best.metadata["search_id"], best.node_id, collection=collection) == 1
    [event] = open_service.get(f"/collections/{collection}/events")["events"]
    assert (event["query"], event["id"], event["position"]) == ("blank pages", "a", 1)
    index.delete_ref_doc("mail-1")
    assert ids(store.get_nodes()) == "cd"


def test_documents_of_others_are_nodes(clients: Any, collection: str) -> None:
    clients[0].put([Document("A text.", "1", {"n": 1}, "A title")], collection=collection)
    [found] = SimileVectorStore(clients[0], collection=collection).get_nodes()
    assert (found.node_id, found.get_content(), found.metadata) == (
        "1",
        "A text.",
        {"n": 1, "title": "A title"},
    )


async def test_embeddings_are_those_of_embed(clients: Any, open_service: Running) -> None:
    texts = [f"Text number {number} of some." for number in range(130)]
    model, expected = SimileEmbedding(*clients, embed_batch_size=100), open_service.embed([*texts, QUERY])
    np.testing.assert_allclose(model.get_text_embedding_batch(texts), expected[:-1], atol=1e-6)
    np.testing.assert_allclose(await model.aget_text_embedding_batch(texts), expected[:-1], atol=1e-6)
    np.testing.assert_allclose(model.get_query_embedding(QUERY), expected[-1], atol=1e-6)
    np.testing.assert_allclose(await model.aget_query_embedding(QUERY), expected[-1], atol=1e-6)
    np.testing.assert_allclose(model.get_text_embedding(texts[0]), expected[0], atol=1e-6)
    with pytest.raises(SimileError, match="The model has no prompt 'query'"):
        SimileEmbedding(clients[0], query_prompt_name="query").get_query_embedding(QUERY)


def test_the_snippet_of_the_page_runs(open_service: Running) -> None:
    names = page.run("A LlamaIndex vector store", open_service)
    assert names["nodes"][0].node_id == "ticket-1"

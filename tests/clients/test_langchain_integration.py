"""`simile_client.langchain`: LangChain's standard tests, and what they do not ask."""

import asyncio
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.indexing import InMemoryRecordManager, index
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import (
    EmbeddingsIntegrationTests,
    RetrieversIntegrationTests,
    VectorStoreIntegrationTests,
)
from langchain_tests.unit_tests import EmbeddingsUnitTests

from simile_client import AsyncClient, Client, SimileError
from simile_client.langchain import SimileEmbeddings, SimileRetriever, SimileVectorStore
from tests.clients import page
from tests.clients.running import Running

QUERY = "how do I get my money back"


class TestVectorStore(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, clients: tuple[Client, AsyncClient], collection: str) -> SimileVectorStore:
        return SimileVectorStore(*clients, collection=collection)


class TestVectorStoreInThreads(VectorStoreIntegrationTests):
    """Asynchronous methods without a client for asyncio."""

    @pytest.fixture
    def vectorstore(self, clients: tuple[Client, AsyncClient], collection: str) -> SimileVectorStore:
        return SimileVectorStore(clients[0], collection=collection)


class Arguments:
    """Has the parameters of an integration that the standard tests create."""

    @pytest.fixture(autouse=True)
    def _with_clients(self, clients: tuple[Client, AsyncClient]) -> None:
        self.parameters = dict(zip(("client", "async_client"), clients, strict=True))


class TestEmbeddings(Arguments, EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self) -> type[SimileEmbeddings]:
        return SimileEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return self.parameters


class TestEmbeddingsUnits(Arguments, EmbeddingsUnitTests):
    @property
    def embeddings_class(self) -> type[SimileEmbeddings]:
        return SimileEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return self.parameters


class TestRetriever(Arguments, RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return SimileRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return self.parameters

    @property
    def retriever_query_example(self) -> str:
        return QUERY


@pytest.fixture
def store(clients: tuple[Client, AsyncClient], collection: str) -> SimileVectorStore:
    store = SimileVectorStore(*clients, collection=collection)
    store.add_documents(
        [
            Document("A refund takes five working days.", metadata={"n": 1, "tags": ["money"]}),
            Document("Refunds take five working days.", metadata={"n": 2, "title": "Money back"}),
            Document("The printer prints blank pages.", metadata={"n": 3}),
            Document("The train to the coast was late.", metadata={}),
        ],
        ids=["a", "b", "c", "d"],
    )
    return store


def found(store: SimileVectorStore, filter: dict[str, Any]) -> list[str]:
    return sorted(str(document.id) for document in store.similarity_search("a", k=10, filter=filter))


@pytest.mark.parametrize(
    ("filter", "ids"),
    [
        ({}, "abcd"),
        ({"n": 1}, "a"),
        ({"n": {"$eq": 1}}, "a"),
        ({"n": {"$gt": 1, "$lt": 3}}, "b"),
        ({"n": {"$nin": [1, 2]}}, "cd"),
        ({"$or": [{"n": {"$eq": 1}}, {"n": {"$gte": 3}}]}, "ac"),
        ({"$and": [{"n": {"$gte": 1}}, {"$not": {"n": 2, "title": "Money back"}}]}, "ac"),
        ({"$not": {"$or": [{"n": {"$in": [1, 2]}}, {"n": {"$exists": False}}]}}, "c"),
        ({"tags": "money"}, "a"),
    ],
)
def test_a_filter_means_what_langchain_means_by_it(
    store: SimileVectorStore, filter: dict[str, Any], ids: str
) -> None:
    assert found(store, filter) == [*ids]


@pytest.mark.parametrize(
    ("filter", "error", "message"),
    [
        ({"n": {"$like": "a"}}, SimileError, r"unknown operator '\$like'. Allowed are \$in"),
        ({"$not": {"n": {"$gt": 1}}}, ValueError, "Use the opposite comparison"),
        ({"$not": {"$ids": ["a"]}}, ValueError, r"cannot negate '\$ids'"),
        ({"n": {"$nin": []}}, ValueError, "excludes an empty list"),
        (lambda document: True, TypeError, "A filter is a dictionary, not function"),
    ],
)
def test_a_filter_that_does_not_exist_is_refused(
    store: SimileVectorStore, filter: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        store.similarity_search("a", filter=filter)


def test_documents_come_back_as_they_were(store: SimileVectorStore) -> None:
    [document] = store.get_by_ids(["b"])
    metadata = {"n": 2, "title": "Money back"}
    assert document == Document("Refunds take five working days.", id="b", metadata=metadata)
    [first] = store.similarity_search("Money back", k=1, mode="lexical")
    assert first == document
    assert [each.id for each in store.get_by_ids(["c", "none", "a", "c"])] == ["c", "a"]
    [id] = store.add_texts(["The printer prints blank pages."])
    assert len(id) == 36
    assert len(found(store, {})) == 5
    with pytest.raises(ValueError, match="2 documents have 1 ids"):
        store.add_documents([Document("a"), Document("b")], ids=["a"])


def test_many_documents_and_ids_take_several_requests(clients: Any, collection: str) -> None:
    store = SimileVectorStore(*clients, collection=collection)
    ids = [f"{at:03}-é{'x' * 120}" for at in range(150)]
    assert store.add_documents([Document(f"Text {at}.") for at in range(150)], ids=ids) == ids
    assert [each.id for each in store.get_by_ids(ids[::-1])] == ids[::-1]
    assert store.delete(ids[:-1])
    assert found(store, {}) == ids[-1:]


def test_documents_are_deleted_by_a_filter_and_never_all(store: SimileVectorStore) -> None:
    assert store.delete(filter={"n": {"$nin": [3]}})
    assert found(store, {}) == ["c"]
    for ids, filter in ((None, None), (["c"], {"n": 3})):
        with pytest.raises(ValueError, match="To delete all documents, delete the collection"):
            store.delete(ids, filter=filter)
    assert asyncio.run(SimileVectorStore(store._operations._client).adelete([])) is True
    assert found(store, {}) == ["c"]


def test_an_index_of_langchain_stores_and_deletes_what_changed(clients: Any, collection: str) -> None:
    store = SimileVectorStore(clients[0], collection=collection)
    records = InMemoryRecordManager(collection)
    records.create_schema()
    documents = [Document(f"Text {at}.", metadata={"source": at}) for at in range(3)]

    def run(documents: list[Document]) -> tuple[int, int, int]:
        done = index(documents, records, store, cleanup="full", key_encoder="blake2b")
        return done["num_added"], done["num_skipped"], done["num_deleted"]

    assert run(documents) == (3, 0, 0)
    assert run([*documents[1:], Document("Another text.")]) == (1, 2, 1)
    texts = {document.page_content for document in store.similarity_search("text", k=10)}
    assert texts == {"Text 1.", "Text 2.", "Another text."}


def test_scores_are_those_of_the_search(store: SimileVectorStore, open_service: Running) -> None:
    path = f"/collections/{store._operations.collection}/search"
    for mode in ("dense", "lexical", "hybrid"):
        hits = open_service.get(path, q=QUERY, k=4, mode=mode)["hits"]
        scored = store.similarity_search_with_score(QUERY, mode=mode)
        assert [(each.id, score) for each, score in scored] == [(hit["id"], hit["score"]) for hit in hits]
    cosines = {hit["id"]: hit["score"] for hit in open_service.get(path, q=QUERY, mode="dense")["hits"]}
    relevant = store.similarity_search_with_relevance_scores(QUERY, k=4)
    assert {each.id: score for each, score in relevant} == {id: max(0, cosines[id]) for id in cosines}
    best = store.as_retriever(
        search_type="similarity_score_threshold", search_kwargs={"score_threshold": 0.4}
    )
    assert {each.id for each in best.invoke(QUERY)} == {id for id in cosines if cosines[id] >= 0.4} == {*"ab"}
    with pytest.raises(ValueError, match="mode is 'hybrid'"):
        store.similarity_search_with_relevance_scores(QUERY, mode="hybrid")


def test_diverse_hits_are_those_of_their_vectors(store: SimileVectorStore) -> None:
    plain = store.similarity_search(QUERY, k=2, mode="dense")
    assert {each.id for each in plain} == {"a", "b"}
    same = store.max_marginal_relevance_search(QUERY, k=2, lambda_mult=1, mode="dense")
    assert [each.id for each in same] == [each.id for each in plain]
    diverse = store.max_marginal_relevance_search(QUERY, k=2, lambda_mult=0.1)
    assert diverse[0].id == plain[0].id
    assert diverse[1].id in {"c", "d"}
    assert store.max_marginal_relevance_search(QUERY, filter={"n": 9}) == []


def test_vectors_are_refused_and_named(store: SimileVectorStore, collection: str) -> None:
    with pytest.raises(NotImplementedError, match="Call similarity_search with the text"):
        store.similarity_search_by_vector([0.1])
    with pytest.raises(NotImplementedError, match="Call max_marginal_relevance_search with the text"):
        store.max_marginal_relevance_search_by_vector([0.1])
    client = store._operations._client
    with pytest.raises(ValueError, match="DeterministicFakeEmbedding would not be used"):
        SimileVectorStore.from_texts(["a"], DeterministicFakeEmbedding(size=3), client=client)
    made = SimileVectorStore.from_texts(
        ["A new text."], SimileEmbeddings(client), [{"n": 7}], ids=["e"], client=client, collection=collection
    )
    assert found(made, {"n": 7}) == ["e"]


async def test_the_asynchronous_methods_give_the_same(store: SimileVectorStore) -> None:
    assert await store.asimilarity_search(QUERY) == store.similarity_search(QUERY)
    scored = store.similarity_search_with_score(QUERY)
    assert await store.asimilarity_search_with_score(QUERY) == scored
    relevant = store.similarity_search_with_relevance_scores(QUERY)
    assert await store.asimilarity_search_with_relevance_scores(QUERY) == relevant
    diverse = store.max_marginal_relevance_search(QUERY, k=2)
    assert await store.amax_marginal_relevance_search(QUERY, k=2) == diverse
    with pytest.raises(SimileError, match="k must be between"):
        await store.asimilarity_search(QUERY, k=0)
    made = await SimileVectorStore.afrom_texts(["a"], client=store._operations._client, collection="afrom")
    assert len(await made.asimilarity_search("a")) == 1


def test_embeddings_are_those_of_embed(clients: Any, open_service: Running) -> None:
    texts = [f"Text number {number} of some." for number in range(130)]
    embeddings, expected = SimileEmbeddings(*clients), open_service.embed([*texts, QUERY])
    np.testing.assert_allclose(embeddings.embed_documents(texts), expected[:-1], atol=1e-6)
    np.testing.assert_allclose(embeddings.embed_query(QUERY), expected[-1], atol=1e-6)
    with pytest.raises(SimileError, match="The model has no prompt 'query'"):
        SimileEmbeddings(clients[0], query_prompt_name="query").embed_query(QUERY)


def test_a_click_on_a_retrieved_document_is_stored(clients: Any, open_service: Running) -> None:
    retriever = SimileRetriever(
        client=clients[0], k=3, filter={"topic": {"$eq": "support"}}, user="visitor-7", mode="dense"
    )
    documents = retriever.invoke(QUERY, k=2)
    hits = open_service.get("/search", q=QUERY, k=2, mode="dense", filter='{"topic": "support"}')["hits"]
    assert [(each.id, each.page_content) for each in documents] == [(hit["id"], hit["text"]) for hit in hits]
    for position, (document, hit) in enumerate(zip(documents, hits, strict=True), 1):
        metadata = dict(document.metadata)
        search_id = metadata.pop("search_id")
        assert metadata == hit["metadata"] | {"score": hit["score"], "position": position}
    assert clients[0].report(search_id, str(documents[1].id)) == 1
    events = open_service.get("/events")["events"]
    [event] = [event for event in events if event["search_id"] == search_id]
    assert (event["id"], event["query"], event["position"]) == (hits[1]["id"], QUERY, 2)
    assert event["user"]


def test_an_unknown_collection_is_an_error_for_a_retriever(clients: Any) -> None:
    with pytest.raises(SimileError, match="There is no collection 'unknown'"):
        SimileRetriever(client=clients[0], collection="unknown").invoke(QUERY)
    assert SimileVectorStore(clients[0], collection="unknown").similarity_search(QUERY) == []


def test_another_error_404_is_not_an_empty_collection(open_service: Running) -> None:
    with (
        Client(f"{open_service.url}/unknown") as client,
        pytest.raises(SimileError, match="/unknown/collections"),
    ):
        SimileVectorStore(client, collection="unknown").similarity_search(QUERY)


def test_the_snippet_of_the_page_runs(open_service: Running) -> None:
    names = page.run("A LangChain vector store", open_service)
    assert names["documents"][0].id == "ticket-1"

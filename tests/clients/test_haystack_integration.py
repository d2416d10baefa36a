"""`simile_client.haystack`: Haystack's standard tests of document stores, and what they do not ask."""

import asyncio
import uuid
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from haystack import Document, Pipeline
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.errors import FilterError
from haystack.testing.document_store import (
    CountDocumentsByFilterTest,
    DeleteAllTest,
    DeleteByFilterTest,
    DocumentStoreBaseTests,
)
from haystack.testing.document_store_async import (
    CountDocumentsAsyncTest,
    DeleteAllAsyncTest,
    DeleteByFilterAsyncTest,
    DeleteDocumentsAsyncTest,
    FilterDocumentsAsyncTest,
    WriteDocumentsAsyncTest,
)
from haystack.utils import Secret

from simile_client import SimileError
from simile_client.haystack import (
    SimileDocumentEmbedder,
    SimileDocumentStore,
    SimileRetriever,
    SimileTextEmbedder,
)
from tests.clients import page
from tests.clients.running import WRITER, Running


class Stores:
    """Has the store of the standard tests, which ignores their embeddings."""

    @pytest.fixture
    def document_store(self, open_service: Running, collection: str) -> SimileDocumentStore:
        return SimileDocumentStore(open_service.url, None, collection, ignore_embeddings=True)

    def assert_documents_are_equal(self, received: list[Document], expected: list[Document]) -> None:
        plain = (replace(document, embedding=None) for document in expected)
        assert received == sorted(plain, key=lambda document: str(document.id))


class TestDocumentStore(
    Stores, CountDocumentsByFilterTest, DeleteAllTest, DeleteByFilterTest, DocumentStoreBaseTests
):
    def test_write_documents(self, document_store: SimileDocumentStore) -> None:
        first, second = Document(id="1", content="first"), Document(id="1", content="second")
        assert document_store.write_documents([first]) == 1
        assert document_store.write_documents([second]) == 1
        assert document_store.filter_documents() == [second]


class TestDocumentStoreAsync(
    Stores,
    CountDocumentsAsyncTest,
    DeleteAllAsyncTest,
    DeleteByFilterAsyncTest,
    DeleteDocumentsAsyncTest,
    FilterDocumentsAsyncTest,
    WriteDocumentsAsyncTest,
):
    async def test_write_documents_async(self, document_store: SimileDocumentStore) -> None:
        first, second = Document(id="1", content="first"), Document(id="1", content="second")
        assert await document_store.write_documents_async([first]) == 1
        assert await document_store.write_documents_async([second]) == 1
        assert await document_store.filter_documents_async() == [second]


TICKETS = [
    Document(id="a", content="The printer prints blank pages.", meta={"n": 1, "tags": ["printer"]}),
    Document(id="b", content="Invoices arrive without the order number.", meta={"n": 2}),
    Document(id="c", content="The train was late.", meta={}),
]


@pytest.fixture
def store(open_service: Running, collection: str) -> SimileDocumentStore:
    store = SimileDocumentStore(open_service.url, None, collection)
    assert store.write_documents(TICKETS) == 3
    return store


def condition(operator: str, value: object, field: str = "meta.n") -> dict[str, Any]:
    return {"field": field, "operator": operator, "value": value}


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        (condition("in", [1, None]), "ac"),
        (condition("not in", [1, None]), "b"),
        (condition("in", ["a", "c"], "id"), "ac"),
        (condition("==", "b", "id"), "b"),
        (condition("==", "printer", "tags"), "a"),
        ({"operator": "NOT", "conditions": [condition("==", 1), condition("!=", 2)]}, "bc"),
    ],
)
def test_filters_mean_what_haystack_means_by_them(
    store: SimileDocumentStore, filters: dict[str, Any], ids: str
) -> None:
    assert [document.id for document in store.filter_documents(filters)] == [*ids]


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        (condition("like", "a"), "Unknown operator 'like'. It is one of ==, !=, in"),
        (condition("==", "a", "content"), "content cannot be filtered"),
        (condition(">", "a", "id"), "not 'a'"),
        (condition("!=", "a", "id"), "id is filtered by == and in only"),
        ({"operator": "XOR", "conditions": [condition("==", 1)]}, "joined by AND, OR and NOT"),
        ({"operator": "AND", "conditions": []}, "a list of at least one filter"),
        ({"operator": "NOT", "conditions": [condition(">", 1)]}, "Use the opposite comparison"),
    ],
)
def test_filters_that_do_not_exist_are_refused(
    store: SimileDocumentStore, filters: dict[str, Any], message: str
) -> None:
    with pytest.raises(FilterError, match=message):
        store.filter_documents(filters)


def test_documents_that_simile_cannot_store_as_they_are_are_refused(store: SimileDocumentStore) -> None:
    with pytest.raises(ValueError, match=r"'d' has an embedding.*ignore_embeddings=True"):
        store.write_documents([Document(id="d", content="a", embedding=[0.1])])
    with pytest.raises(ValueError, match="'d' has no content"):
        store.write_documents([Document(id="d")])
    with pytest.raises(DuplicateDocumentError, match=r"'a'\. Nothing was written"):
        store.write_documents([Document(id="d", content="a"), TICKETS[0]], DuplicatePolicy.FAIL)
    twice = [Document(id="d", content="first"), Document(id="d", content="second"), TICKETS[0]]
    assert store.write_documents(twice, DuplicatePolicy.SKIP) == 1
    assert [each.content for each in store.filter_documents(condition("==", "d", "id"))] == ["first"]


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_pipeline_retrieves_and_reports_a_click(
    store: SimileDocumentStore, open_service: Running, clients: Any, asynchronous: bool
) -> None:
    pipeline = Pipeline()
    pipeline.add_component("retriever", SimileRetriever(store, filters=condition("<", 3), top_k=2))
    pipeline = Pipeline.from_dict(pipeline.to_dict(), allowed_modules=["simile_client.haystack"])
    inputs = {"retriever": {"query": "paper comes out white", "user": "visitor-7"}}
    result = await pipeline.run_async(inputs) if asynchronous else pipeline.run(inputs)
    documents = result["retriever"]["documents"]
    path = f"/collections/{store.collection}"
    hits = open_service.get(f"{path}/search", q="paper comes out white", k=2, filter='{"n": {"$lt": 3}}')
    assert [(each.id, each.score) for each in documents] == [
        (hit["id"], hit["score"]) for hit in hits["hits"]
    ]
    search_id = documents[0].meta["search_id"]
    assert clients[0].report(search_id, documents[0].id, collection=store.collection) == 1
    [event] = open_service.get(f"{path}/events")["events"]
    assert (event["search_id"], event["id"], event["position"]) == (search_id, "a", 1)


async def test_embedders_give_the_vectors_of_embed(open_service: Running) -> None:
    text, documents = (
        SimileTextEmbedder(open_service.url, None),
        SimileDocumentEmbedder(open_service.url, None),
    )
    expected = open_service.embed([str(document.content) for document in TICKETS])
    embedded = documents.run(TICKETS)["documents"]
    np.testing.assert_allclose([each.embedding for each in embedded], expected, atol=1e-6)
    assert [replace(each, embedding=None) for each in embedded] == TICKETS
    assert (await documents.run_async(TICKETS))["documents"] == embedded
    one = str(TICKETS[0].content)
    np.testing.assert_allclose(text.run(one)["embedding"], expected[0], atol=1e-6)
    assert await text.run_async(one) == text.run(one)
    with pytest.raises(ValueError, match="has no content to embed"):
        documents.run([Document(id="d")])
    with pytest.raises(SimileError, match="The model has no prompt 'query'"):
        SimileTextEmbedder(open_service.url, None, "query").run("a")


def test_each_event_loop_has_a_client(store: SimileDocumentStore) -> None:
    for _ in range(3):
        assert asyncio.run(store.count_documents_async()) == 3
    assert len(store._connection._async_clients) == 1, "clients of closed loops are dropped"


def test_a_saved_store_names_the_variable_of_its_key(
    keyed_service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMILE_API_KEY", WRITER)
    store = SimileDocumentStore(keyed_service.url, collection=uuid.uuid4().hex)
    saved = store.to_dict()
    assert WRITER not in str(saved)
    again = SimileDocumentStore.from_dict(saved)
    assert again.write_documents(TICKETS) == 3
    assert store.count_documents() == 3
    refused = SimileDocumentStore(keyed_service.url, Secret.from_token("unknown"))
    with pytest.raises(SimileError) as error:
        refused.count_documents()
    assert error.value.status == 401
    with pytest.raises(ValueError, match="serialize"):
        refused.to_dict()


def test_the_snippet_of_the_page_runs(open_service: Running) -> None:
    names = page.run("A Haystack document store", open_service)
    assert names["result"]["documents"][0].id == "ticket-1"

"""LangChain: OpenAIEmbeddings, Jina's reranker, and the retriever of `simile_client`."""

import asyncio
from typing import Any

import numpy as np
import openai
import pytest
import requests
import tiktoken
from langchain_community.document_compressors import jina_rerank
from langchain_core.documents import Document
from langchain_openai import OpenAIEmbeddings
from tiktoken.registry import ENCODINGS

from tests.clients import page
from tests.clients.running import Running


def test_the_snippet_gives_the_vectors_of_embed(service: Running) -> None:
    names = page.run("LangChain", service)
    expected = service.embed([*names["texts"], "Can I return this?"])
    np.testing.assert_allclose([*names["vectors"], names["query"]], expected, atol=1e-6)


def test_many_texts_short_vectors_and_asynchronous_calls_give_the_same(service: Running) -> None:
    embeddings = OpenAIEmbeddings(
        model="simile",
        base_url=f"{service.url}/v1",
        api_key=service.key,
        check_embedding_ctx_length=False,
        dimensions=100,
        chunk_size=10,
    )
    texts = [f"Text number {number} of some." for number in range(23)]
    expected = service.embed(texts)[:, :100]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(embeddings.embed_documents(texts), expected, atol=1e-6)
    np.testing.assert_allclose(asyncio.run(embeddings.aembed_documents(texts)), expected, atol=1e-6)


def test_without_the_parameter_the_refusal_names_it(
    service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes replace the client's vocabulary, which needs a download. Neither has the model's ids."""
    letters = tiktoken.Encoding(
        name="cl100k_base",
        pat_str=r"\S+|\s+",
        mergeable_ranks={bytes([value]): value for value in range(256)},
        special_tokens={},
    )
    monkeypatch.setitem(ENCODINGS, "cl100k_base", letters)
    embeddings = OpenAIEmbeddings(model="simile", base_url=f"{service.url}/v1", api_key=service.key)
    with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False"):
        embeddings.embed_documents(["How do I get my money back?"])


def test_the_retriever_finds_what_search_finds(service: Running) -> None:
    names = page.run("A LangChain retriever", service)
    hits = service.get("/search", q="how do I get my money back", k=3, filter='{"topic": "support"}')["hits"]
    assert hits[0]["id"] == "support-refund-window"
    documents = [(each.id, each.page_content, each.metadata["score"]) for each in names["documents"]]
    assert documents == [(hit["id"], hit["text"], hit["score"]) for hit in hits]


QUERY, TEXTS = "red river", ["the cat sleeps", "a stone market", "green garden", "blue window"]


def test_documents_are_reranked_by_the_client_of_jina(
    service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.use_reranker()
    monkeypatch.setattr(jina_rerank, "JINA_API_URL", f"{service.url}/v1/rerank")
    expected = service.post("/rerank", {"query": QUERY, "texts": TEXTS})
    client = jina_rerank.JinaRerank(jina_api_key=service.key, top_n=3)
    documents = [Document(text, metadata={"at": at}) for at, text in enumerate(TEXTS)]
    found = client.compress_documents(documents, QUERY)
    assert [each.metadata["at"] for each in found] == [each["index"] for each in expected[:3]]
    assert [each.page_content for each in found] == [TEXTS[each["index"]] for each in expected[:3]]
    scores = [each.metadata["relevance_score"] for each in found]
    assert scores == pytest.approx([each["score"] for each in expected[:3]])
    every = client.rerank([{"text": text} for text in TEXTS], QUERY, top_n=None)
    assert [each["index"] for each in every] == [each["index"] for each in expected]
    with pytest.raises(RuntimeError, match="query is empty"):
        client.rerank(TEXTS, "")


def test_a_request_of_jina_s_documentation_has_an_answer_of_its_shape(service: Running) -> None:
    service.use_reranker()
    body: dict[str, Any] = {
        "model": "jina-reranker-v2-base-multilingual",
        "query": QUERY,
        "documents": TEXTS,
        "top_n": 2,
        "return_documents": True,
        "truncation": True,
    }
    headers = {"Authorization": f"Bearer {service.key}"}
    answer = requests.post(f"{service.url}/v1/rerank", json=body, headers=headers, timeout=30).json()
    expected = service.post("/rerank", {"query": QUERY, "texts": TEXTS})[:2]
    assert answer["usage"]["total_tokens"] > 0
    assert isinstance(answer["model"], str)
    for found, rank in zip(answer["results"], expected, strict=True):
        assert found["index"] == rank["index"]
        assert found["relevance_score"] == pytest.approx(rank["score"])
        assert found["document"] == {"text": TEXTS[rank["index"]]}

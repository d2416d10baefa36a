"""LlamaIndex: its embeddings and its reranker for TEI."""

import asyncio

import numpy as np
import pytest
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference as TeiRerank
from pydantic import ValidationError

from tests.clients import page
from tests.clients.running import Running


def test_the_snippet_gives_the_vectors_of_embed(service: Running) -> None:
    names = page.run("LlamaIndex", service)
    expected = service.embed([*names["texts"], "Can I return this?"])
    np.testing.assert_allclose([*names["vectors"], names["query"]], expected, atol=1e-6)


def test_many_texts_and_the_asynchronous_calls_give_the_same(service: Running) -> None:
    model = TextEmbeddingsInference(model_name="simile", base_url=service.url, auth_token=service.key)
    texts = [f"Text number {number} of some." for number in range(23)]  # more than two batches of the client
    expected = service.embed(texts)
    np.testing.assert_allclose(model.get_text_embedding_batch(texts), expected, atol=1e-6)
    np.testing.assert_allclose(asyncio.run(model.aget_text_embedding_batch(texts)), expected, atol=1e-6)


def test_a_refusal_looks_as_the_page_says(service: Running) -> None:
    model = TextEmbeddingsInference(model_name="simile", base_url=service.url, auth_token=service.key)
    with pytest.raises(KeyError, match="0"):
        model.get_text_embedding("")
    with pytest.raises(ValidationError, match="'error': 'inputs"):
        model.get_text_embedding_batch(["a", ""])


def test_nodes_are_reranked_as_by_the_native_route(service: Running) -> None:
    service.use_reranker()
    query, texts = "red river", ["the cat sleeps", "a stone market", "green garden", "blue window"]
    expected = service.post("/rerank", {"query": query, "texts": texts})
    reranker = TeiRerank(base_url=service.url, top_n=3, auth_token=f"Bearer {service.key}")
    nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in texts]
    found = reranker.postprocess_nodes(nodes, query_str=query)
    assert [each.node.get_content() for each in found] == [texts[each["index"]] for each in expected[:3]]
    assert [each.score for each in found] == pytest.approx([each["score"] for each in expected[:3]])

"""Chroma's embedding function for TEI, with a collection on disk."""

import numpy as np
import pytest
from chromadb.utils.embedding_functions import HuggingFaceEmbeddingServer

from tests.clients import page
from tests.clients.running import Running


def test_the_snippet_stores_the_vectors_of_embed_and_finds_by_them(service: Running) -> None:
    names = page.run("Chroma", service)
    vectors = service.embed([*names["texts"], "Paper comes out white"])
    stored = names["collection"].get(ids=["refund", "printer", "rain"], include=["embeddings"])
    order = [["refund", "printer", "rain"].index(id) for id in stored["ids"]]
    np.testing.assert_allclose(stored["embeddings"], vectors[order], atol=1e-6)
    assert names["found"]["ids"] == [["printer"]]
    expected = 1 - vectors[1] @ vectors[3]  # Chroma's cosine distance
    assert names["found"]["distances"][0][0] == pytest.approx(expected, abs=1e-5)


def test_a_refusal_looks_as_the_page_says(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDDING_KEY", service.key)
    function = HuggingFaceEmbeddingServer(f"{service.url}/embed", api_key_env_var="EMBEDDING_KEY")
    with pytest.raises(ValueError, match="could not convert string to float: 'error'"):
        function(["a", ""])


def test_another_variable_s_key_wins_as_the_page_says(
    keyed_service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDDING_KEY", keyed_service.key)
    monkeypatch.setenv("HUGGINGFACE_API_KEY", "not-a-key")
    function = HuggingFaceEmbeddingServer(f"{keyed_service.url}/embed", api_key_env_var="EMBEDDING_KEY")
    with pytest.raises(ValueError, match="'error'"):
        function(["a"])

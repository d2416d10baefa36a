"""Prompts come from the model's configuration, and each route uses the right ones."""

from collections.abc import Iterator

import numpy as np
import pytest
from starlette.testclient import TestClient

from models.encoder import Encoder
from tests.service.conftest import serving_prompts

PROMPTS = {"query": "market letter ", "document": "engine garden ", "other": "stone "}


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, Encoder]]:
    with serving_prompts(tmp_path_factory.mktemp("prompted"), PROMPTS) as served:
        yield served


def test_embed_puts_the_named_prompt_before_each_text(prompted: tuple[TestClient, Encoder]) -> None:
    client, encoder = prompted
    for name, prompt in PROMPTS.items():
        answer = client.post("/embed", json={"inputs": ["red river", "cat"], "prompt_name": name}).json()
        np.testing.assert_allclose(
            answer, encoder.encode([prompt + "red river", prompt + "cat"]).vectors, atol=1e-6
        )
    plain = client.post("/embed", json={"inputs": "red river"}).json()
    np.testing.assert_allclose(plain, encoder.encode(["red river"]).vectors, atol=1e-6)


def test_search_uses_the_models_prompts_for_query_and_document(prompted: tuple[TestClient, Encoder]) -> None:
    client, encoder = prompted
    client.post("/documents", json={"documents": [{"id": "a", "text": "red river"}]})
    document = encoder.encode([PROMPTS["document"] + "red river"]).vectors[0]
    expected = document @ encoder.encode([PROMPTS["query"] + "blue"]).vectors[0]
    hit = client.get("/search", params={"q": "blue"}).json()["hits"][0]
    assert hit["score"] == pytest.approx(expected, abs=2e-6)
    assert hit["text"] == "red river", "the prompt is not part of the document"
    named = client.get("/search", params={"q": "blue", "prompt_name": "other"}).json()["hits"][0]
    expected = document @ encoder.encode([PROMPTS["other"] + "blue"]).vectors[0]
    assert named["score"] == pytest.approx(expected, abs=2e-6)


def test_similarity_uses_no_prompt_of_its_own(prompted: tuple[TestClient, Encoder]) -> None:
    client, encoder = prompted
    a, b = encoder.encode(["red river", "cat"]).vectors
    assert client.post("/similarity", json={"pairs": [["red river", "cat"]]}).json() == pytest.approx(
        [a @ b], abs=1e-6
    )


def test_a_prompt_with_token_ids_is_refused(prompted: tuple[TestClient, Encoder]) -> None:
    client, encoder = prompted
    ids = list(encoder.tokenize(["cat"])[0].ids)
    response = client.post("/embed", json={"inputs": [ids], "prompt_name": "query"})
    assert (response.status_code, response.json()["error_type"]) == (422, "Validation")
    assert "token ids" in response.json()["error"]


@pytest.fixture(scope="module")
def defaulted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, Encoder]]:
    with serving_prompts(tmp_path_factory.mktemp("defaulted"), PROMPTS, default="other") as served:
        yield served


def test_the_default_prompt_goes_before_texts_that_name_none(defaulted: tuple[TestClient, Encoder]) -> None:
    client, encoder = defaulted
    by_default, named, bare = encoder.encode(
        [PROMPTS["other"] + "cat", PROMPTS["query"] + "cat", "cat"]
    ).vectors
    assert np.abs(by_default - bare).max() > 1e-3
    found = client.post("/embed", json={"inputs": "cat"}).json()[0]
    np.testing.assert_allclose(found, by_default, atol=1e-6)
    openai = client.post("/v1/embeddings", json={"input": "cat", "model": "x"}).json()
    np.testing.assert_allclose(openai["data"][0]["embedding"], by_default, atol=1e-6)
    found = client.post("/embed", json={"inputs": "cat", "prompt_name": "query"}).json()[0]
    np.testing.assert_allclose(found, named, atol=1e-6)
    ids = list(encoder.tokenize(["cat"])[0].ids)
    found = client.post("/embed", json={"inputs": [ids]}).json()[0]
    np.testing.assert_allclose(found, bare, atol=1e-6)

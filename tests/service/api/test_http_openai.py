"""OpenAI's routes have OpenAI's fields and error bodies, and the encoder's vectors."""

import base64
from datetime import datetime

import numpy as np
import pytest
from starlette.testclient import TestClient

from models.encoder import Encoder
from service.api.openai import EmbeddingList, ModelList
from service.api.openapi import OpenAIRefusal
from service.runtime.runtime import Runtime

TEXTS = ["how do i reset my password", "the red engine", "日本 🙂", "river " * 100]
PATHS = ["/v1/embeddings", "/embeddings"]


def refused(response: object, status: int, param: str | None, *words: str) -> None:
    """Checks an OpenAI error body."""
    assert response.status_code == status, response.text  # type: ignore[attr-defined]
    assert response.headers["content-type"] == "application/json"  # type: ignore[attr-defined]
    body = response.json()  # type: ignore[attr-defined]
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    problem = OpenAIRefusal.model_validate(body).error
    assert problem.param == param
    for word in words:
        assert word in problem.message


@pytest.mark.parametrize("path", PATHS)
def test_embeddings_are_the_encoders_own_in_openais_shape(
    client: TestClient, encoder: Encoder, runtime: Runtime, path: str
) -> None:
    response = client.post(
        path, json={"input": TEXTS, "model": "text-embedding-3-small", "user": "u", "n": 1}
    )
    answer = response.json()
    EmbeddingList.model_validate(answer)
    assert set(answer) == {"object", "data", "model", "usage"}
    assert (answer["object"], answer["model"]) == ("list", runtime.active.generation.version)
    assert [(item["object"], item["index"]) for item in answer["data"]] == [
        ("embedding", at) for at in range(4)
    ]
    expected = encoder.encode(TEXTS)
    np.testing.assert_allclose([item["embedding"] for item in answer["data"]], expected.vectors, atol=1e-6)
    tokens = sum(expected.tokens)  # without padding and truncated tokens
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert response.headers["x-truncated"] == "1"


def test_base64_is_of_little_endian_float32(client: TestClient) -> None:
    floats = client.post("/v1/embeddings", json={"input": TEXTS, "encoding_format": "float"}).json()
    packed = client.post("/v1/embeddings", json={"input": TEXTS, "encoding_format": "base64"}).json()
    for item, known in zip(packed["data"], floats["data"], strict=True):
        vector = np.frombuffer(base64.b64decode(item["embedding"], validate=True), "<f4")
        np.testing.assert_allclose(vector, known["embedding"], atol=1e-7)
    assert packed["usage"] == floats["usage"]


def test_dimensions_cut_then_normalize_and_zero_is_all_of_them(client: TestClient, encoder: Encoder) -> None:
    def embedding(**body: object) -> list[float]:
        answer = client.post("/v1/embeddings", json={"input": TEXTS[0], **body})
        return list(answer.json()["data"][0]["embedding"])

    full = encoder.encode(TEXTS[:1]).vectors[0]
    np.testing.assert_allclose(embedding(dimensions=8), full[:8] / np.linalg.norm(full[:8]), atol=1e-6)
    for all_of_them in (0, None, 32):
        np.testing.assert_allclose(embedding(dimensions=all_of_them), full, atol=1e-6)


@pytest.mark.parametrize(
    ("body", "param", "word"),
    [
        ({}, "input", "missing"),
        ({"input": []}, "input", "empty"),
        ({"input": ""}, "input", "input is empty"),
        ({"input": ["a", "\n"]}, "input", "input[1]"),
        ({"input": [["a"]]}, "input", "input[0]"),
        ({"input": ["a", 1]}, "input", "input[1]"),
        ({"input": ["a"] * 2049}, "input", "SIMILE_MAX_INPUTS"),
        ({"input": [2, 10**6, 3]}, "input", "vocabulary"),
        ({"input": [5, 6]}, "input", "check_embedding_ctx_length=False"),
        ({"input": TEXTS, "truncate": False}, "input", "Input 3"),
        ({"input": "a", "dimensions": 33}, "dimensions", "between 1 and 32"),
        ({"input": "a", "dimensions": -1}, "dimensions", "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "base64"),
        ({"input": "a", "model": 7}, "model", "model"),
    ],
)
def test_a_bad_request_is_400_and_names_the_parameter(
    client: TestClient, body: dict[str, object], param: str, word: str
) -> None:
    for path in PATHS:
        refused(client.post(path, json=body), 400, param, word)


def test_the_models_are_the_published_versions(client: TestClient, runtime: Runtime) -> None:
    answer = client.get("/v1/models").json()
    ModelList.model_validate(answer)
    manifest = runtime.active.generation.manifest
    created = int(datetime.fromisoformat(manifest.created).timestamp())
    assert answer == {
        "object": "list",
        "data": [{"id": manifest.version, "object": "model", "created": created, "owned_by": "simile"}],
    }

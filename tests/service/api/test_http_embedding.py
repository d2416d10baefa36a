"""`/embed` and `/similarity` return the encoder's numbers in every format, with the right prompts."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray
from starlette.testclient import TestClient

from models.encoder import Encoder
from tests.service.conftest import serving_prompts

TEXTS = ["my password", "the red engine", "x", "a cat sleeps in the garden " * 30, "日本 🙂", "\x00\x01a"]


def embed(client: TestClient, **body: object) -> NDArray[np.float32]:
    response = client.post("/embed", json=body)
    assert response.status_code == 200, response.text
    return np.array(response.json(), dtype=np.float32)


def test_a_vector_does_not_depend_on_its_neighbors(client: TestClient) -> None:
    alone = np.concatenate([embed(client, inputs=[text]) for text in TEXTS])
    crowd = [*TEXTS, *("forest river " * length for length in range(1, 50))]
    random.Random(3).shuffle(crowd)
    with ThreadPoolExecutor(8) as pool:
        crowds = list(pool.map(lambda _: embed(client, inputs=crowd), range(8)))
    for together in crowds:
        np.testing.assert_allclose(together[[crowd.index(text) for text in TEXTS]], alone, atol=1e-6)


def test_octet_stream_and_json_give_the_same_float32_exactly(client: TestClient) -> None:
    response = client.post("/embed", json={"inputs": TEXTS}, headers={"accept": "application/octet-stream"})
    assert response.headers["content-type"] == "application/octet-stream"
    assert response.headers["x-embedding-shape"] == f"{len(TEXTS)},32"
    vectors = np.frombuffer(response.content, dtype="<f4").reshape(len(TEXTS), 32)
    np.testing.assert_array_equal(vectors, embed(client, inputs=TEXTS))


def test_dimensions_cut_first_and_normalize_then(client: TestClient) -> None:
    full = embed(client, inputs=TEXTS)
    cut = full[:, :8] / np.linalg.norm(full[:, :8], axis=1, keepdims=True)
    np.testing.assert_allclose(embed(client, inputs=TEXTS, dimensions=8), cut, atol=1e-6)
    np.testing.assert_array_equal(embed(client, inputs=TEXTS, dimensions=32), full)


def test_without_normalizing_the_pooled_vector_keeps_its_length(client: TestClient) -> None:
    raw = embed(client, inputs=TEXTS, normalize=False)
    norms = np.linalg.norm(raw, axis=1, keepdims=True)
    assert (np.abs(norms - 1) > 0.05).all()
    np.testing.assert_allclose(raw / norms, embed(client, inputs=TEXTS), atol=1e-5)
    np.testing.assert_array_equal(embed(client, inputs=TEXTS, normalize=False, dimensions=8), raw[:, :8])


def test_vectors_of_texts_and_of_token_ids_are_the_encoders(client: TestClient, encoder: Encoder) -> None:
    ids = [list(tokens.ids) for tokens in encoder.tokenize(TEXTS)]
    np.testing.assert_allclose(embed(client, inputs=ids), embed(client, inputs=TEXTS), atol=1e-6)
    one = embed(client, inputs=TEXTS[0])
    assert one.shape == (1, 32), "one text still gives a list of vectors"
    np.testing.assert_allclose(embed(client, inputs=ids[0]), one, atol=1e-6)
    np.testing.assert_allclose(embed(client, inputs=TEXTS), encoder.encode(TEXTS).vectors, atol=1e-6)


def test_token_ids_without_the_special_ones_are_refused_with_the_usual_cause(
    client: TestClient, encoder: Encoder
) -> None:
    ids = list(encoder.tokenize([TEXTS[0]])[0].ids)
    response = client.post("/embed", json={"inputs": [ids, ids[1:-1]]})
    assert response.status_code == 422
    assert "Input 1" in response.json()["error"]
    assert "check_embedding_ctx_length=False" in response.json()["error"]


@pytest.mark.parametrize("direction", ["Right", "right", "Left", "LEFT"])
def test_a_long_text_is_cut_on_the_side_that_was_asked_for(client: TestClient, direction: str) -> None:
    words = "river stone market letter engine garden bridge paper window forest".split() * 20
    kept = words[:62] if direction.lower() == "right" else words[-62:]
    response = client.post("/embed", json={"inputs": " ".join(words), "truncation_direction": direction})
    assert response.headers["x-truncated"] == "1"
    expected = client.post("/embed", json={"inputs": " ".join(kept)})
    assert "x-truncated" not in expected.headers
    np.testing.assert_allclose(response.json(), expected.json(), atol=1e-6)


def test_a_request_id_comes_back_or_is_made(client: TestClient) -> None:
    given = client.post("/embed", json={"inputs": "a"}, headers={"x-request-id": "my-id 7"})
    assert given.headers["x-request-id"] == "my-id 7"
    for bad in ("x" * 129, "tab\there", ""):
        made = client.post("/embed", json={"inputs": "a"}, headers={"x-request-id": bad}).headers[
            "x-request-id"
        ]
        assert made not in {"", bad}
        assert len(made) == 32


def test_similarity_is_the_cosine_of_each_sentence_or_pair(client: TestClient, encoder: Encoder) -> None:
    vectors = encoder.encode(TEXTS).vectors
    body = {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}, "parameters": None}
    response = client.post("/similarity", json=body)
    np.testing.assert_allclose(response.json(), vectors[1:] @ vectors[0], atol=1e-6)
    pairs = [[TEXTS[0], TEXTS[1]], [TEXTS[2], TEXTS[3]], [TEXTS[4], TEXTS[4]]]
    response = client.post("/similarity", json={"pairs": pairs})
    expected = [vectors[0] @ vectors[1], vectors[2] @ vectors[3], 1.0]
    np.testing.assert_allclose(response.json(), expected, atol=1e-6)


@pytest.mark.parametrize("path", ["/similarity", "/"])
def test_a_similarity_is_within_the_range_of_a_cosine(
    client: TestClient, encoder: Encoder, path: str
) -> None:
    texts = ["alpha beta", *TEXTS, *("forest river " * length for length in range(1, 30))]
    vectors = encoder.encode(texts).vectors
    assert (np.einsum("nd,nd->n", vectors, vectors) > 1).any(), "no sum is rounded up"
    bodies: list[dict[str, object]] = [
        {"inputs": {"source_sentence": text, "sentences": [text, texts[0]]}} for text in texts
    ]
    if path == "/similarity":
        bodies += [{"pairs": [[text, text], [text, texts[0]]]} for text in texts]
    for body in bodies:
        cosines = client.post(path, json=body).json()
        assert all(-1 <= cosine <= 1 for cosine in cosines)
        assert cosines[0] == pytest.approx(1, abs=1e-6)


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
    hit = client.get("/search", params={"q": "blue", "mode": "dense"}).json()["hits"][0]
    assert hit["score"] == pytest.approx(expected, abs=2e-6)
    assert hit["text"] == "red river", "the prompt is not part of the document"
    named = client.get("/search", params={"q": "blue", "mode": "dense", "prompt_name": "other"}).json()[
        "hits"
    ][0]
    expected = document @ encoder.encode([PROMPTS["other"] + "blue"]).vectors[0]
    assert named["score"] == pytest.approx(expected, abs=2e-6)


def test_similarity_has_no_prompt_and_ids_take_none(prompted: tuple[TestClient, Encoder]) -> None:
    client, encoder = prompted
    a, b = encoder.encode(["red river", "cat"]).vectors
    assert client.post("/similarity", json={"pairs": [["red river", "cat"]]}).json() == pytest.approx(
        [a @ b], abs=1e-6
    )
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

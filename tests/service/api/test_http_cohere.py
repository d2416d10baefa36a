"""Cohere's route: the prompt of each `input_type`, vectors of floats, bytes or bits, and error bodies."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from starlette.testclient import TestClient

from models.encoder import Encoder
from models.manifest import FILE_NAME
from service.api.cohere import EmbeddingsByType
from tests.service.conftest import new_settings, serving, serving_prompts

TEXTS = ["how do i reset my password", "the red engine", "日本 🙂", "x", "a letter from the harbour"]
WORDS = "river stone market letter engine garden bridge paper window forest".split() * 20
PROMPTS = {"query": "market letter ", "document": "engine garden ", "classification": "stone "}
SCALE = 127


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, Encoder]]:
    with serving_prompts(tmp_path_factory.mktemp("cohere"), PROMPTS) as served:
        yield served


@pytest.fixture
def served(place: tuple[TestClient, Encoder]) -> TestClient:
    return place[0]


@pytest.fixture
def encoder(place: tuple[TestClient, Encoder]) -> Encoder:
    return place[1]


def embeddings(client: TestClient, *kinds: str, **body: object) -> dict[str, Any]:
    response = client.post("/v2/embed", json={"texts": TEXTS, "embedding_types": kinds, **body})
    assert response.status_code == 200, response.text
    answer = response.json()
    EmbeddingsByType.model_validate(answer)
    assert set(answer["embeddings"]) == set(kinds)
    return dict(answer["embeddings"])


def refused(response: object, status: int, *words: str) -> None:
    """Checks a Cohere error body."""
    assert response.status_code == status, response.text  # type: ignore[attr-defined]
    body = response.json()  # type: ignore[attr-defined]
    assert set(body) == {"message"}
    for word in words:
        assert word in body["message"]


def test_an_answer_has_coheres_shape(served: TestClient, encoder: Encoder) -> None:
    body = {"model": "embed-v4.0", "texts": TEXTS, "input_type": "clustering", "priority": 3, "other": None}
    response = served.post("/v2/embed", json=body)
    answer = response.json()
    EmbeddingsByType.model_validate(answer)
    expected = encoder.encode(TEXTS)
    np.testing.assert_allclose(answer["embeddings"].pop("float"), expected.vectors, atol=1e-6)
    assert answer["embeddings"] == {}, "float alone unless others are asked for"
    assert answer["texts"] == TEXTS
    assert answer["meta"] == {
        "api_version": {"version": "2"},
        "tokens": {"input_tokens": sum(expected.tokens)},
    }
    assert answer["response_type"] == "embeddings_by_type"
    assert response.headers["x-model-version"] == encoder.manifest.version
    assert answer["id"] != served.post("/v2/embed", json=body).json()["id"]


@pytest.mark.parametrize(
    ("input_type", "prompt"),
    [
        ("search_query", "market letter "),
        ("search_document", "engine garden "),
        ("classification", "stone "),
        ("clustering", ""),  # The model has no prompt for this type.
        (None, ""),
    ],
)
def test_the_prompt_is_the_models_own_for_the_input_type(
    served: TestClient, encoder: Encoder, input_type: str | None, prompt: str
) -> None:
    found = embeddings(served, "float", input_type=input_type)["float"]
    np.testing.assert_allclose(found, encoder.encode([prompt + text for text in TEXTS]).vectors, atol=1e-6)


def test_inputs_of_one_text_each_are_texts(served: TestClient, encoder: Encoder) -> None:
    inputs = [{"content": [{"type": "text", "text": text}]} for text in TEXTS]
    answer = served.post("/v2/embed", json={"inputs": inputs}).json()
    np.testing.assert_allclose(answer["embeddings"]["float"], encoder.encode(TEXTS).vectors, atol=1e-6)
    assert answer["texts"] == TEXTS


def by_hand(vectors: NDArray[np.float32], limit: float) -> NDArray[np.float64]:
    """Returns the expected int8 values before rounding. `limit` and larger values become `SCALE`."""
    return np.clip(vectors.astype(np.float64) * SCALE / limit, -SCALE, SCALE)


def test_int8_is_the_floats_in_the_published_steps(served: TestClient, encoder: Encoder) -> None:
    calibrated = encoder.manifest.calibration.int8
    assert calibrated is not None
    vectors = encoder.encode(TEXTS).vectors
    found = embeddings(served, "int8", "uint8", "float")
    steps = np.array(found["int8"])
    assert np.abs(steps - by_hand(vectors, calibrated.limit)).max() <= 0.5 + 1e-3
    assert np.abs(steps).max() > 60, "most of the range is used"
    np.testing.assert_array_equal(np.array(found["uint8"]) - 128, steps)
    # With one range for all dimensions and no offset, inner products stay proportional.
    exact = vectors @ vectors.T
    np.testing.assert_allclose(steps @ steps.T * (calibrated.limit / SCALE) ** 2, exact, atol=0.01)


def test_int8_of_fewer_dimensions_has_a_wider_range(served: TestClient, encoder: Encoder) -> None:
    calibrated = encoder.manifest.calibration.int8
    assert calibrated is not None
    cut = encoder.encode(TEXTS).vectors[:, :24]
    cut /= np.linalg.norm(cut, axis=1, keepdims=True)
    limit = calibrated.limit * (32 / 24) ** 0.5
    steps = np.array(embeddings(served, "int8", output_dimension=24)["int8"])
    assert np.abs(steps - by_hand(cut, limit)).max() <= 0.5 + 1e-3


def test_bits_are_the_signs_eight_to_a_byte_filled_up_at_the_end(served: TestClient) -> None:
    found = embeddings(served, "float", "binary", "ubinary")
    for vector, byte_values, signed in zip(found["float"], found["ubinary"], found["binary"], strict=True):
        text = "".join("1" if value > 0 else "0" for value in vector)
        expected = [int(text[start : start + 8], 2) for start in range(0, 32, 8)]
        assert byte_values == expected
        assert signed == [value - 128 for value in expected]
    found = embeddings(served, "float", "ubinary", output_dimension=11)
    for vector, (first, second) in zip(found["float"], found["ubinary"], strict=True):
        text = "".join("1" if value > 0 else "0" for value in vector)
        assert f"{first:08b}{second:08b}" == text + "00000"


def test_base64_is_of_little_endian_float32(served: TestClient) -> None:
    found = embeddings(served, "float", "base64")
    for vector, packed in zip(found["float"], found["base64"], strict=True):
        np.testing.assert_allclose(np.frombuffer(base64.b64decode(packed), "<f4"), vector, atol=1e-7)


@pytest.mark.parametrize(
    ("truncate", "kept"), [("END", WORDS[:62]), (None, WORDS[:62]), ("START", WORDS[-62:])]
)
def test_a_long_text_is_cut_where_truncate_says(
    served: TestClient, encoder: Encoder, truncate: str | None, kept: list[str]
) -> None:
    body = {"texts": [" ".join(WORDS)], "truncate": truncate}
    response = served.post("/v2/embed", json=body)
    expected = encoder.encode([" ".join(kept)])
    np.testing.assert_allclose(response.json()["embeddings"]["float"], expected.vectors, atol=1e-6)
    assert response.headers["x-truncated"] == "1"
    assert response.json()["meta"]["tokens"]["input_tokens"] == 64


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "texts"),
        ({"texts": []}, "texts"),
        ({"texts": ["a", ""]}, "texts[1]"),
        ({"texts": ["a", 7]}, "texts[1]"),
        ({"texts": ["a"] * 2049}, "SIMILE_MAX_INPUTS"),
        ({"texts": ["a"], "inputs": [{"content": [{"type": "text", "text": "a"}]}]}, "not both"),
        ({"inputs": [{"content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]}, "inputs[0]"),
        ({"inputs": [{"content": [{"type": "text", "text": ""}]}]}, "inputs[0]"),
        ({"images": ["data:image/png;base64,AAAA"]}, "images"),
        ({"texts": ["a"], "input_type": "image"}, "input_type"),
        ({"texts": ["a"], "output_dimension": 33}, "output_dimension must be between 1 and 32"),
        ({"texts": ["a"], "truncate": "MIDDLE"}, "truncate"),
        ({"texts": ["a"], "max_tokens": 8}, "max_tokens"),
        ({"texts": ["a", "river " * 100], "truncate": "NONE"}, "Input 1 has 102 tokens"),
    ],
)
def test_a_bad_request_is_400_and_says_why(served: TestClient, body: dict[str, object], word: str) -> None:
    refused(served.post("/v2/embed", json=body), 400, word)


def test_a_version_without_calibration_gives_all_but_8_bits(tmp_path: Path, tiny_models_dir: Path) -> None:
    settings = new_settings(tmp_path, tiny_models_dir)
    [file] = settings.models_dir.glob(f"*/{FILE_NAME}")
    manifest = json.loads(file.read_bytes())
    assert manifest["calibration"]["int8"]["limit"] > 0
    file.write_text(json.dumps({**manifest, "calibration": {}}))  # like manifests of older releases
    with serving(settings) as client:
        for kind in ("int8", "uint8"):
            body = {"texts": ["a"], "embedding_types": ["float", kind]}
            refused(client.post("/v2/embed", json=body), 400, kind, "Publish it again")
        assert len(embeddings(client, "float", "base64", "binary", "ubinary")["binary"]) == len(TEXTS)

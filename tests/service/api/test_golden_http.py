"""Over HTTP, the default model gives a text sentence-transformers' vector, alone and in a batch."""

import random
from collections.abc import Iterator

import numpy as np
import pytest

from models.publishing.default import reference_vectors
from models.tokens.texts import PROOF_TEXTS, long_text
from tests.service.process import Service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, default_models_dir: object) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("golden"), default_models_dir) as service:  # type: ignore[arg-type]
        yield service


@pytest.fixture(scope="module")
def alone(service: Service) -> list[list[float]]:
    return [service.client.post("/embed", json={"inputs": text}).json()[0] for text in PROOF_TEXTS]


def test_each_text_alone(alone: list[list[float]]) -> None:
    np.testing.assert_allclose(alone, reference_vectors(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
def test_each_text_in_a_shuffled_request_of_64(service: Service, alone: list[list[float]], seed: int) -> None:
    crowd = [*PROOF_TEXTS, *(long_text(3 + 4 * number) for number in range(64 - len(PROOF_TEXTS)))]
    order = list(range(64))
    random.Random(seed).shuffle(order)
    answer = service.client.post("/embed", json={"inputs": [crowd[at] for at in order]}).json()
    vectors = np.empty((64, 384), dtype=np.float32)
    vectors[order] = answer
    np.testing.assert_allclose(vectors[: len(PROOF_TEXTS)], reference_vectors(), atol=1e-5, rtol=0)
    np.testing.assert_allclose(vectors[: len(PROOF_TEXTS)], alone, atol=1e-6, rtol=0)

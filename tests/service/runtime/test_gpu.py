"""A service with a GPU setting that computes with the CPU's provider, and one whose GPU is missing."""

from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from models.engines.nvidia import Provider
from models.store import ModelStore
from service.app import create_app
from service.errors import StartupError
from tests.service.conftest import new_settings, serving, turned, wait_until_ready

ON_CPU = Provider("CPUExecutionProvider", {}, "cpu")
TEXTS = ["a river", "the red letter runs to the market", "my password", "a bridge on paper and a cat"]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.engines.opening.cuda_provider", lambda place: ON_CPU)
    monkeypatch.setattr("service.lifecycle.model_loader.require_cuda", lambda place: "a GPU")


def store_texts(client: TestClient) -> None:
    documents = [{"id": str(at), "text": text} for at, text in enumerate(TEXTS)]
    assert client.post("/documents", json={"documents": documents}).status_code == 200


def found(client: TestClient, text: str) -> str:
    hits = client.get("/search", params={"q": text, "mode": "dense", "k": 1}).json()["hits"]
    answer: str = hits[0]["text"]
    return answer


@pytest.mark.usefixtures("gpu")
def test_a_service_on_a_gpu_answers_as_one_on_the_cpu(tmp_path: Path, tiny_models_dir: Path) -> None:
    store = ModelStore(tiny_models_dir)
    expected = store.open(store.versions()[0].version).encode(TEXTS).vectors
    with serving(new_settings(tmp_path, tiny_models_dir, device="cuda", precision="fp16")) as client:
        vectors = np.array(client.post("/embed", json={"inputs": TEXTS}).json())
        assert np.sum(vectors * expected, axis=1).min() >= 0.9999
        assert np.abs(vectors - expected).max() > 1e-6, "it was computed in fp32"
        store_texts(client)
        assert [found(client, text) for text in TEXTS] == TEXTS
        info = client.get("/info").json()
        assert (info["form"], info["max_batch_tokens"]) == ("fp16/onnxruntime-cuda", 16_384)
        assert info["form_cost"] == turned(client, tiny_models_dir)
        assert 0.9999 < info["form_cost"]["cosine_least"] < 1


@pytest.mark.usefixtures("gpu")
def test_fp32_on_a_gpu_is_told_no_cost(tmp_path: Path, tiny_models_dir: Path) -> None:
    with serving(new_settings(tmp_path, tiny_models_dir, device="cuda", precision="fp32")) as client:
        info = client.get("/info").json()
        assert (info["form"], info["form_cost"]) == ("fp32/onnxruntime-cuda", None)


@pytest.mark.usefixtures("gpu")
def test_back_on_the_cpu_the_documents_are_embedded_anew(tmp_path: Path, tiny_models_dir: Path) -> None:
    settings = new_settings(tmp_path, tiny_models_dir, device="cuda", precision="fp16")
    with serving(settings) as client:
        store_texts(client)
    settings = settings.model_copy(update={"device": "cpu", "precision": "fp32"})
    with TestClient(create_app(settings)) as client:
        wait_until_ready(client)
        assert client.get("/info").json()["form"] == "fp32/onnxruntime"
        assert [found(client, text) for text in TEXTS] == TEXTS


def test_without_its_gpu_a_service_does_not_start_and_writes_nothing(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    settings = new_settings(tmp_path, tiny_models_dir, device="cuda:99")
    with pytest.raises(StartupError, match="SIMILE_DEVICE requests"):
        create_app(settings).state.runtime.open()
    assert not settings.data_dir.exists()

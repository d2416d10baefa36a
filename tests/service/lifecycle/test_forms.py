"""The service in another form: what is stored is computed anew in it, and nothing is served in between."""

import contextlib
import shutil
import sqlite3
import time
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from models.encoder import Encoder
from models.engines.form import FP32, Form
from models.engines.opening import BF16, INT8, INT8_NAME
from models.manifest import Manifest
from models.publishing import proof
from models.publishing.publish import publish
from models.store import Store
from service.settings import Settings
from tests.models.forms import needs_bf16, needs_int8
from tests.service.conftest import new_settings, serving, turned
from tests.service.process import run_and_fail
from tests.service.swapping import TEXTS
from tests.tiny import tiny_source
from tests.waiting import until

DOCUMENTS = {f"d{at}": text for at, text in enumerate(TEXTS)}


def put(client: TestClient, documents: dict[str, str]) -> None:
    body = {"documents": [{"id": id, "text": text} for id, text in documents.items()]}
    assert client.post("/documents", json=body).status_code == 200


def in_form(settings: Settings, form: Form) -> Encoder:
    store = Store(settings.models_dir)
    return store.open(store.versions()[0].version, form=form)


def wait_for_form(client: TestClient, form: Form) -> None:
    until(lambda: client.get("/info").json()["form"] == str(form), lambda: client.get("/models").text)


def stored(settings: Settings, query: str) -> list[tuple[str, ...]]:
    address = f"file:{settings.data_dir / 'simile.db'}?mode=ro"
    with contextlib.closing(sqlite3.connect(address, uri=True)) as connection:
        return connection.execute(query).fetchall()


def assert_found_in(client: TestClient, encoder: Encoder) -> None:
    """Scores are those of vectors that `encoder` made, on both sides."""
    query = "a letter from the harbour"
    found = client.post("/search", json={"queries": [query], "k": len(DOCUMENTS)}).json()["results"][0]
    vectors = encoder.encode([query, *(hit["text"] for hit in found)]).vectors
    np.testing.assert_allclose([hit["score"] for hit in found], vectors[1:] @ vectors[0], atol=2e-6)
    assert len(found) == len(DOCUMENTS)


@needs_bf16
@pytest.mark.sqlite("it looks into SQLite's file")
def test_stored_documents_are_embedded_anew_in_the_form_asked_for_and_back(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    settings = new_settings(tmp_path, tiny_models_dir)
    exact, half = in_form(settings, FP32), in_form(settings, BF16)
    with serving(settings) as client:
        put(client, DOCUMENTS)
        assert client.get("/info").json()["form"] == "fp32/onnxruntime"
        assert_found_in(client, exact)
    with serving(settings.model_copy(update={"precision": "bf16"})) as client:  # ready at once, in fp32
        wait_for_form(client, BF16)
        info = client.get("/info").json()
        assert (info["model_dtype"], info["providers"]) == ("bfloat16", ["OpenVINO CPU"])
        assert info["form_cost"] == turned(client, tiny_models_dir)
        assert info["form_cost"]["cosine_least"] < 1
        assert_found_in(client, half)
        vector = client.post("/embed", json={"inputs": "red river"}).json()[0]
        np.testing.assert_allclose(vector, half.encode(["red river"]).vectors[0], atol=1e-6)
        put(client, {"d0": "another text now"})
        assert client.get("/models").json()["models"][0]["state"] == "active"
        assert 'form="bf16/openvino"' in client.get("/metrics").text
    assert stored(settings, "SELECT DISTINCT form, state FROM generations WHERE state <> 'dropped'") == [
        ("bf16/openvino", "active")
    ]
    with serving(settings) as client:
        wait_for_form(client, FP32)
        assert_found_in(client, exact)


@pytest.mark.long
@needs_bf16
def test_nothing_mixes_while_documents_are_embedded_anew(tmp_path: Path, tiny_models_dir: Path) -> None:
    settings = new_settings(tmp_path, tiny_models_dir)
    encoders = {str(form): in_form(settings, form) for form in (FP32, BF16)}
    with serving(settings) as client:
        put(client, DOCUMENTS)
    slowly = settings.model_copy(update={"precision": "bf16", "build_rate": 200.0})
    seen = set()
    with serving(slowly) as client:
        while "bf16/openvino" not in seen:
            before, after = client.get("/info").json()["form"], ""
            while before != after:  # the answer between two looks that agree is of that form
                before = after or before
                query = client.post("/search", json={"queries": ["the cat sleeps"], "k": 5}).json()
                after = client.get("/info").json()["form"]
            seen.add(after)
            hits = query["results"][0]
            vectors = encoders[after].encode(["the cat sleeps", *(hit["text"] for hit in hits)]).vectors
            np.testing.assert_allclose([hit["score"] for hit in hits], vectors[1:] @ vectors[0], atol=2e-6)
    assert seen == set(encoders)


@pytest.mark.sqlite("it looks into SQLite's file")
def test_vectors_of_a_form_that_cannot_be_computed_here_are_made_anew_before_it_is_ready(
    tmp_path: Path, tiny_models_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = new_settings(tmp_path, tiny_models_dir)
    with serving(settings) as client:
        put(client, DOCUMENTS)
    with sqlite3.connect(settings.data_dir / "simile.db") as connection:
        connection.execute("UPDATE generations SET form = 'int8/elsewhere'")
        # Sound, and of another form than what is served now: none of them may be used.
        one = "SELECT vector, checksum FROM vectors LIMIT 1"
        connection.execute(f"UPDATE vectors SET (vector, checksum) = ({one})")
    connection.close()
    with serving(settings) as client:
        assert client.get("/info").json()["form"] == "fp32/onnxruntime"
        assert_found_in(client, in_form(settings, FP32))
    assert "embedded again in fp32/onnxruntime: int8/elsewhere is not supported" in caplog.text


@needs_bf16
@pytest.mark.sqlite("it looks into SQLite's file")
def test_a_version_that_fails_the_forms_bound_stays_as_it_is_and_is_not_judged(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = new_settings(tmp_path, tiny_models_dir)
    with serving(settings) as client:
        put(client, DOCUMENTS)
    monkeypatch.setitem(proof.FORMS, "bf16", 1 - 1e-9)
    with serving(settings.model_copy(update={"precision": "bf16"})) as client:
        until(lambda: 'simile_swaps_total{outcome="failed"} 1.0' in client.get("/metrics").text)
        time.sleep(1.5)  # three looks: it is not tried again
        assert 'simile_swaps_total{outcome="failed"} 1.0' in client.get("/metrics").text
        assert client.get("/info").json()["form"] == "fp32/onnxruntime"
        assert client.get("/models").json()["models"][0]["state"] == "active"
        assert_found_in(client, in_form(settings, FP32))
    assert "in bf16/openvino points away" in caplog.text
    assert stored(settings, "SELECT version FROM verdicts") == []


def test_a_first_start_in_a_form_that_is_not_there_is_refused_with_what_to_do(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    shutil.copytree(tiny_models_dir, tmp_path / "data/models")
    said = run_and_fail(tmp_path, SIMILE_PRECISION="fp16")
    assert "SIMILE_PRECISION=fp16: fp16 is not available on processors; fp32, bf16, int8 and auto" in said
    assert not (tmp_path / "data/simile.db").exists(), "nothing was touched"


@needs_bf16
def test_a_first_start_in_bf16_serves_and_stores_it(tmp_path: Path, tiny_models_dir: Path) -> None:
    settings = new_settings(tmp_path, tiny_models_dir, precision="bf16", deterministic=True)
    with serving(settings) as client:
        put(client, DOCUMENTS)
        info = client.get("/info").json()
        assert (info["form"], info["deterministic"]) == ("bf16/openvino", True)
        assert_found_in(client, in_form(settings, BF16))
        texts = [DOCUMENTS["d3"], *(f"the {text}" for text in TEXTS[:40])]
        together = client.post("/embed", json={"inputs": texts}).json()
        assert together[0] == client.post("/embed", json={"inputs": [texts[0]]}).json()[0]


@needs_int8
def test_int8_is_served_with_what_it_costs(tmp_path: Path, tiny_models_dir: Path) -> None:
    settings = new_settings(tmp_path, tiny_models_dir, precision="int8")
    manifest = Store(settings.models_dir).versions()[0]
    assert manifest.quantised is not None
    with serving(settings) as client:
        put(client, DOCUMENTS)
        info = client.get("/info").json()
        assert (info["form"], info["model_dtype"]) == ("int8/onnxruntime", "int8")
        cost = manifest.quantised
        assert info["form_cost"] == {
            "texts": 160,
            "cosine_mean": cost.cosine_mean,
            "cosine_least": cost.cosine_least,
            "same_neighbours": cost.same_neighbours,
        }
        assert_found_in(client, in_form(settings, INT8))
        texts = [DOCUMENTS["d3"], *(f"the {text}" for text in TEXTS[:40])]
        together = client.post("/embed", json={"inputs": texts}).json()
        alone = client.post("/embed", json={"inputs": texts[0]}).json()
        np.testing.assert_allclose(together[0], alone[0], atol=1e-6)
    with serving(settings.model_copy(update={"precision": "fp32"})) as client:
        wait_for_form(client, FP32)
        assert client.get("/info").json()["form_cost"] is None


@needs_int8
def test_a_version_without_int8_is_served_on_until_one_with_it_is_activated(
    tmp_path: Path, tiny_models_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = new_settings(tmp_path, tiny_models_dir)
    store = Store(settings.models_dir)
    before = without_int8(store, store.versions()[0])
    with serving(settings) as client:
        put(client, DOCUMENTS)
    with serving(settings.model_copy(update={"precision": "int8"})) as client:
        until(lambda: 'simile_swaps_total{outcome="failed"} 1.0' in client.get("/metrics").text)
        assert client.get("/info").json()["form"] == "fp32/onnxruntime"
        after = publish(store, tiny_source(tmp_path / "again"), origin=before.origin)
        assert (after.fingerprint, after.version == before.version) == (before.fingerprint, False)
        assert client.post(f"/models/{after.version}/activate").status_code == 202
        wait_for_form(client, INT8)
        assert client.get("/info").json()["model_version"] == after.version
        assert_found_in(client, store.open(after.version, form=INT8))
    assert "This version has no int8 graph: it was published by an old release" in caplog.text


def without_int8(store: Store, manifest: Manifest) -> Manifest:
    """A version of the store, as if it had been published before there was any int8."""
    folder = store.folder(manifest.version)
    (folder / "onnx" / INT8_NAME).unlink()
    files = {file: checksum for file, checksum in manifest.files.items() if INT8_NAME not in file}
    old = manifest.model_copy(update={"quantised": None, "files": files})
    (folder / "manifest.json").write_text(old.text())
    return old

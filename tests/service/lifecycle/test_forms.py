"""Precisions: a change embeds all documents again, and SIMILE_PRECISION=auto chooses one by speed."""

import contextlib
import errno
import json
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from models.encoder import Encoder, Turned
from models.engines import opening
from models.engines.form import FP32, Form
from models.engines.opening import BF16, INT8, INT8_NAME
from models.errors import FormUnavailable
from models.manifest import Manifest, Quantized
from models.publishing import int8, proof
from models.publishing.publish import publish
from models.store import ModelStore
from service.batching.workers import Layout
from service.cli import check
from service.lifecycle import model_loader
from service.lifecycle.model_loader import (
    FORM_FILE,
    ModelLoader,
    build_measurement_key,
    fastest_form,
    get_precision_loss,
    kept_form,
    processor,
)
from service.settings import Settings
from tests.models.forms import needs_bf16, needs_int8
from tests.parts.documents import hits
from tests.parts.documents import put_texts as put
from tests.service.conftest import new_settings, serving, turned, wait_until_active
from tests.service.process import run_and_fail
from tests.service.swapping import TEXTS, published_pair
from tests.tiny import tiny_source
from tests.waiting import until

DOCUMENTS = {f"d{at}": text for at, text in enumerate(TEXTS)}


def in_form(settings: Settings, form: Form) -> Encoder:
    store = ModelStore(settings.models_dir)
    return store.open(store.versions()[0].version, form=form)


def wait_for_form(client: TestClient, form: Form) -> None:
    until(lambda: client.get("/info").json()["form"] == str(form), lambda: client.get("/models").text)


def failed_once(client: TestClient) -> bool:
    return 'simile_swaps_total{outcome="failed"} 1.0' in client.get("/metrics").text


def stored(settings: Settings, query: str) -> list[tuple[str, ...]]:
    address = f"file:{settings.data_dir / 'simile.db'}?mode=ro"
    with contextlib.closing(sqlite3.connect(address, uri=True)) as connection:
        return connection.execute(query).fetchall()


def assert_found_in(client: TestClient, encoder: Encoder) -> None:
    """Checks that a search finds all documents, with the scores that `encoder` gives them."""
    query = "a letter from the harbour"
    found = hits(client, query, k=len(DOCUMENTS))
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
            while before != after:  # If the form is the same before and after, the hits have it.
                before = after or before
                found = hits(client, "the cat sleeps", k=5)
                after = client.get("/info").json()["form"]
            seen.add(after)
            vectors = encoders[after].encode(["the cat sleeps", *(hit["text"] for hit in found)]).vectors
            np.testing.assert_allclose([hit["score"] for hit in found], vectors[1:] @ vectors[0], atol=2e-6)
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
        # Valid checksums, but vectors of another form: none may be used.
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
        until(lambda: failed_once(client))
        time.sleep(1.5)  # Three polls. The service does not try again.
        assert failed_once(client)
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
    manifest = ModelStore(settings.models_dir).versions()[0]
    assert manifest.quantised is not None
    with serving(settings) as client:
        put(client, DOCUMENTS)
        info = client.get("/info").json()
        assert (info["form"], info["model_dtype"]) == ("int8/onnxruntime", "int8")
        cost = manifest.quantised
        assert isinstance(cost, Quantized)
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
@pytest.mark.parametrize("served_before", [True, False], ids=["it was active", "first start"])
def test_int8_that_is_asked_for_later_is_added_by_publishing_the_version_again(
    tmp_path: Path, tiny_models_dir: Path, served_before: bool
) -> None:
    settings = new_settings(tmp_path, tiny_models_dir)
    store = ModelStore(settings.models_dir)
    before = without_int8(store, store.versions()[0])
    if served_before:
        with serving(settings) as client:
            put(client, DOCUMENTS)
            assert client.get("/info").json()["form"] == str(FP32)
    with serving(settings.model_copy(update={"precision": "int8"})) as client:
        put(client, DOCUMENTS)
        wait_for_form(client, INT8)
        known, after = store.versions()
        assert (known, after.fingerprint) == (before, before.fingerprint)
        assert client.get("/info").json()["model_version"] == after.version
        assert_found_in(client, store.open(after.version, form=INT8))
    with serving(settings.model_copy(update={"precision": "int8"})) as client:
        assert client.get("/info").json()["form"] == str(INT8)
        assert len(store.versions()) == 2, "the next start publishes nothing"


def served_without_int8(tmp_path: Path, tiny_models_dir: Path) -> tuple[Settings, ModelStore, Manifest]:
    """Stores documents with a version that has no int8 graph. Returns settings, models and this version."""
    settings = new_settings(tmp_path, tiny_models_dir)
    store = ModelStore(settings.models_dir)
    before = without_int8(store, store.versions()[0])
    with serving(settings) as client:
        put(client, DOCUMENTS)
    return settings, store, before


@needs_int8
def test_a_version_that_cannot_get_an_int8_graph_is_served_on(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings, _, before = served_without_int8(tmp_path, tiny_models_dir)
    monkeypatch.setattr(int8, "_MIN_MEAN", 1.1)
    with serving(settings.model_copy(update={"precision": "int8"})) as client:
        until(lambda: failed_once(client))
        assert client.get("/info").json()["form"] == str(FP32)
    assert f"The int8 graph of {before.version} loses too much accuracy" in caplog.text
    assert f"`simile models quantize {before.version}`" in caplog.text


@needs_int8
def test_a_models_folder_that_cannot_be_written_is_served_on(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings, store, before = served_without_int8(tmp_path, tiny_models_dir)

    def publish(*_: object) -> Manifest:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(store.root))

    monkeypatch.setattr(ModelStore, "publish", publish)
    with serving(settings.model_copy(update={"precision": "int8"})) as client:
        until(lambda: failed_once(client))
        assert client.get("/info").json()["form"] == str(FP32)
    assert f"{before.version} gets no int8 graph: [Errno 30] Read-only file system" in caplog.text


@pytest.mark.parametrize(
    ("changed", "calibrates"),
    [
        ({}, False),
        ({"precision": "bf16"}, False),
        ({"precision": "auto"}, False),  # by default it leaves int8 out
        ({"precision": "auto", "precision_loss": 0.01}, True),
        ({"precision": "auto", "precision_loss": 0.01, "device": "cuda"}, False),
        ({"precision": "fp16", "device": "cuda"}, False),
        pytest.param({"precision": "int8"}, True, marks=needs_int8),
    ],
)
def test_a_first_start_calibrates_int8_only_if_it_is_asked_for(
    tmp_path: Path, changed: dict[str, Any], calibrates: bool
) -> None:
    assert Settings(data_dir=tmp_path, **changed).calibrates_int8 is calibrates


@pytest.mark.parametrize("precision", ["fp32", pytest.param("int8", marks=needs_int8)])
def test_a_model_of_the_first_start_has_int8_only_if_it_is_asked_for(tmp_path: Path, precision: str) -> None:
    (tmp_path / "none").mkdir()
    source = tiny_source(tmp_path / "source")
    settings = new_settings(tmp_path, tmp_path / "none", precision=precision, model=str(source))
    with serving(settings) as client:
        assert client.get("/info").json()["form"] == f"{precision}/onnxruntime"
    [manifest] = ModelStore(settings.models_dir).versions()
    assert (manifest.quantised is not None) is (precision == "int8")


def without_int8(store: ModelStore, manifest: Manifest) -> Manifest:
    """Changes a version as if a release without int8 had published it. Returns its new manifest."""
    folder = store.folder(manifest.version)
    (folder / "onnx" / INT8_NAME).unlink()
    files = {file: checksum for file, checksum in manifest.files.items() if INT8_NAME not in file}
    old = manifest.model_copy(update={"quantised": None, "files": files})
    (folder / "manifest.json").write_text(old.text())
    return old


ANY_LOSS = 0.5


class Speeds:
    """Replaces the measurement of speed: fixed seconds per precision. Records the measured forms."""

    def __init__(self, **seconds: float) -> None:
        self._seconds = seconds
        self.requested: list[Form] = []

    def __call__(self, encoder: Encoder, texts: Sequence[str]) -> float:
        encoder.encode(texts[:1])
        self.requested.append(encoder.form)
        return self._seconds[encoder.form.precision]


def choose(models_dir: Path, folder: Path, loss: float = ANY_LOSS, now: Form = FP32) -> Form:
    store = ModelStore(models_dir)
    return fastest_form(loader_of(store), store.versions()[0].version, folder, loss, now)


def kept(models_dir: Path, folder: Path) -> Form | None:
    store = ModelStore(models_dir)
    version = store.folder(store.versions()[0].version)
    return kept_form(folder, build_measurement_key(version, loader_of(store).layout, ANY_LOSS))


def loader_of(store: ModelStore) -> ModelLoader:
    return ModelLoader(store, Settings(data_dir=store.root), Layout(1, 1, "of a test"))


@pytest.fixture
def only_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes bf16 unavailable, so that the choice is the same on every machine."""

    def require(form: Form) -> None:
        if form == BF16:
            raise FormUnavailable("no bf16 here")
        opening.require(form)

    monkeypatch.setattr(model_loader, "require", require)


@needs_int8
@pytest.mark.parametrize(
    ("int8", "now", "chosen"),
    [
        (0.82, FP32, INT8),  # The limit is 1.2 times as fast: 0.83 s.
        (0.85, FP32, FP32),
        (1.1, INT8, INT8),  # The form of the stored vectors stays if it is not much slower.
        (1.3, INT8, FP32),
        (0.85, BF16, FP32),  # BF16 is not available any more.
    ],
)
@pytest.mark.usefixtures("only_int8")
def test_a_form_that_is_clearly_faster_is_chosen_and_kept(
    tmp_path: Path,
    tiny_models_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    int8: float,
    now: Form,
    chosen: Form,
) -> None:
    speeds = Speeds(fp32=1.0, int8=int8)
    monkeypatch.setattr(model_loader, "_seconds", speeds)
    assert choose(tiny_models_dir, tmp_path, now=now) == chosen
    assert set(speeds.requested) == {FP32, INT8}
    written = json.loads((tmp_path / FORM_FILE).read_text())
    assert written["form"] == str(chosen)
    assert written["texts_per_second"] == {str(FP32): 64.0, str(INT8): round(64 / int8, 1)}
    speeds.requested.clear()
    assert choose(tiny_models_dir, tmp_path, now=now) == chosen
    assert not speeds.requested


@needs_int8
@pytest.mark.usefixtures("only_int8")
def test_a_form_that_loses_more_is_left_out_and_the_log_says_how_much(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    speeds = Speeds(fp32=1.0, int8=0.1)
    monkeypatch.setattr(model_loader, "_seconds", speeds)
    with caplog.at_level(logging.INFO, model_loader.__name__):
        assert choose(tiny_models_dir, tmp_path, loss=0.0) == FP32
    assert set(speeds.requested) == {FP32}
    assert "measures fp32/onnxruntime, int8/onnxruntime" in caplog.text
    assert "leaves int8/onnxruntime out: it loses 0.0" in caplog.text
    assert choose(tiny_models_dir, tmp_path, loss=ANY_LOSS) == INT8  # Another limit gives another choice.


@needs_int8
@pytest.mark.usefixtures("only_int8")
def test_a_form_that_fails_is_left_out(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(encoder: Encoder, texts: Sequence[str]) -> float:
        if encoder.form == INT8:
            raise RuntimeError("the runtime knows no such operator")
        return 1.0

    monkeypatch.setattr(model_loader, "_seconds", fails)
    assert choose(tiny_models_dir, tmp_path) == FP32
    assert "leaves int8/onnxruntime out: the runtime knows no such operator" in caplog.text


@needs_int8
@pytest.mark.usefixtures("only_int8")
def test_a_choice_that_cannot_be_kept_is_served(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FORM_FILE).mkdir()
    monkeypatch.setattr(model_loader, "_seconds", Speeds(fp32=1.0, int8=0.1))
    assert choose(tiny_models_dir, tmp_path) == INT8
    assert "cannot keep its choice" in caplog.text


def test_a_large_encoder_is_measured_fewer_times(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_loader, "_MEASURE_SECONDS", 0.0)
    speeds = Speeds(fp32=1.0, bf16=1.0, int8=1.0)
    monkeypatch.setattr(model_loader, "_seconds", speeds)
    choose(tiny_models_dir, tmp_path)
    assert speeds.requested.count(FP32) == 1


@needs_int8
@pytest.mark.usefixtures("only_int8")
@pytest.mark.parametrize("damage", ["", "[]", "{}", "processor", "fingerprint", "form", "number"])
def test_another_processor_or_version_and_a_damaged_file_are_measured_again(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr(model_loader, "_seconds", Speeds(fp32=1.0, int8=0.1))
    choose(tiny_models_dir, tmp_path)
    file = tmp_path / FORM_FILE
    sound = json.loads(file.read_text())
    other = {
        "processor": sound | {"processor": "of another machine"},
        "fingerprint": sound | {"fingerprint": "of another version"},
        "form": sound | {"form": "fp8/other"},
        "number": sound | {"form": 3},
    }
    file.write_text(json.dumps(other[damage]) if damage in other else damage)
    assert kept(tiny_models_dir, tmp_path) is None
    monkeypatch.setattr(model_loader, "_seconds", Speeds(fp32=1.0, int8=2.0))
    assert choose(tiny_models_dir, tmp_path) == FP32
    assert kept(tiny_models_dir, tmp_path) == FP32


@needs_bf16
def test_forms_that_come_or_go_are_measured_again(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(model_loader, "_seconds", Speeds(fp32=1.0, bf16=0.2, int8=0.9))
    assert choose(tiny_models_dir, tmp_path) == BF16
    request.getfixturevalue("only_int8")
    assert kept(tiny_models_dir, tmp_path) is None
    assert choose(tiny_models_dir, tmp_path) == FP32


def test_of_a_pair_the_larger_loss_counts(tmp_path: Path) -> None:
    *_, both = published_pair(tmp_path)
    encoder = ModelStore(tmp_path).open(both)
    assert encoder.queries is not None
    assert get_precision_loss(encoder) == 0
    encoder.turned, encoder.queries.turned = Turned(3, 0.99, 0.9), Turned(3, 0.75, 0.5)
    assert get_precision_loss(encoder) == 0.25
    encoder.close()


@needs_int8
@pytest.mark.sqlite("replicas on one database measure nothing")
@pytest.mark.usefixtures("only_int8")
@pytest.mark.parametrize("why", ["no int8", "loses more"])
def test_a_later_version_that_the_form_is_not_for_is_served_in_fp32(
    tmp_path: Path,
    tiny_models_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    why: str,
) -> None:
    monkeypatch.setattr(model_loader, "_seconds", Speeds(fp32=1.0, int8=0.1))
    settings = new_settings(tmp_path, tiny_models_dir, precision="auto", precision_loss=ANY_LOSS)
    store = ModelStore(settings.models_dir)
    first = store.versions()[0]
    second = publish(store, tiny_source(tmp_path / "other", seed=7), origin="other", int8=True)
    if why == "no int8":
        second = without_int8(store, second)
    else:
        lossy = lambda of: 0.9 * (of.form == INT8 and of.manifest.version == second.version)  # noqa: E731
        monkeypatch.setattr(model_loader, "get_precision_loss", lossy)
    with serving(settings) as client:
        put(client, DOCUMENTS)
        assert client.get("/info").json()["form"] == str(INT8)
        client.post(f"/models/{second.version}/activate")
        wait_until_active(client, second.version)
        assert client.get("/info").json()["form"] == str(FP32)
        assert_found_in(client, store.open(second.version))
        assert "auto serves " + second.version + " in fp32, not in int8/onnxruntime" in caplog.text
        client.post("/models/rollback")
        wait_until_active(client, first.version)
        assert client.get("/info").json()["form"] == str(INT8)
        client.post(f"/models/{second.version}/activate")
        wait_until_active(client, second.version)
    with serving(settings) as client:
        assert client.get("/info").json()["form"] == str(FP32)
        assert_found_in(client, store.open(second.version))
        controller = client.app.state.runtime.controller  # type: ignore[attr-defined]
        client.portal.call(controller.look)  # type: ignore[union-attr]
        assert controller.swap is None, "nothing is embedded again"


def test_a_processor_is_told_by_name_and_family(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(
        "processor\t: 0\nmodel name\t: A B\ncpu family\t: 25\nmodel\t\t: 17\n\nmodel name\t: other\n"
    )
    assert processor(file) == "model name A B, cpu family 25, model 17"
    file.write_text("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n")
    assert processor(file) == "CPU implementer 0x41, CPU part 0xd0c"
    assert processor(tmp_path / "absent") == "unknown"


@pytest.mark.sqlite("replicas on one database measure nothing")
def test_a_service_measures_at_its_first_start_and_serves_what_it_chose(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    settings = new_settings(tmp_path, tiny_models_dir).model_copy(update={"precision": "auto"})
    assert "the fastest, measured at the next start" in check.report(settings)
    with serving(settings) as client:
        written = json.loads((settings.data_dir / FORM_FILE).read_text())
        assert client.get("/info").json()["form"] == written["form"]
        assert written["texts_per_second"][str(FP32)] > 0
    assert f"{written['form']}\n" in check.report(settings)


def test_replicas_and_a_gpu_measure_nothing() -> None:
    assert Settings(precision="auto").measures_form
    assert not Settings(precision="auto", device="cuda").measures_form
    assert not Settings(precision="auto", database="postgresql://somewhere/simile").measures_form
    assert not Settings(precision="bf16").measures_form

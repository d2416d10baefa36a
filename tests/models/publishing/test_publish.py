"""Publishing a folder: its files, its proof, and refusals, which leave nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from safetensors.numpy import load_file, save_file

from models.encoder import Encoder
from models.engines.opening import INT8_NAME
from models.errors import ModelUnavailable, ProofFailed, Unsupported
from models.graph.file import HIDDEN, POOLED, SENTENCE
from models.manifest import FILE_NAME, Manifest
from models.publishing.proof import check_golden
from models.publishing.publish import prepare, publish, publish_prepared
from models.sources.folder import read_source
from models.store import ModelStore
from models.tokens.texts import PROOF_TEXTS
from tests.models.forms import needs_int8
from tests.tiny import WIDTH, tiny_source


def _modules(folder: Path, **paths: str) -> None:
    listed = [{"type": f"sentence_transformers.models.{name}", "path": path} for name, path in paths.items()]
    (folder / "modules.json").write_text(json.dumps(listed))


def _vectors(store: ModelStore, version: str) -> np.ndarray:
    return store.open(version).encode(PROOF_TEXTS).vectors


def test_the_published_folder_is_a_whole_sentence_transformers_folder(
    store: ModelStore, folder: Path
) -> None:
    manifest = publish(store, folder, origin="Some/Tiny_Model v2", lineage={"seed": 1})
    at = store.folder(manifest.version)
    assert manifest.version.endswith(f"-tiny-model-v2-{manifest.fingerprint[:8]}")
    assert manifest.lineage == {"seed": 1}
    modules = json.loads((at / "modules.json").read_bytes())
    paths = {module["type"].rsplit(".")[-1]: module["path"] for module in modules}
    assert paths == {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    assert json.loads((at / "1_Pooling" / "config.json").read_bytes())["pooling_mode_mean_tokens"] is True
    assert json.loads((at / "sentence_bert_config.json").read_bytes())["max_seq_length"] == 64
    tokenizer = json.loads((at / "tokenizer.json").read_bytes())
    assert tokenizer["padding"] is None
    assert tokenizer["truncation"]["max_length"] == 64
    outputs = [output.name for output in onnx.load(at / "onnx" / "model.onnx").graph.output]
    assert outputs == [HIDDEN, SENTENCE, POOLED]
    files = {f.relative_to(at).as_posix() for f in at.rglob("*") if f.is_file()}
    assert set(manifest.files) == files - {"manifest.json"}


def test_publishing_again_answers_the_version_that_is_there(store: ModelStore, folder: Path) -> None:
    first = publish(store, folder)
    assert publish(store, shutil.copytree(folder, folder.with_name("copy"))) == first
    assert len(store.versions()) == 1


def _drop_int8(manifest: dict[str, Any], at: Path) -> None:
    del manifest["quantised"], manifest["files"][f"onnx/{INT8_NAME}"]
    (at / "onnx" / INT8_NAME).unlink()


@pytest.mark.parametrize(
    ("age", "is_missing"),
    [
        (lambda manifest, _: manifest.pop("packed"), lambda manifest: not manifest.packed),
        (lambda manifest, _: manifest.pop("calibration"), lambda manifest: manifest.calibration.int8 is None),
        (lambda manifest, _: manifest.update(calibration={}), lambda it: it.calibration.int8 is None),
        pytest.param(_drop_int8, lambda manifest: manifest.quantised is None, marks=needs_int8),
    ],
    ids=["packing", "calibration", "empty calibration", "int8"],
)
def test_a_version_of_an_older_release_is_served_on_and_published_again_on_request(
    store: ModelStore,
    folder: Path,
    age: Callable[[dict[str, Any], Path], object],
    is_missing: Callable[[Manifest], bool],
) -> None:
    first = publish(store, folder, int8=True)
    assert not is_missing(first)
    at = store.folder(first.version)
    content = json.loads((at / FILE_NAME).read_bytes())
    age(content, at)
    (at / FILE_NAME).write_text(json.dumps(content))
    assert is_missing(store.open(first.version).manifest)
    time.sleep(1.1)  # A version's name has the second of its publication.
    second = publish(store, folder, int8=True)
    assert not is_missing(second)
    assert second.version != first.version
    assert second.fingerprint == first.fingerprint, "it is the same space"
    assert second.quantised == first.quantised
    assert publish(store, folder, int8=True) == second


def test_a_published_folder_can_be_published_elsewhere_and_is_the_same_space(
    store: ModelStore, folder: Path, tmp_path: Path
) -> None:
    first = publish(store, folder)
    other = ModelStore(tmp_path / "other")
    second = publish(other, store.folder(first.version))
    assert (second.fingerprint, second.origin) == (first.fingerprint, first.origin)
    assert second.packed
    np.testing.assert_array_equal(_vectors(other, second.version), _vectors(store, first.version))


def test_a_new_prompt_for_neither_side_is_a_new_version_of_the_same_space(
    store: ModelStore, tmp_path: Path
) -> None:
    first = publish(store, tiny_source(tmp_path / "one"))
    prompts = {"query": "", "clustering": "cluster: "}
    second = publish(store, tiny_source(tmp_path / "two", prompts=prompts))
    assert second.version != first.version
    assert second.fingerprint == first.fingerprint
    assert second.prompts == prompts


def test_prompts_for_searching_and_for_documents_are_found_by_name(store: ModelStore, tmp_path: Path) -> None:
    prompts = {"query": "find: ", "passage": "text: ", "other": "x"}
    manifest = publish(store, tiny_source(tmp_path / "model", prompts=prompts))
    assert (manifest.search_prompt, manifest.document_prompt) == ("find: ", "text: ")
    assert manifest.prompts == prompts


def test_a_bare_hugging_face_folder_gets_mean_pooling_and_its_own_maximum(
    store: ModelStore, folder: Path
) -> None:
    expected = _vectors(store, publish(store, folder).version)
    for name in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "1_Pooling")
    manifest = publish(store, folder)
    assert (manifest.pooling, manifest.max_length) == ("mean", 128)  # The position table has 128 rows.
    short = [i for i, text in enumerate(PROOF_TEXTS) if len(text) < 50]
    np.testing.assert_allclose(_vectors(store, manifest.version)[short], expected[short], atol=1e-6)


def test_a_folder_with_its_transformer_in_a_subfolder_is_the_same_model(
    store: ModelStore, folder: Path
) -> None:
    first = publish(store, folder)
    inner = folder / "0_Transformer"
    inner.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors", "sentence_bert_config.json"):
        (folder / name).rename(inner / name)
    modules = json.loads((folder / "modules.json").read_bytes())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    assert publish(store, folder) == first


def test_a_dense_layer_and_several_poolings_come_along(
    store: ModelStore, folder: Path, tmp_path: Path
) -> None:
    generator = np.random.default_rng(3)
    weight = generator.normal(size=(12, 2 * WIDTH)).astype(np.float32)
    (folder / "2_Dense").mkdir()
    layer = {"linear.weight": weight, "linear.bias": weight[:, 0].copy()}
    save_file(layer, folder / "2_Dense" / "model.safetensors")
    (folder / "2_Dense" / "config.json").write_text("{}")
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": ["mean", "cls"]}')
    modules = json.loads((folder / "modules.json").read_bytes())
    modules[2:] = [{"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    manifest = publish(store, folder)
    assert (manifest.dimension, manifest.pooling) == (12, "mean+cls")
    at = store.folder(manifest.version)
    np.testing.assert_array_equal(load_file(at / "2_Dense" / "model.safetensors")["linear.weight"], weight)
    again = publish(ModelStore(tmp_path / "again"), at)
    assert again.fingerprint == manifest.fingerprint


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("encoder.layer.0.output.dense.bias", lambda values: values * np.nan, "no finite vector"),
        ("embeddings.word_embeddings.weight", lambda values: values[:5], "cannot compute the graph"),
        (
            "encoder.layer.1.output.dense.weight",
            lambda values: values * np.float32(1.01),
            "computed in numpy",
        ),
    ],
)
def test_a_graph_that_does_not_compute_its_weights_is_not_published(
    store: ModelStore, folder: Path, name: str, change: Callable[[np.ndarray], np.ndarray], reason: str
) -> None:
    prepared = prepare(read_source(folder))
    [wrong] = [tensor for tensor in prepared.model.graph.initializer if tensor.name == name]
    wrong.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(wrong)), name))
    with pytest.raises(ProofFailed, match=reason) as raised:
        publish_prepared(store, prepared, origin="tiny", lineage={})
    assert "\n" not in str(raised.value)
    assert store.versions() == []
    assert list(store.root.glob(".tmp-*")) == []


def test_a_model_that_is_not_the_known_one_is_not_published(
    store: ModelStore, folder: Path, tmp_path: Path
) -> None:
    known = _vectors(store, publish(store, folder).version)
    with pytest.raises(ProofFailed, match="differs from the known vectors of this model"):
        publish(ModelStore(tmp_path / "other"), tiny_source(tmp_path / "seed", seed=1), known=known)
    assert publish(ModelStore(tmp_path / "other"), folder, known=known)


def test_the_golden_vectors_find_a_file_that_computes_something_else(
    store: ModelStore, folder: Path, tmp_path: Path
) -> None:
    manifest = publish(store, folder)
    other = publish(store, tiny_source(tmp_path / "seed", seed=1))
    assert check_golden(store.open(manifest.version), store.folder(manifest.version)) <= 1e-6
    with pytest.raises(ProofFailed, match="differs from the published"):
        check_golden(store.open(other.version), store.folder(manifest.version))


def test_pickles_are_neither_read_nor_copied(store: ModelStore, folder: Path) -> None:
    for name in ("pytorch_model.bin", "training_args.pt", "optimizer.pkl"):
        (folder / name).write_bytes(b"cos\nsystem\n(S'touch /tmp/never'\ntR.")
    at = store.folder(publish(store, folder).version)
    assert not [file.name for file in at.rglob("*") if file.suffix in (".bin", ".pt", ".pkl")]


@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (lambda at: (at / "model.safetensors").unlink(), "neither model.safetensors nor onnx/model.onnx"),
        (lambda at: (at / "config.json").unlink(), r"has no config\.json"),
        (lambda at: (at / "config.json").write_text("{"), "is not JSON"),
        (lambda at: (at / "modules.json").write_text('[{"path": ""}]'), "malformed"),
        (lambda at: _modules(at, Transformer="../elsewhere"), "points outside"),
        (lambda at: _modules(at, Transformer="", CNN="1"), "lists Transformer, CNN"),
        (lambda at: (at / "1_Pooling" / "config.json").write_text('{"pooling_mode": "median"}'), "median"),
    ],
)
def test_what_cannot_be_published_is_refused_by_name(
    store: ModelStore, folder: Path, break_it: Callable[[Path], object], reason: str
) -> None:
    break_it(folder)
    with pytest.raises(Unsupported, match=reason):
        publish(store, folder)
    assert store.versions() == []
    with pytest.raises(ModelUnavailable, match="is not a folder"):
        publish(store, folder / "nowhere")


def test_opening_needs_no_onnx_package(store: ModelStore, folder: Path) -> None:
    version = publish(store, folder).version
    code = (
        "import sys; from pathlib import Path; from models.encoder import Encoder\n"
        f"Encoder.open(Path({str(store.folder(version))!r})).encode(['a'])\n"
        "print([n for n in ('onnx', 'torch', 'transformers', 'huggingface_hub') if n in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_encoder_of_a_version_is_open_to_the_sources_own_vectors(store: ModelStore, folder: Path) -> None:
    manifest = publish(store, folder)
    golden = json.loads((store.folder(manifest.version) / "golden.json").read_bytes())
    prepared = prepare(read_source(folder))
    encoder = Encoder.open(store.folder(manifest.version))
    assert prepared.reference is not None
    expected = prepared.reference([row.ids for row in encoder.tokenize(golden["texts"])])
    np.testing.assert_allclose(np.array(golden["vectors"]), expected, atol=1e-5)

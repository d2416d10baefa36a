"""A model that one ONNX file cannot hold: its weights lie beside the graph, checked as every file is."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from models.engines import gpu_graph
from models.engines.opening import BF16, has_bf16
from models.errors import Damaged, Unsupported
from models.graph import nodes as aside
from models.graph.backbone import map_safetensors, read_safetensors
from models.manifest import check
from models.publishing import publish as publishing
from models.publishing.publish import publish
from models.store import Store
from models.tokens.texts import PROOF_TEXTS
from tests.tiny import tiny_source

DATA = "onnx/model.onnx_data"


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model is a large one."""
    for module in (aside, publishing):
        monkeypatch.setattr(module, "LARGEST", 1000)
    monkeypatch.setattr(aside, "SMALLEST", 64)


def test_a_large_model_computes_what_a_small_one_does(
    tmp_path: Path, small_limit: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tiny_source(tmp_path / "source")
    store = Store(tmp_path / "models")
    large = publish(store, source)
    assert publish(store, store.folder(large.version)) == large, "its own folder is its source"
    monkeypatch.undo()
    other = Store(tmp_path / "other")
    small = publish(other, source)
    assert large.fingerprint == small.fingerprint, "the space does not depend on the file"
    assert (DATA in large.files, DATA in small.files) == (True, False)
    folder = store.folder(large.version)
    assert (folder / "onnx/model.onnx").stat().st_size < (folder / DATA).stat().st_size
    found, expected = (
        s.open(m.version).encode(PROOF_TEXTS).vectors for s, m in ((store, large), (other, small))
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_other_runtimes_read_it_and_a_gpu_refuses_what_is_too_large_for_it(
    tmp_path: Path, small_limit: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "models")
    version = publish(store, tiny_source(tmp_path / "source")).version
    onnx_file = store.folder(version) / "onnx/model.onnx"
    whole = onnxruntime.InferenceSession(gpu_graph.prepared(onnx_file, "fp32"))
    assert [output.name for output in whole.get_outputs()] == ["sentence_embedding", "pooled_embedding"]
    monkeypatch.setattr(gpu_graph, "LARGEST", 1000)
    with pytest.raises(Unsupported, match="SIMILE_PRECISION=fp16"):
        gpu_graph.prepared(onnx_file, "fp32")
    if importlib.util.find_spec("openvino") is None or not has_bf16():
        pytest.skip("no bf16 here")
    expected = store.open(version).encode(PROOF_TEXTS).vectors
    found = store.open(version, form=BF16).encode(PROOF_TEXTS).vectors
    assert (found * expected).sum(1).min() > 0.9995


def test_the_weights_beside_the_graph_count_as_memory_that_it_takes(
    tmp_path: Path, small_limit: None
) -> None:
    store = Store(tmp_path / "models")
    version = publish(store, tiny_source(tmp_path / "source")).version
    files = [store.folder(version) / name for name in ("onnx/model.onnx", DATA)]
    assert store.open(version).file_bytes == sum(file.stat().st_size for file in files)


def test_each_tensor_begins_on_a_page_so_that_it_can_be_mapped(tmp_path: Path, small_limit: None) -> None:
    store = Store(tmp_path / "models")
    folder = store.folder(publish(store, tiny_source(tmp_path / "source")).version)
    graph = onnx.load(folder / "onnx/model.onnx", load_external_data=False).graph
    places = [
        {entry.key: entry.value for entry in tensor.external_data}
        for tensor in graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
    ]
    assert len(places) > 10
    assert all(int(place["offset"]) % 4096 == 0 for place in places)
    assert {place["location"] for place in places} == {"model.onnx_data"}


def test_a_changed_weight_beside_the_graph_is_damage(tmp_path: Path, small_limit: None) -> None:
    store = Store(tmp_path / "models")
    version = publish(store, tiny_source(tmp_path / "source")).version
    file = store.folder(version) / DATA
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(Damaged, match=r"model\.onnx_data was changed after it was published"):
        check(store.folder(version))


def test_a_mapped_checkpoint_holds_the_same_numbers(tmp_path: Path) -> None:
    file = tiny_source(tmp_path / "source") / "model.safetensors"
    read, mapped = read_safetensors(file), map_safetensors(file)
    assert read.keys() == mapped.keys()
    for name, tensor in read.items():
        np.testing.assert_array_equal(mapped[name], tensor)
        assert _is_mapped(mapped[name]), name


def _is_mapped(array: object) -> bool:
    while array is not None and not isinstance(array, np.memmap):
        array = getattr(array, "base", None)
    return array is not None


def test_a_full_disk_is_called_that() -> None:
    weights = aside.Aside()
    weights.add(onnx.GraphProto(), "w", np.ones(100_000), np.float32)
    with pytest.raises(OSError, match="No space left on device"):
        weights.write(Path("/dev/full"))

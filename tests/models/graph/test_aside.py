"""A model that one ONNX file cannot hold: its weights are separate files, checked like every file."""

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
from models.store import ModelStore
from models.tokens.texts import PROOF_TEXTS

DATA = "onnx/model.onnx_data"


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowers the limits of size, so that the tiny model has separate weight files."""
    for module in (aside, publishing):
        monkeypatch.setattr(module, "LARGEST", 1000)
    monkeypatch.setattr(aside, "SMALLEST", 64)


def test_a_large_model_computes_what_a_small_one_does(
    store: ModelStore, folder: Path, tmp_path: Path, small_limit: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = publish(store, folder)
    assert publish(store, store.folder(large.version)) == large, "its own folder is its source"
    monkeypatch.undo()
    other = ModelStore(tmp_path / "other")
    small = publish(other, folder)
    assert large.fingerprint == small.fingerprint, "the space does not depend on the file"
    assert (DATA in large.files, DATA in small.files) == (True, False)
    at = store.folder(large.version)
    assert (at / "onnx/model.onnx").stat().st_size < (at / DATA).stat().st_size
    found, expected = (
        s.open(m.version).encode(PROOF_TEXTS).vectors for s, m in ((store, large), (other, small))
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_other_runtimes_read_it_and_a_gpu_refuses_what_is_too_large_for_it(
    store: ModelStore, folder: Path, small_limit: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = publish(store, folder).version
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


def test_weights_beside_the_graph_are_mapped_checked_and_counted_as_memory(
    store: ModelStore, folder: Path, small_limit: None
) -> None:
    version = publish(store, folder).version
    files = [store.folder(version) / name for name in ("onnx/model.onnx", DATA)]
    assert store.open(version).file_bytes == sum(file.stat().st_size for file in files)
    graph = onnx.load(files[0], load_external_data=False).graph
    places = [
        {entry.key: entry.value for entry in tensor.external_data}
        for tensor in graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
    ]
    assert len(places) > 10
    assert all(int(place["offset"]) % 4096 == 0 for place in places)
    assert {place["location"] for place in places} == {"model.onnx_data"}
    content = bytearray(files[1].read_bytes())
    content[-1] ^= 1
    files[1].write_bytes(bytes(content))
    with pytest.raises(Damaged, match=r"model\.onnx_data was changed after it was published"):
        check(store.folder(version))


def test_a_mapped_checkpoint_holds_the_same_numbers(folder: Path) -> None:
    file = folder / "model.safetensors"
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

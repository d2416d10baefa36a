"""An ONNX file of another exporter: missing parts are completed, wrong parts are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from models.errors import ProofFailed, Unsupported
from models.graph.file import SENTENCE
from models.graph.head import SCOPE
from models.publishing.publish import prepare, publish
from models.sources.folder import read_source
from models.store import ModelStore
from models.tokens.texts import PROOF_TEXTS
from tests.parts.json_files import edit_json
from tests.tiny import ROUNDING, WIDTH


def _vectors(store: ModelStore, version: str) -> np.ndarray:
    return store.open(version).encode(PROOF_TEXTS).vectors


def _beside(folder: Path, model: onnx.ModelProto) -> Path:
    (folder / "onnx").mkdir(exist_ok=True)
    onnx.save(model, folder / "onnx" / "model.onnx")
    return folder


def _alone(folder: Path, model: onnx.ModelProto) -> Path:
    """Writes the ONNX file and removes the other weights, so that publishing reads the ONNX file."""
    (folder / "model.safetensors").unlink(missing_ok=True)
    return _beside(folder, model)


def _tokens_only(folder: Path) -> onnx.ModelProto:
    """Returns the model's graph as most exporters write it: token embeddings, no pooling."""
    model = prepare(read_source(folder)).model
    del model.graph.output[1:]
    kept = [node for node in model.graph.node if not node.name.startswith(SCOPE)]
    weights = [tensor for tensor in model.graph.initializer if not tensor.name.startswith(SCOPE)]
    for field, values in ((model.graph.node, kept), (model.graph.initializer, weights)):
        copies = [type(value).FromString(value.SerializeToString()) for value in values]
        del field[:]
        field.extend(copies)
    return model


def _another_family(folder: Path, opset: int, pooling: str) -> np.ndarray:
    """Replaces the weights by an ONNX file whose token embeddings are tanh(table[id]). Returns the table."""
    table = np.random.default_rng(9).normal(size=(250, WIDTH)).astype(np.float32)
    value = onnx.helper.make_tensor_value_info
    gather = onnx.helper.make_node("Gather", ["table", "input_ids"], ["rows"])
    graph = onnx.helper.make_graph(
        [gather, onnx.helper.make_node("Tanh", ["rows"], ["token_embeddings"])],
        "another",
        [value(name, onnx.TensorProto.INT64, ["b", "s"]) for name in ("input_ids", "attention_mask")],
        [value("token_embeddings", onnx.TensorProto.FLOAT, ["b", "s", WIDTH])],
        [numpy_helper.from_array(table, "table")],
    )
    opsets = [onnx.helper.make_opsetid("", opset)]
    _alone(folder, onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": pooling}))
    config = {"model_type": "another", "dim": WIDTH, "pad_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config))
    return table


def test_an_onnx_file_without_pooling_gets_it(store: ModelStore, folder: Path, tmp_path: Path) -> None:
    expected = _vectors(store, publish(store, folder).version)
    other = ModelStore(tmp_path / "other")
    manifest = publish(other, _alone(folder, _tokens_only(folder)))
    np.testing.assert_allclose(_vectors(other, manifest.version), expected, atol=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "max"])
@pytest.mark.parametrize("opset", [11, 13, 17, 18, 21])
def test_an_onnx_file_of_another_family_is_published_with_pooling(
    store: ModelStore, folder: Path, opset: int, pooling: str
) -> None:
    table = _another_family(folder, opset, pooling)
    manifest = publish(store, folder)
    encoder = store.open(manifest.version)
    for row in encoder.tokenize(PROOF_TEXTS):
        hidden = np.tanh(table[list(row.ids)])
        expected = hidden.mean(axis=0) if pooling == "mean" else hidden.max(axis=0)
        expected /= np.linalg.norm(expected)
        np.testing.assert_allclose(encoder.forward([row.ids])[0], expected, atol=ROUNDING)
    assert publish(store, store.folder(manifest.version)) == manifest


def test_an_onnx_file_that_pools_but_does_not_normalize_is_normalized(
    store: ModelStore, folder: Path, tmp_path: Path
) -> None:
    expected = _vectors(store, publish(store, folder).version)
    model = prepare(read_source(folder)).model
    del model.graph.node[-5:]  # from pooled_embedding on
    model.graph.node[-1].output[0] = SENTENCE
    del model.graph.output[2:]
    other = ModelStore(tmp_path / "other")
    manifest = publish(other, _alone(folder, model))
    np.testing.assert_allclose(_vectors(other, manifest.version), expected, atol=1e-6)


def test_a_bert_that_cannot_be_written_here_is_its_onnx_file(
    store: ModelStore, folder: Path, tmp_path: Path
) -> None:
    written = publish(store, folder)
    _beside(folder, _tokens_only(folder))
    edit_json(folder / "config.json", hidden_act="silu")
    other = ModelStore(tmp_path / "other")
    manifest = publish(other, folder)
    assert manifest.fingerprint != written.fingerprint, "it is named by the file"
    expected = _vectors(store, written.version)
    np.testing.assert_allclose(_vectors(other, manifest.version), expected, atol=1e-6)


@pytest.mark.parametrize("content", ["token embeddings", "other weights", "nothing"])
def test_weights_go_before_an_onnx_file_beside_them(
    store: ModelStore, folder: Path, tmp_path: Path, content: str
) -> None:
    """A hub folder may have both files. Only the graph that Simile makes skips padding (`packed`)."""
    expected = publish(store, folder)
    model = _tokens_only(folder)
    if content == "other weights":
        for tensor in model.graph.initializer:
            if tensor.name == "encoder.layer.1.output.dense.weight":
                other_weights = numpy_helper.to_array(tensor) * np.float32(1.01)
                tensor.CopyFrom(numpy_helper.from_array(other_weights, tensor.name))
    _beside(folder, onnx.ModelProto() if content == "nothing" else model)
    other = ModelStore(tmp_path / "other")
    manifest = publish(other, folder)
    assert (manifest.fingerprint, manifest.packed) == (expected.fingerprint, expected.packed)
    assert manifest.packed
    np.testing.assert_array_equal(_vectors(other, manifest.version), _vectors(store, expected.version))


def test_a_graph_whose_padding_counts_is_not_published(store: ModelStore, folder: Path) -> None:
    model = prepare(read_source(folder)).model
    for node in model.graph.node:  # attention no longer sees the mask
        for at, name in enumerate(node.input):
            if name == "attention_mask" and node.op_type == "Unsqueeze":
                node.input[at] = "token_type_ids"
    with pytest.raises(ProofFailed, match="depends on the other texts of its batch"):
        publish(store, _alone(folder, model))
    assert store.versions() == []


def _changed(folder: Path, field: str, name: str) -> onnx.ModelProto:
    """Returns the model with the first input, or all outputs, replaced by a tensor called `name`."""
    model = prepare(read_source(folder)).model
    value = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 2])
    values = model.graph.input if field == "input" else model.graph.output
    del values[: 1 if field == "input" else 3]
    values.append(value)
    return model


@pytest.mark.parametrize(
    ("field", "name", "reason"),
    [
        ("input", "pixels", "has the inputs attention_mask, pixels, token_type_ids"),
        ("output", "logits", "outputs logits: neither token embeddings nor sentence_embedding"),
    ],
)
def test_an_onnx_file_that_is_no_text_encoder_is_refused(
    store: ModelStore, folder: Path, field: str, name: str, reason: str
) -> None:
    with pytest.raises(Unsupported, match=reason):
        publish(store, _alone(folder, _changed(folder, field, name)))


def test_a_file_in_half_precision_or_that_is_not_onnx_is_refused(store: ModelStore, folder: Path) -> None:
    model = _tokens_only(folder)
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    with pytest.raises(Unsupported, match="last_hidden_state is not float32"):
        publish(store, _alone(folder, model))
    for content in (b"", b"no"):
        (folder / "onnx" / "model.onnx").write_bytes(content)
        with pytest.raises(Unsupported, match="cannot be read as ONNX"):
            publish(store, folder)

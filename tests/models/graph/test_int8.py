"""The int8 graph: its arithmetic by hand, its cost, and versions without it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from safetensors.numpy import load_file, save_file

from models.engines import opening
from models.engines.opening import INT8, INT8_NAME, form_for, has_int8
from models.errors import Damaged, FormUnavailable, ProofFailed, Unsupported
from models.graph.backbone import Backbone, Tensors, read_backbone
from models.graph.int8 import Quantized, Span, find_spans
from models.graph.nodes import Nodes, build_model
from models.manifest import Quantized as Cost
from models.progress import Progress, silent
from models.publishing import int8
from models.publishing.proof import check_golden
from models.publishing.publish import prepare, publish, publish_prepared, quantize
from models.sources.folder import read_source
from models.store import ModelStore
from models.tokens.texts import example_lines
from tests.models.forms import needs_int8
from tests.tiny import tiny_source

pytestmark = needs_int8

EXAMPLES = [json.loads(line)["text"] for line in example_lines()]


def _weights(folder: Path) -> tuple[Backbone, Tensors]:
    backbone = Backbone.from_config(json.loads((folder / "config.json").read_bytes()))
    return backbone, read_backbone([folder / "model.safetensors"], backbone)


def test_a_linear_layer_by_hand(folder: Path) -> None:
    backbone, tensors = _weights(folder)
    at = "encoder.layer.0.intermediate.dense"
    random = np.random.default_rng(1)
    x = random.normal(size=(40, 32)).astype(np.float32)
    x[:, 5] *= 30  # one column is much wider than the others
    span = Span(x.min(axis=0), x.max(axis=0))
    graph = onnx.GraphProto(name="one layer")
    graph.input.append(onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["rows", 32]))
    (out,) = Quantized(backbone, tensors, Nodes(graph, "t."), spans={at: span}).linears("x", at)
    graph.output.append(onnx.helper.make_tensor_value_info(out, onnx.TensorProto.FLOAT, ["rows", 64]))
    model = build_model(graph, contrib=True).SerializeToString()
    found = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]

    weight, bias = tensors[f"{at}.weight"].astype(np.float64), tensors[f"{at}.bias"]
    smoothing = np.abs(x).max(axis=0) ** 0.7 / np.abs(weight).max(axis=0) ** 0.3
    smoothing /= np.exp(np.log(smoothing).mean())
    weight, scaled = weight * smoothing, x / smoothing
    steps = np.abs(weight).max(axis=1) / 127
    whole = np.rint(weight / steps[:, None]).astype(np.int64)
    step = (scaled.max() - scaled.min()) / 255
    zero = round(-scaled.min() / step)
    rounded = np.clip(np.rint(scaled / step) + zero, 0, 255).astype(np.int64)
    expected = (rounded - zero) @ whole.T * step * steps + bias
    np.testing.assert_allclose(found, expected, atol=1e-4)  # no value is in the middle between two steps
    assert rounded.min() == 0, "the whole range is used"
    assert rounded.max() == 255
    exact = x @ tensors[f"{at}.weight"].T + bias
    assert np.abs(found - exact).mean() < 0.02 * exact.std()


def test_spans_are_what_the_layers_really_get(folder: Path) -> None:
    backbone, tensors = _weights(folder)
    rows = [[2, 7, 3], [2, 40, 41, 42, 43, 44, 3], *([2, 50 + n, 3] for n in range(60))]
    spans = find_spans(backbone, tensors, "last", rows, Progress("texts", say=silent))
    assert len(spans) == 4 * backbone.layers
    ids = np.concatenate(rows)
    places = np.concatenate([np.arange(len(row)) for row in rows])
    x = (
        tensors["embeddings.word_embeddings.weight"][ids]
        + tensors["embeddings.position_embeddings.weight"][places]
        + tensors["embeddings.token_type_embeddings.weight"][0]
    )
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + backbone.epsilon)
    x = x * tensors["embeddings.LayerNorm.weight"] + tensors["embeddings.LayerNorm.bias"]
    first = spans["encoder.layer.0.attention.self.query"]
    np.testing.assert_allclose(first.least, x.min(axis=0), atol=1e-5)
    np.testing.assert_allclose(first.most, x.max(axis=0), atol=1e-5)


def test_a_published_version_has_it_and_says_what_it_costs(store: ModelStore, folder: Path) -> None:
    manifest = publish(store, folder, int8=True)
    at = store.folder(manifest.version)
    assert f"onnx/{INT8_NAME}" in manifest.files
    assert [file.name for file in at.rglob("*.onnx")] == ["model.onnx"], "other tools take what ends so"
    cost = manifest.quantised
    assert cost is not None
    assert (cost.calibrated_on, cost.measured_on) == (160 + 23 + 32 + 120, 160)
    exact, quantised = store.open(manifest.version), store.open(manifest.version, form=INT8)
    assert (str(quantised.form), str(exact.form)) == ("int8/onnxruntime", "fp32/onnxruntime")
    one, other = exact.encode(EXAMPLES[1::2]).vectors, quantised.encode(EXAMPLES[1::2]).vectors
    cosines = np.sum(one * other, axis=1)
    assert np.abs(one - other).max() > 1e-4, "it is another graph"
    assert isinstance(cost, Cost)
    assert cost.cosine_mean == pytest.approx(cosines.mean(), abs=1e-5)
    assert cost.cosine_least == pytest.approx(cosines.min(), abs=1e-5)
    assert cost.cosine_mean > 0.999
    same = [
        len(set(np.argsort(-one @ a)[1:11]) & set(np.argsort(-other @ b)[1:11]))  # 0 is the text itself
        for a, b in zip(one, other, strict=True)
    ]
    assert cost.same_neighbours == pytest.approx(np.mean(same) / 10, abs=1e-4)
    assert 0.9 < cost.same_neighbours < 1


def test_a_vector_does_not_depend_on_its_neighbors(store: ModelStore, folder: Path) -> None:
    encoder = store.open(publish(store, folder, int8=True).version, form=INT8)
    rows = [row.ids for row in encoder.tokenize(EXAMPLES[:60])]
    alone = np.concatenate([encoder.forward([row]) for row in rows])
    together = encoder.forward(rows)
    cosines = np.sum(alone * together, axis=1)
    # float32 rounds differently next to other rows, which rarely moves a value to another step of 8 bits.
    assert np.median(np.abs(alone - together)) < 1e-6
    assert cosines.min() > 0.9999


def test_one_wide_column_does_not_spoil_the_others(store: ModelStore, folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    for layer in range(2):
        tensors[f"encoder.layer.{layer}.attention.output.LayerNorm.weight"][3] *= 60
        tensors[f"encoder.layer.{layer}.intermediate.dense.weight"][:, 3] /= 60
        tensors[f"encoder.layer.{layer}.attention.output.LayerNorm.bias"][3] = 0
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    cost = publish(store, folder, int8=True).quantised
    assert isinstance(cost, Cost)
    assert cost.cosine_mean > 0.999


def test_what_costs_too_much_is_left_out_and_the_version_is_published_all_the_same(
    store: ModelStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8, "_MIN_MEAN", 1.1)
    said: list[str] = []
    manifest = publish(store, folder, int8=True, say=said.append)
    assert manifest.quantised is None
    assert f"onnx/{INT8_NAME}" not in manifest.files
    assert said[-1].startswith("leaving int8 out: its vectors have a mean cosine of 1.000")
    with pytest.raises(FormUnavailable, match=r"has no int8 graph.*`simile models quantize 2\d+T"):
        store.open(manifest.version, form=INT8)
    assert publish(store, folder, int8=True) == manifest, "tried again, in vain"
    assert len(store.versions()) == 1


def test_a_version_that_is_quantized_keeps_all_the_rest(store: ModelStore, folder: Path) -> None:
    first = publish(store, folder)
    assert first.quantised is None
    at = store.folder(first.version)
    changed = {"search": {"default": {"mode": "hybrid", "weight": 0.25}}, "scores": {"sts": {"a": 0.5}}}
    (at / "manifest.json").write_text(json.dumps(json.loads(first.text()) | changed))
    time.sleep(1.1)  # a version is named after the second it was made in
    again = quantize(store, first.version)
    assert (again.fingerprint, again.scores) == (first.fingerprint, {"sts": {"a": 0.5}})
    assert again.search["default"].weight == 0.25
    assert again.files.keys() - first.files.keys() == {f"onnx/{INT8_NAME}"}
    assert {file for file in first.files if first.files[file] != again.files[file]} == {"MODEL_CARD.md"}
    whole = publish(ModelStore(store.root.with_name("others")), folder, int8=True)
    assert again.quantised == whole.quantised
    assert store.open(again.version, form=INT8).form == INT8
    assert quantize(store, again.version) == again
    assert len(store.versions()) == 2


def test_what_has_no_weights_is_not_quantized(store: ModelStore, tmp_path: Path) -> None:
    table = tiny_source(tmp_path / "static", pooling="mean")
    modules = table / "1_Pooling" / "config.json"
    modules.write_text(json.dumps({"embedding_dimension": 32, "pooling_mode": "static.mean"}))
    version = publish(store, table).version
    with pytest.raises(Unsupported, match="Serve it in fp32"):
        quantize(store, version)
    assert len(store.versions()) == 1


def test_a_version_trained_from_one_with_int8_has_it_too(store: ModelStore, folder: Path) -> None:
    parents = [publish(store, folder), publish(store, tiny_source(folder.with_name("b"), 8), int8=True)]
    for seed, parent in enumerate(parents):
        prepared = prepare(read_source(tiny_source(folder.with_name(f"trained-{seed}"), 20 + seed)))
        trained = publish_prepared(store, prepared, origin="x", parent=parent.version, lineage={})
        assert (trained.quantised is None) is (parent.quantised is None)


def test_a_changed_graph_is_not_served(store: ModelStore, folder: Path) -> None:
    manifest = publish(store, folder, int8=True)
    file = store.folder(manifest.version) / "onnx" / INT8_NAME
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(Damaged, match=rf"onnx/{INT8_NAME} was changed"):
        store.open(manifest.version, form=INT8)


def test_static_vectors_have_none(store: ModelStore, tmp_path: Path) -> None:
    folder = tiny_source(tmp_path / "static", pooling="mean")
    modules = folder / "1_Pooling" / "config.json"
    modules.write_text(json.dumps({"embedding_dimension": 32, "pooling_mode": "static.mean"}))
    assert publish(store, folder, int8=True).quantised is None


@pytest.mark.parametrize(
    ("flags", "there"),
    [
        ("flags\t\t: fpu avx2 avx512f", False),
        ("flags\t\t: fpu avx512_vnni", True),
        ("flags\t\t: avx_vnni", True),
        ("Features\t: asimd", False),
        ("Features\t: asimd asimddp", True),
        ("vendor_id\t: unknown", True),
    ],
)
def test_which_processors_add_8_bit_products_exactly(tmp_path: Path, flags: str, there: bool) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{flags}\n")
    assert has_int8(tmp_path / "cpuinfo") is there
    assert has_int8(tmp_path / "nowhere") is True


def test_int8_is_asked_for_by_name_only_and_a_processor_that_adds_in_16_bits_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert form_for("int8") == INT8
    assert form_for("auto") != INT8
    monkeypatch.setattr(opening, "has_int8", lambda: False)
    with pytest.raises(FormUnavailable, match="no VNNI instructions"):
        form_for("int8")


def test_the_golden_texts_are_computed_again_in_int8(store: ModelStore, folder: Path) -> None:
    manifest = publish(store, folder, int8=True)
    encoder, at = store.open(manifest.version, form=INT8), store.folder(manifest.version)
    assert 0 < check_golden(encoder, at) < 0.01
    golden = json.loads((at / "golden.json").read_bytes())
    golden["vectors"][3] = golden["vectors"][4]
    (at / "golden.json").write_text(json.dumps(golden))
    with pytest.raises(ProofFailed, match="in int8/onnxruntime points away"):
        check_golden(encoder, at)

"""The changes that a GPU needs in a published graph, and the shapes of its batches."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper

from models.engines.gpu_graph import half, joined, to_half
from models.engines.shapes import padded, rounded, rung
from models.errors import Unsupported
from models.graph.backbone import Backbone
from models.graph.blocks import packs
from models.graph.file import HIDDEN, POOLED, SENTENCE
from models.graph.head import SCOPE
from models.publishing.publish import prepare
from models.sources.folder import read_source
from models.sources.template import with_template
from tests.models import feeds
from tests.parts.json_files import edit_json
from tests.tiny import LAYERS, tiny_source

ROWS = [[2, 7, 114, 4, 54, 3], [2, 9, 3], [2, *range(50, 105), 114, 4, 9, 3]]
POOLINGS = "mean cls max mean_sqrt_len_tokens first_last.mean top2.mean static.mean mask:2".split()


def _model(folder: Path, pooling: str = "mean", activation: str = "gelu") -> onnx.ModelProto:
    tiny_source(folder, pooling=pooling)
    edit_json(folder / "config.json", hidden_act=activation)
    if "mask" in pooling:
        plain = json.loads((folder / "tokenizer.json").read_bytes())
        (folder / "tokenizer.json").write_text(json.dumps(with_template(plain, 'the "{}" is [MASK].')[0]))
    return prepare(read_source(folder)).model


def _backbone(folder: Path) -> Backbone:
    return Backbone.from_config(json.loads((folder / "config.json").read_bytes()))


def _computed(model: onnx.ModelProto) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feed = feeds.padded(ROWS, 64)
    found: np.ndarray = session.run(
        [SENTENCE], {given.name: feed[given.name] for given in session.get_inputs()}
    )[0]
    return found


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
@pytest.mark.parametrize("pooling", ["mean", "first_last.cls"])
def test_attention_embeddings_and_normalizations_become_one_operator_each(
    tmp_path: Path, pooling: str, activation: str
) -> None:
    model = _model(tmp_path / "model", pooling, activation)
    expected = _computed(model)
    found = joined(model, _backbone(tmp_path / "model"))
    operators = Counter(node.op_type for node in found.graph.node if not node.name.startswith(SCOPE))
    assert operators["EmbedLayerNormalization"] == 1
    assert operators["SkipLayerNormalization"] == 2 * operators["Attention"] == 2 * LAYERS
    assert operators["MatMul"] == 3 * LAYERS
    assert operators["BiasGelu"] == (LAYERS if activation == "gelu" else 0)
    assert operators["FastGelu"] == (LAYERS if activation == "gelu_new" else 0)
    assert not operators.keys() & {"Softmax", "LayerNormalization", "Erf", "Tanh", "NonZero"}
    np.testing.assert_allclose(_computed(found), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_in_half_precision_every_pooling_gives_nearly_the_same_vectors(tmp_path: Path, pooling: str) -> None:
    model = _model(tmp_path / "model", pooling)
    expected = _computed(model)
    if packs(model.graph):
        model = joined(model, _backbone(tmp_path / "model"))
    to_half(model)
    found = _computed(model)
    assert found.dtype == np.float32
    assert np.sum(found * expected, axis=1).min() >= 0.9999
    assert np.abs(found - expected).max() > 1e-6, "nothing was rounded"
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)


def test_the_backbone_is_in_fp16_and_what_follows_it_in_fp32(tmp_path: Path) -> None:
    model = _model(tmp_path / "model")
    to_half(model)
    assert [output.name for output in model.graph.output] == [SENTENCE, POOLED]
    of_head = {name for node in model.graph.node if node.name.startswith(SCOPE) for name in node.input}
    for tensor in model.graph.initializer:
        assert tensor.data_type != TensorProto.FLOAT or tensor.name in of_head, tensor.name
        assert tensor.data_type != TensorProto.FLOAT16 or tensor.name not in of_head, tensor.name
    [cast] = [node for node in model.graph.node if HIDDEN in node.output]
    assert (cast.op_type, cast.attribute[0].i) == ("Cast", TensorProto.FLOAT)


def test_a_graph_that_pools_by_itself_is_cast_at_its_own_outputs(tmp_path: Path) -> None:
    """In the file of another exporter, no node names mark the pooling head."""
    model = _model(tmp_path / "model")
    expected = _computed(model)
    for node in model.graph.node:
        node.name = node.name.replace(SCOPE, "pool.")
    to_half(model)
    found = _computed(model)
    assert found.dtype == np.float32
    assert np.sum(found * expected, axis=1).min() >= 0.999


def test_a_weight_that_both_parts_read_is_kept_in_both_precisions(tmp_path: Path) -> None:
    model = _model(tmp_path / "model")
    bias = "encoder.layer.1.output.LayerNorm.bias"
    [pooled] = [node for node in model.graph.node if POOLED in node.output]
    shifted = onnx.helper.make_node("Add", [pooled.input[0], bias], ["shifted"], name=f"{SCOPE}shifted")
    model.graph.node.insert(list(model.graph.node).index(pooled), shifted)
    pooled.input[0] = "shifted"
    expected = _computed(model)
    to_half(model)
    assert np.sum(_computed(model) * expected, axis=1).min() >= 0.9999
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer if bias in tensor.name}
    assert sorted(types.values()) == [TensorProto.FLOAT, TensorProto.FLOAT16]


def test_constants_and_casts_inside_the_graph_are_halved_too(tmp_path: Path) -> None:
    model = _model(tmp_path / "model")
    for node in model.graph.node:  # as exporters write a number
        for at, name in enumerate(node.input):
            [found] = [t for t in model.graph.initializer if t.name == name] or [None]
            if found is not None and found.data_type == TensorProto.FLOAT and not found.dims:
                value = float(numpy_helper.to_array(found))
                constant = onnx.helper.make_node("Constant", [], [f"{node.name}.{at}"], value_float=value)
                constant.name = f"{node.name}.constant"
                model.graph.node.insert(0, constant)
                node.input[at] = f"{node.name}.{at}"
    expected = _computed(model)
    to_half(model)
    assert np.sum(_computed(model) * expected, axis=1).min() >= 0.999


def test_a_graph_with_branches_is_refused_in_half_precision(tmp_path: Path) -> None:
    model = _model(tmp_path / "model")
    branch = onnx.helper.make_graph([], "branch", [], [])
    model.graph.node.append(onnx.helper.make_node("If", ["c"], ["d"], then_branch=branch, else_branch=branch))
    with pytest.raises(Unsupported, match=r"a If, .*SIMILE_PRECISION=fp32"):
        to_half(model)


def test_no_number_overflows_or_vanishes_on_its_way_to_fp16() -> None:
    numbers = np.array([0, 1 / 3, -1e-12, 1e-12, 3.4e38, -3.4e38, 65519, 6e-8, np.inf], np.float32)
    expected = [0, 0.33325195, -(2**-24), 2**-24, 65504, -65504, 65504, 2**-24, 65504]
    found = half(numbers)
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, np.array(expected, np.float16))
    usual = np.random.default_rng(3).normal(0, 0.05, 10_000).astype(np.float32)
    np.testing.assert_array_equal(half(usual), usual.astype(np.float16))


def test_shapes_are_few_and_never_much_larger_than_the_batch() -> None:
    seen = set()
    for rows in range(1, 1025):
        for length in range(1, 257):
            to_rows, to_length = rounded(rows, length, 256)
            assert rows <= to_rows <= max(8, 1.25 * rows)
            assert length <= to_length <= max(length + 7, 1.25 * length)
            assert to_length <= 256
            seen.add((to_rows, to_length))
    assert len(seen) == 36 * 16
    assert [rung(size) for size in (1, 8, 9, 10, 11, 33, 64, 65)] == [1, 8, 10, 10, 12, 40, 64, 80]


@pytest.mark.parametrize(
    ("length", "longest", "expected"), [(250, 250, 250), (241, 254, 254), (129, 512, 160)]
)
def test_no_row_becomes_longer_than_the_model_reads(length: int, longest: int, expected: int) -> None:
    assert rounded(1, length, longest) == (1, expected)


def test_what_is_added_to_a_batch_is_masked_or_a_row_again() -> None:
    ids = np.arange(9 * 9, dtype=np.int64).reshape(9, 9)
    found = padded({"input_ids": ids, "attention_mask": np.ones_like(ids)}, 64)
    assert found["input_ids"].shape == found["attention_mask"].shape == (10, 16)
    np.testing.assert_array_equal(found["input_ids"][:9, :9], ids)
    np.testing.assert_array_equal(found["attention_mask"][:, 9:], 0)
    np.testing.assert_array_equal(found["input_ids"][9], found["input_ids"][8])
    np.testing.assert_array_equal(found["attention_mask"][9], found["attention_mask"][8])


@pytest.mark.parametrize("family", ["roberta", "distilbert", "mpnet", "electra"])
def test_families_with_berts_layers_are_joined_too(tmp_path: Path, family: str) -> None:
    pytest.importorskip("sentence_transformers")
    from tests.models.families import FAMILIES, raw_source

    source = read_source(raw_source(tmp_path / family, FAMILIES[family]))
    model = prepare(source).model
    expected = _computed(model)
    found = joined(model, Backbone.from_config(source.config))
    operators = Counter(node.op_type for node in found.graph.node)
    assert operators["SkipLayerNormalization"] == 2 * operators["Attention"] == 2 * LAYERS
    np.testing.assert_allclose(_computed(found), expected, atol=1e-6, rtol=0)

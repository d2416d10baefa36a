"""The ONNX graph against the formulas in numpy, for every pooling, activation and head."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from safetensors.numpy import load_file, save_file

from models.errors import Unsupported
from models.graph import reference
from models.graph.backbone import Backbone, Tensors, read_backbone, read_safetensors
from models.graph.bert import POOLED_FROM, bert_graph
from models.graph.blocks import packs
from models.graph.file import HIDDEN
from models.graph.head import Dense, Head, append_head
from models.graph.nodes import build_model
from tests.models.feeds import padded
from tests.tiny import ROUNDING, WIDTH

ROWS = [[2, 7, 3], [2, 40, 41, 42, 43, 44, 3], [2, *range(50, 110), 3]]


def _backbone(source: Path, **changed: object) -> Backbone:
    return Backbone.from_config(json.loads((source / "config.json").read_bytes()) | changed)


def _mean_graph(source: Path) -> tuple[Backbone, Tensors, onnx.GraphProto]:
    backbone = _backbone(source)
    tensors = read_backbone([source / "model.safetensors"], backbone)
    graph = bert_graph(backbone, tensors)
    append_head(graph, HIDDEN, HEADS["mean"], WIDTH)
    return backbone, tensors, graph


def _run(model: onnx.ModelProto, rows: list[list[int]], output: str, length: int = 0) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feed = padded(rows, length or max(map(len, rows)), 9)  # The padding id must not matter.
    taken = {given.name: feed[given.name] for given in session.get_inputs()}
    found: np.ndarray = session.run([output], taken)[0]
    return found


GENERATOR = np.random.default_rng(5)


def _dense(out: int, inner: int, activation: str, *, bias: bool = True) -> Dense:
    # Activations keep their size, as in a trained head: larger weights would also enlarge rounding.
    weight = GENERATOR.normal(0, inner**-0.5, (out, inner)).astype(np.float32)
    return Dense(weight, GENERATOR.normal(size=out).astype(np.float32) if bias else None, activation)


HEADS = {
    **{name: Head((name,), ()) for name in ("mean", "cls", "max", "mean_sqrt_len_tokens")},
    "several": Head(("cls", "max", "mean"), ()),
    "dense": Head(("mean",), (_dense(20, WIDTH, "tanh"),)),
    "two dense": Head(("mean",), (_dense(20, WIDTH, "identity", bias=False), _dense(12, 20, "tanh"))),
    "mask": Head(("mask:2",), ()),
    "the last token": Head(("mask:0",), ()),
    "first and last": Head(("mean",), (), "first_last"),
    "several of first and last": Head(("max", "mask:1", "cls"), (), "first_last"),
    "static": Head(("mean",), (), "static"),
    "static with dense": Head(("max", "mean"), (_dense(20, 2 * WIDTH, "tanh"),), "static"),
}


@pytest.mark.parametrize(
    ("activation", "name"),
    # Heads come after all layers, so each activation is tried with one plain head and one of dense layers.
    [*(("gelu", name) for name in HEADS), *product(["gelu_new", "relu"], ["mean", "two dense"])],
)
def test_the_graph_gives_the_vectors_of_the_formulas(tiny_source: Path, name: str, activation: str) -> None:
    head = HEADS[name]
    backbone = _backbone(tiny_source, hidden_act=activation)
    tensors = read_backbone([tiny_source / "model.safetensors"], backbone)
    graph = bert_graph(backbone, tensors, head.tokens)
    append_head(graph, POOLED_FROM[head.tokens], head, head.dimension(WIDTH))
    model = build_model(graph)
    onnx.checker.check_model(model, full_check=True)
    expected = reference.embed(backbone, tensors, head, ROWS)
    assert expected.shape == (3, head.dimension(WIDTH))
    for length in (0, 64, 100):
        np.testing.assert_allclose(_run(model, ROWS, "sentence_embedding", length), expected, atol=ROUNDING)
    pooled = _run(model, ROWS, "pooled_embedding")
    pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
    np.testing.assert_allclose(pooled, expected, atol=ROUNDING)
    hidden = _run(model, ROWS, HIDDEN, 70)
    last = "static" if head.tokens == "static" else "last"
    for row, tokens in zip(hidden, reference.token_vectors(backbone, tensors, last, ROWS), strict=True):
        # A token's vector is not normalized. Its components reach 5.
        np.testing.assert_allclose(row[: len(tokens)], tokens, atol=5 * ROUNDING)


def test_the_formulas_tell_activations_and_poolings_apart(tiny_source: Path) -> None:
    backbone = _backbone(tiny_source)
    tensors = read_backbone([tiny_source / "model.safetensors"], backbone)
    names = ("mean", "cls", "max", "mask", "the last token", "first and last", "static")
    vectors = [reference.embed(backbone, tensors, HEADS[name], ROWS) for name in names]
    vectors.append(reference.embed(_backbone(tiny_source, hidden_act="relu"), tensors, HEADS["mean"], ROWS))
    for at, one in enumerate(vectors):
        for other in vectors[:at]:
            assert np.abs(one - other).max() > 1e-2


def test_erf_is_within_the_error_its_series_promises() -> None:
    x = np.linspace(-6, 6, 2001)
    expected = [math.erf(value) for value in x]
    np.testing.assert_allclose(reference.erf(x), expected, atol=1.6e-7)


def test_only_plain_operators_are_written_and_the_runtime_fuses_the_activation(
    tiny_source: Path, tmp_path: Path
) -> None:
    backbone, _, graph = _mean_graph(tiny_source)
    assert {node.domain for node in graph.node} == {""}
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "fused.onnx")
    options.log_severity_level = 3
    model = build_model(graph).SerializeToString()
    onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    operators = Counter(node.op_type for node in onnx.load(tmp_path / "fused.onnx").graph.node)
    assert operators["Gemm"] == 6 * backbone.layers  # a linear layer and its bias are one node
    assert operators["Gelu"] == backbone.layers
    assert operators["FusedMatMul"] == backbone.layers  # the scores: key transposed and divided on the way
    assert operators["LayerNormalization"] == 2 * backbone.layers + 1
    assert operators["Erf"] == operators["Pow"] == operators["SkipLayerNormalization"] == 0
    assert operators["Transpose"] == 0


def test_padding_is_computed_by_attention_alone(tiny_source: Path) -> None:
    backbone, _, graph = _mean_graph(tiny_source)
    model = build_model(graph)
    assert packs(model.graph)
    products = {node.output[0] for node in graph.node if node.op_type == "MatMul"}
    weighed = [name for name in products if _shape(model, name)[0] == sum(map(len, ROWS))]
    assert len(weighed) == 6 * backbone.layers, "every linear layer has a row for each token and no other"
    assert [_shape(model, name) for name in products - set(weighed)].count((3, 2, 70, 70)) == backbone.layers


def _shape(model: onnx.ModelProto, name: str) -> tuple[int, ...]:
    looked_into = onnx.ModelProto()
    looked_into.CopyFrom(model)
    looked_into.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    return _run(looked_into, ROWS, name, 70).shape


def test_padding_may_stand_on_either_side(tiny_source: Path) -> None:
    backbone, tensors, graph = _mean_graph(tiny_source)
    del graph.input[2:]  # the input token_type_ids
    graph.node.insert(0, onnx.helper.make_node("Sub", ["input_ids", "input_ids"], ["token_type_ids"]))
    session = onnxruntime.InferenceSession(build_model(graph).SerializeToString())
    # Another program may pad on the left. Positions count from the begin of the padded row.
    ids = np.array([[0, 0, 2, 7, 3], [2, 40, 41, 42, 3]])
    mask = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    found = session.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": mask})[0]
    places = "embeddings.position_embeddings.weight"
    moved = tensors | {places: np.roll(tensors[places], -2, axis=0)}
    left = reference.embed(backbone, moved, HEADS["mean"], [[2, 7, 3]])
    right = reference.embed(backbone, tensors, HEADS["mean"], [[2, 40, 41, 42, 3]])
    np.testing.assert_allclose(found, np.concatenate([left, right]), atol=ROUNDING)


def test_old_names_and_half_precision_give_the_same_tensors(tiny_source: Path, tmp_path: Path) -> None:
    backbone = _backbone(tiny_source)
    stored = load_file(tiny_source / "model.safetensors")
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    names = {name: re.sub("|".join(old), lambda found: old[found[0]], f"bert.{name}") for name in stored}
    save_file({names[name]: tensor for name, tensor in stored.items()}, tmp_path / "old.safetensors")
    expected = read_backbone([tiny_source / "model.safetensors"], backbone)
    found = read_backbone([tmp_path / "old.safetensors"], backbone)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert "pooler.dense.weight" not in found
    halves = {name: tensor.astype(np.float16) for name, tensor in stored.items()}
    save_file(halves, tmp_path / "half.safetensors")
    for name, tensor in read_backbone([tmp_path / "half.safetensors"], backbone).items():
        assert np.array_equal(tensor, expected[name].astype(np.float16).astype(np.float32))


def test_bfloat16_is_read_as_the_upper_half_of_a_float32(tmp_path: Path) -> None:
    values = np.array([1.0, -2.5, 3.140625, 1e30], np.float32)
    halves = (values.view(np.uint32) >> 16).astype(np.uint16)
    header = json.dumps({"x": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + halves.tobytes())
    expected = (halves.astype(np.uint32) << 16).view(np.float32).reshape(2, 2)
    np.testing.assert_array_equal(read_safetensors(tmp_path / "x.safetensors")["x"], expected)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"model_type": "t5"}, "'t5' is not among bert.*onnx/model.onnx"),
        ({"hidden_act": "swish"}, "activation 'swish'"),
        ({"position_embedding_type": "relative_key"}, "absolute positions"),
        ({"num_attention_heads": 5}, "shared among 5 heads"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": 3}, r"the tensor encoder\.layer\.2"),
        ({"vocab_size": 7}, r"config\.json says \(7, 32\)"),
    ],
)
def test_what_cannot_be_written_as_bert_is_refused_by_name(
    tiny_source: Path, changed: dict[str, object], reason: str
) -> None:
    with pytest.raises(Unsupported, match=reason):
        read_backbone([tiny_source / "model.safetensors"], _backbone(tiny_source, **changed))


def test_a_cut_off_weights_file_is_refused(tiny_source: Path, tmp_path: Path) -> None:
    whole = (tiny_source / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-10])
    with pytest.raises(Unsupported, match="not a valid safetensors file"):
        read_safetensors(tmp_path / "model.safetensors")

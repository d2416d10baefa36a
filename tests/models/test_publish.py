"""Publishing a folder: what is written, what is proved, what is refused, and that a refusal leaves nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from safetensors.numpy import load_file, save_file

from models.encoder import Encoder
from models.errors import ModelUnavailable, ProofFailed, Unsupported
from models.graph import HIDDEN
from models.head import POOLED, SCOPE, SENTENCE
from models.proof import check_golden
from models.publish import prepare, publish
from models.source import read_source
from models.store import Store
from models.texts import PROOF_TEXTS
from tests.tiny import WIDTH, tiny_source


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_source(tmp_path / "model")


def _vectors(store: Store, version: str) -> np.ndarray:
    return store.open(version).encode(PROOF_TEXTS).vectors


def _with_onnx(folder: Path, model: onnx.ModelProto) -> Path:
    (folder / "onnx").mkdir(exist_ok=True)
    onnx.save(model, folder / "onnx" / "model.onnx")
    return folder


def _tokens_only(folder: Path) -> onnx.ModelProto:
    """As most exporters leave it: token embeddings, no pooling."""
    model = prepare(read_source(folder)).model
    del model.graph.output[1:]
    kept = [node for node in model.graph.node if not node.name.startswith(SCOPE)]
    weights = [tensor for tensor in model.graph.initializer if not tensor.name.startswith(SCOPE)]
    for field, values in ((model.graph.node, kept), (model.graph.initializer, weights)):
        copies = [type(value).FromString(value.SerializeToString()) for value in values]
        del field[:]
        field.extend(copies)
    return model


def test_the_published_folder_is_a_whole_sentence_transformers_folder(store: Store, folder: Path) -> None:
    manifest = publish(store, folder, origin="Some/Tiny_Model v2", parent="before", lineage={"seed": 1})
    at = store.folder(manifest.version)
    assert manifest.version.endswith(f"-tiny-model-v2-{manifest.fingerprint[:8]}")
    assert (manifest.parent, manifest.lineage) == ("before", {"seed": 1})
    modules = json.loads((at / "modules.json").read_bytes())
    assert [(module["type"].rsplit(".")[-1], module["path"]) for module in modules] == [
        ("Transformer", ""),
        ("Pooling", "1_Pooling"),
        ("Normalize", "2_Normalize"),
    ]
    assert json.loads((at / "1_Pooling" / "config.json").read_bytes())["pooling_mode_mean_tokens"] is True
    assert json.loads((at / "sentence_bert_config.json").read_bytes())["max_seq_length"] == 64
    tokenizer = json.loads((at / "tokenizer.json").read_bytes())
    assert tokenizer["padding"] is None
    assert tokenizer["truncation"]["max_length"] == 64
    outputs = [output.name for output in onnx.load(at / "onnx" / "model.onnx").graph.output]
    assert outputs == [HIDDEN, SENTENCE, POOLED]
    assert set(manifest.files) == {f.relative_to(at).as_posix() for f in at.rglob("*") if f.is_file()} - {"manifest.json"}


def test_publishing_again_answers_the_version_that_is_there(store: Store, folder: Path) -> None:
    first = publish(store, folder)
    assert publish(store, shutil.copytree(folder, folder.with_name("copy"))) == first
    assert len(store.versions()) == 1


def test_a_published_folder_can_be_published_elsewhere_and_is_the_same_space(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    first = publish(store, folder)
    other = Store(tmp_path / "other")
    second = publish(other, store.folder(first.version), origin="again")
    assert second.fingerprint == first.fingerprint
    np.testing.assert_array_equal(_vectors(other, second.version), _vectors(store, first.version))


def test_a_new_prompt_for_neither_side_is_a_new_version_of_the_same_space(store: Store, tmp_path: Path) -> None:
    first = publish(store, tiny_source(tmp_path / "one"))
    prompts = {"query": "", "clustering": "cluster: "}
    second = publish(store, tiny_source(tmp_path / "two", prompts=prompts))
    assert second.version != first.version
    assert second.fingerprint == first.fingerprint
    assert second.prompts == prompts


def test_prompts_for_searching_and_for_documents_are_found_by_name(store: Store, tmp_path: Path) -> None:
    prompts = {"query": "find: ", "passage": "text: ", "other": "x"}
    manifest = publish(store, tiny_source(tmp_path / "model", prompts=prompts))
    assert (manifest.search_prompt, manifest.document_prompt) == ("find: ", "text: ")
    assert manifest.prompts == prompts


def test_a_bare_hugging_face_folder_gets_mean_pooling_and_its_own_maximum(store: Store, folder: Path) -> None:
    expected = _vectors(store, publish(store, folder).version)
    for name in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "1_Pooling")
    manifest = publish(store, folder)
    assert (manifest.pooling, manifest.max_length) == ("mean", 128)  # as its position table allows
    short = [i for i, text in enumerate(PROOF_TEXTS) if len(text) < 50]
    np.testing.assert_allclose(_vectors(store, manifest.version)[short], expected[short], atol=1e-6)


def test_a_folder_with_its_transformer_in_a_subfolder_is_the_same_model(store: Store, folder: Path) -> None:
    first = publish(store, folder)
    inner = folder / "0_Transformer"
    inner.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors", "sentence_bert_config.json"):
        (folder / name).rename(inner / name)
    modules = json.loads((folder / "modules.json").read_bytes())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    assert publish(store, folder) == first


def test_a_dense_layer_and_several_poolings_come_along(store: Store, folder: Path, tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    weight = generator.normal(size=(12, 2 * WIDTH)).astype(np.float32)
    (folder / "2_Dense").mkdir()
    save_file({"linear.weight": weight, "linear.bias": weight[:, 0].copy()}, folder / "2_Dense" / "model.safetensors")
    (folder / "2_Dense" / "config.json").write_text("{}")
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": ["cls", "mean"]}')
    modules = json.loads((folder / "modules.json").read_bytes())
    modules[2:] = [{"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    manifest = publish(store, folder)
    assert (manifest.dimension, manifest.pooling) == (12, "cls+mean")
    at = store.folder(manifest.version)
    np.testing.assert_array_equal(load_file(at / "2_Dense" / "model.safetensors")["linear.weight"], weight)
    again = publish(Store(tmp_path / "again"), at)
    assert again.fingerprint == manifest.fingerprint


def test_an_onnx_file_without_pooling_gets_it(store: Store, folder: Path, tmp_path: Path) -> None:
    expected = _vectors(store, publish(store, folder).version)
    other = Store(tmp_path / "other")
    manifest = publish(other, _with_onnx(folder, _tokens_only(folder)))
    assert manifest.fingerprint == store.versions()[0].fingerprint  # the weights beside it name the space
    np.testing.assert_allclose(_vectors(other, manifest.version), expected, atol=1e-6)


def _another_family(folder: Path, opset: int, pooling: str) -> np.ndarray:
    """Make `folder` hold ONNX only: token embeddings are tanh(table[id]). Answers the table."""
    table = np.random.default_rng(9).normal(size=(250, WIDTH)).astype(np.float32)
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
            onnx.helper.make_node("Tanh", ["rows"], ["token_embeddings"]),
        ],
        "another",
        [value(name, onnx.TensorProto.INT64, ["b", "s"]) for name in ("input_ids", "attention_mask")],
        [value("token_embeddings", onnx.TensorProto.FLOAT, ["b", "s", WIDTH])],
        [numpy_helper.from_array(table, "table")],
    )
    opsets = [onnx.helper.make_opsetid("", opset)]
    _with_onnx(folder, onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8))
    (folder / "model.safetensors").unlink()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": pooling}))
    config = {"model_type": "another", "dim": WIDTH, "pad_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config))
    return table


@pytest.mark.parametrize("pooling", ["mean", "max"])
@pytest.mark.parametrize("opset", [11, 13, 17, 18, 21])
def test_an_onnx_file_of_another_family_is_published_with_pooling(
    store: Store, folder: Path, opset: int, pooling: str
) -> None:
    table = _another_family(folder, opset, pooling)
    manifest = publish(store, folder)
    encoder = store.open(manifest.version)
    pool = {"mean": np.mean, "max": np.max}[pooling]
    for row in encoder.tokenize(PROOF_TEXTS):
        expected = pool(np.tanh(table[list(row.ids)]), axis=0)
        expected /= np.linalg.norm(expected)
        np.testing.assert_allclose(encoder.forward([row.ids])[0], expected, atol=1e-6)
    assert publish(store, store.folder(manifest.version)) == manifest


def test_an_onnx_file_that_pools_but_does_not_normalise_is_normalised(store: Store, folder: Path, tmp_path: Path) -> None:
    expected = _vectors(store, publish(store, folder).version)
    model = prepare(read_source(folder)).model
    del model.graph.node[-5:]  # from pooled_embedding on
    model.graph.node[-1].output[0] = SENTENCE
    del model.graph.output[2:]
    other = Store(tmp_path / "other")
    manifest = publish(other, _with_onnx(folder, model))
    np.testing.assert_allclose(_vectors(other, manifest.version), expected, atol=1e-6)


def test_an_onnx_file_that_is_not_its_weights_is_not_published(store: Store, folder: Path) -> None:
    model = prepare(read_source(folder)).model
    for tensor in model.graph.initializer:
        if tensor.name == "encoder.layer.1.output.dense.weight":
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(1.01), tensor.name))
    with pytest.raises(ProofFailed, match="the same weights computed in numpy"):
        publish(store, _with_onnx(folder, model))
    assert store.versions() == []
    assert list(store.root.glob(".tmp-*")) == []


def test_a_graph_whose_padding_counts_is_not_published(store: Store, folder: Path) -> None:
    model = prepare(read_source(folder)).model
    for node in model.graph.node:  # attention no longer sees the mask
        for at, name in enumerate(node.input):
            if name == "attention_mask" and node.op_type == "Unsqueeze":
                node.input[at] = "token_type_ids"
    (folder / "model.safetensors").unlink()
    with pytest.raises(ProofFailed, match="depends on the other texts of its batch"):
        publish(store, _with_onnx(folder, model))
    assert store.versions() == []


def test_weights_that_give_no_finite_vector_are_not_published(store: Store, folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["encoder.layer.0.output.dense.bias"][0] = np.nan
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ProofFailed, match="no finite vector"):
        publish(store, folder)
    assert store.versions() == []


def test_a_model_that_is_not_the_known_one_is_not_published(store: Store, folder: Path, tmp_path: Path) -> None:
    known = _vectors(store, publish(store, folder).version)
    with pytest.raises(ProofFailed, match="differs from the vectors known for this model"):
        publish(Store(tmp_path / "other"), tiny_source(tmp_path / "seed", seed=1), known=known)
    assert publish(Store(tmp_path / "other"), folder, known=known)


def test_the_golden_vectors_find_a_file_that_computes_something_else(store: Store, folder: Path, tmp_path: Path) -> None:
    manifest = publish(store, folder)
    other = publish(store, tiny_source(tmp_path / "seed", seed=1))
    assert check_golden(store.open(manifest.version), store.folder(manifest.version)) <= 1e-6
    with pytest.raises(ProofFailed, match="no longer gives"):
        check_golden(store.open(other.version), store.folder(manifest.version))


def test_pickles_are_neither_read_nor_copied(store: Store, folder: Path) -> None:
    for name in ("pytorch_model.bin", "training_args.pt", "optimizer.pkl"):
        (folder / name).write_bytes(b"cos\nsystem\n(S'touch /tmp/never'\ntR.")
    at = store.folder(publish(store, folder).version)
    assert not [file.name for file in at.rglob("*") if file.suffix in (".bin", ".pt", ".pkl")]


def _changed(folder: Path, field: str, name: str) -> onnx.ModelProto:
    """The model with another first input, or with one output that is no vector of tokens or sentence."""
    model = prepare(read_source(folder)).model
    value = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 2])
    values = model.graph.input if field == "input" else model.graph.output
    del values[: 1 if field == "input" else 3]
    values.append(value)
    return model


@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (lambda at: (at / "model.safetensors").rename(at / "pytorch_model.bin"), "pickled weights only"),
        (lambda at: (at / "model.safetensors").unlink(), "neither model.safetensors nor onnx/model.onnx"),
        (lambda at: (at / "config.json").unlink(), r"has no config\.json"),
        (lambda at: (at / "config.json").write_text("{"), "is not JSON"),
        (lambda at: (at / "tokenizer.json").unlink(), r"no tokenizer\.json"),
        (lambda at: (at / "modules.json").write_text('[{"path": ""}]'), "malformed"),
        (
            lambda at: (at / "modules.json").write_text(
                json.dumps([{"type": "x.Transformer", "path": "../elsewhere"}])
            ),
            "points outside",
        ),
        (
            lambda at: (at / "modules.json").write_text(
                json.dumps([{"type": "x.Transformer", "path": ""}, {"type": "x.CNN", "path": "1"}])
            ),
            "lists Transformer, CNN",
        ),
        (lambda at: (at / "1_Pooling" / "config.json").write_text('{"pooling_mode": "lasttoken"}'), "lasttoken"),
        (lambda at: (at / "1_Pooling" / "config.json").write_text('{"include_prompt": false}'), "the prompt out"),
        (lambda at: _with_onnx(at, onnx.ModelProto()), "cannot be read as ONNX"),
        (lambda at: _with_onnx(at, _changed(at, "input", "pixels")), "takes attention_mask, pixels, token_type_ids"),
        (lambda at: _with_onnx(at, _changed(at, "output", "logits")), "neither token embeddings nor"),
    ],
)
def test_what_cannot_be_published_is_refused_by_name(
    store: Store, folder: Path, break_it: object, reason: str
) -> None:
    assert callable(break_it)
    break_it(folder)
    with pytest.raises(Unsupported, match=reason):
        publish(store, folder)
    assert store.versions() == []


def test_a_folder_that_is_not_there_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="is not a folder"):
        publish(store, tmp_path / "nowhere")


def test_opening_needs_no_onnx_package(store: Store, folder: Path) -> None:
    import subprocess
    import sys

    version = publish(store, folder).version
    code = (
        "import sys; from pathlib import Path; from models.encoder import Encoder\n"
        f"Encoder.open(Path({str(store.folder(version))!r})).encode(['a'])\n"
        "print([name for name in ('onnx', 'torch', 'transformers', 'huggingface_hub') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_encoder_of_a_version_is_open_to_the_sources_own_vectors(store: Store, folder: Path) -> None:
    manifest = publish(store, folder)
    golden = json.loads((store.folder(manifest.version) / "golden.json").read_bytes())
    prepared = prepare(read_source(folder))
    encoder = Encoder.open(store.folder(manifest.version))
    assert prepared.reference is not None
    expected = prepared.reference([row.ids for row in encoder.tokenize(golden["texts"])])
    np.testing.assert_allclose(np.array(golden["vectors"]), expected, atol=1e-5)

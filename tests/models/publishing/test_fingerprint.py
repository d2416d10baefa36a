"""The fingerprint names the vector space: it changes only with parts that change vectors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file, save_file

from models.publishing.fingerprint import compute_fingerprint
from models.publishing.publish import prepare
from models.sources.folder import read_source
from tests.parts.json_files import edit_json


def _fingerprint(folder: Path) -> str:
    return compute_fingerprint(prepare(read_source(folder)).space)


def _one_weight(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["encoder.layer.1.output.dense.bias"][3] += np.float32(1e-7)
    save_file(tensors, folder / "model.safetensors")


def _two_equal_shapes_exchanged(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    one, other = "encoder.layer.0.attention.self.query.weight", "encoder.layer.0.attention.self.key.weight"
    tensors[one], tensors[other] = tensors[other], tensors[one]
    save_file(tensors, folder / "model.safetensors")


def _dense_layer(folder: Path) -> None:
    (folder / "2_Dense").mkdir()
    save_file({"linear.weight": np.eye(32, dtype=np.float32)}, folder / "2_Dense" / "model.safetensors")
    (folder / "2_Dense" / "config.json").write_text(
        '{"activation_function": "torch.nn.modules.linear.Identity"}'
    )
    modules = json.loads((folder / "modules.json").read_bytes())
    modules.insert(
        2, {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    )
    (folder / "modules.json").write_text(json.dumps(modules))


def _unknown_word(folder: Path) -> None:
    model = json.loads((folder / "tokenizer.json").read_bytes())["model"]
    edit_json(folder / "tokenizer.json", model=model | {"unk_token": "[PAD]"})


def _pooler_and_names(folder: Path) -> None:
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors["bert.pooler.dense.weight"] += 1
    save_file(tensors | {"cls.predictions.bias": np.ones(3, np.float32)}, folder / "model.safetensors")


MOVES: dict[str, Callable[[Path], object]] = {
    "one weight": _one_weight,
    "two tensors exchanged": _two_equal_shapes_exchanged,
    "a dense layer": _dense_layer,
    "pooling": lambda at: edit_json(at / "1_Pooling" / "config.json", pooling_mode="cls"),
    "search prompt": lambda at: edit_json(
        at / "config_sentence_transformers.json", prompts={"query": "query: "}
    ),
    "document prompt": lambda at: edit_json(
        at / "config_sentence_transformers.json", prompts={"passage": "passage: "}
    ),
    "maximum length": lambda at: edit_json(at / "sentence_bert_config.json", max_seq_length=32),
    "a word": _unknown_word,
    "attention heads": lambda at: edit_json(at / "config.json", num_attention_heads=4),
    "activation": lambda at: edit_json(at / "config.json", hidden_act="relu"),
}
KEEPS: dict[str, Callable[[Path], object]] = {
    "padding and truncation": lambda at: edit_json(at / "tokenizer.json", padding=None, truncation=None),
    "the tokenizer's layout": lambda at: edit_json(at / "tokenizer.json"),
    "the folder's name": lambda at: None,
    "prefix and unused tensors": _pooler_and_names,
    "a prompt for neither": lambda at: edit_json(
        at / "config_sentence_transformers.json", prompts={"clustering": "cluster: "}
    ),
    "config.json's other fields": lambda at: edit_json(at / "config.json", transformers_version="9"),
}


@pytest.mark.parametrize("what", MOVES)
def test_what_moves_a_vector_changes_it(folder: Path, what: str) -> None:
    before = _fingerprint(folder)
    MOVES[what](folder)
    assert _fingerprint(folder) != before


@pytest.mark.parametrize("what", KEEPS)
def test_what_moves_no_vector_keeps_it(folder: Path, what: str) -> None:
    before = _fingerprint(folder)
    KEEPS[what](folder)
    assert _fingerprint(folder.rename(folder.with_name("another"))) == before


def test_an_onnx_file_from_elsewhere_keeps_the_name_of_its_weights(folder: Path) -> None:
    before = _fingerprint(folder)
    model = prepare(read_source(folder)).model
    for node in model.graph.node:
        node.name = f"renamed_{node.name}"
    (folder / "onnx").mkdir()
    onnx.save(model, folder / "onnx" / "model.onnx")
    assert read_source(folder).onnx is not None
    assert _fingerprint(folder) == before


def test_a_folder_with_onnx_only_is_named_by_its_initializers(folder: Path) -> None:
    model = prepare(read_source(folder)).model
    (folder / "model.safetensors").unlink()
    (folder / "onnx").mkdir()
    onnx.save(model, folder / "onnx" / "model.onnx")
    before = _fingerprint(folder)
    model.producer_name = "someone else"
    model.graph.node[0].name = "renamed"
    onnx.save(model, folder / "onnx" / "model.onnx")
    assert _fingerprint(folder) == before
    weight = next(
        tensor for tensor in model.graph.initializer if tensor.name.endswith("layer.1.output.dense.bias")
    )
    weight.raw_data = b"\x00\x00\x80\x3f" + weight.raw_data[4:]
    onnx.save(model, folder / "onnx" / "model.onnx")
    assert _fingerprint(folder) != before

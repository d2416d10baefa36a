"""Folders with invalid values or unusual sizes are either refused with a one-line reason, or served."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from models.errors import ProofFailed
from models.sources.folder import Overrides
from models.store import ModelStore

pytest.importorskip("sentence_transformers")
from sentence_transformers.sentence_transformer import modules

from tests.models.families import FAMILIES, WIDTH, assembled, family_source, raw_source
from tests.models.test_families import imported, refused, same_as_the_library
from tests.models.test_said_by_folders import TEXTS
from tests.parts.json_files import edit_json


def _dense_of(folder: Path, weight: NDArray[np.float32]) -> None:
    at = folder / "2_Dense"
    at.mkdir()
    (at / "config.json").write_text("{}")
    save_file({"linear.weight": weight}, at / "model.safetensors")
    listed = json.loads((folder / "modules.json").read_bytes())
    listed[2:] = [{"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}]
    (folder / "modules.json").write_text(json.dumps(listed))


WRONG = "has the wrong type .%sError"
MALFORMED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no number": (lambda at: edit_json(at / "config.json", num_attention_heads=0), "cannot be opened with"),
    "a text for a number": (
        lambda at: edit_json(at / "config.json", layer_norm_eps="small"),
        WRONG % "Value",
    ),
    "a list for an object": (lambda at: edit_json(at / "config.json", auto_map=["a"]), WRONG % "Attribute"),
    "a list of prompts": (
        lambda at: edit_json(at / "config_sentence_transformers.json", prompts=["a"]),
        WRONG % "Attribute",
    ),
    "a pooling of no name": (
        lambda at: (at / "1_Pooling" / "config.json").write_text('{"pooling_mode": 5}'),
        WRONG % "Type",
    ),
    "a length below 0": (
        lambda at: edit_json(at / "sentence_bert_config.json", max_seq_length=-5),
        "would have -5 tokens. Set a number above 0: max_seq_length",
    ),
    "a layer of another width": (
        lambda at: _dense_of(at, np.ones((8, WIDTH - 1), np.float32)),
        rf"weights .8, {WIDTH - 1}. and a bias .8,., but its input has {WIDTH} numbers",
    ),
    "a layer that is not finite": (
        lambda at: _dense_of(at, np.full((8, WIDTH), np.inf, np.float32)),
        "2_Dense/linear.weight is not finite",
    ),
}


@pytest.mark.parametrize("wrong", MALFORMED)
def test_values_that_make_no_sense_are_refused_in_one_clear_line(tmp_path: Path, wrong: str) -> None:
    folder = family_source(tmp_path / "model", "bert")
    break_it, reason = MALFORMED[wrong]
    break_it(folder)
    refused(folder, reason)


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = family_source(tmp_path / "model", "bert")
    model = json.loads((folder / "tokenizer.json").read_bytes())["model"]
    words = {word: id + 9 * (id > 9) for word, id in model["vocab"].items()}
    edit_json(folder / "tokenizer.json", model=model | {"vocab": words})
    with pytest.raises(ProofFailed, match=r"returns the id \d+, but the model's vocabulary has \d+ rows"):
        imported(folder, ModelStore(tmp_path / "models"))


def test_a_word_table_may_have_more_rows_than_the_tokenizer_has_words(tmp_path: Path) -> None:
    """For example, some models pad the table to a multiple of 64 rows."""
    folder = family_source(tmp_path / "model", "bert")
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("word_embeddings.weight"))
    weights[name] = np.concatenate([weights[name], weights[name][:64]])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    edit_json(folder / "config.json", vocab_size=len(weights[name]))
    same_as_the_library(folder, TEXTS)


def test_a_table_is_of_floats_that_are_finite(tmp_path: Path) -> None:
    folder = family_source(tmp_path / "model", "static")
    [weights] = folder.rglob("model.safetensors")
    [(name, table)] = load_file(weights).items()
    save_file({name: table.astype(np.int8)}, weights)
    refused(folder, "has no floats")
    table[-1, 0] = np.inf  # the row of a token that no text of the proof has
    save_file({name: table}, weights)
    refused(folder, "is not finite")


def test_positions_behind_the_padding_are_counted_for_the_longest_text(tmp_path: Path) -> None:
    """Uses a family that Simile does not list, with RoBERTa's padding id, 1."""
    import transformers

    sizes = FAMILIES["roberta"].settings | {"pad_token_id": 1}
    config, model = transformers.RobertaPreLayerNormConfig, transformers.RobertaPreLayerNormModel
    kind = FAMILIES["roberta"]._replace(config=config, model=model)
    raw = raw_source(tmp_path / "raw", kind, sizes)
    positions = sizes["max_position_embeddings"]
    refused(raw, f"takes fewer than {positions} tokens", Overrides(max_length=positions))


def test_a_family_that_torch_cannot_export_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import transformers

    kind = FAMILIES["bert"]._replace(config=transformers.FNetConfig, model=transformers.FNetModel)
    raw = raw_source(tmp_path / "raw", kind)
    capsys.readouterr()
    refused(raw, "torch cannot export the family 'fnet'")
    assert capsys.readouterr().out == ""


def test_a_prompt_of_white_space_leaves_nothing_out(tmp_path: Path) -> None:
    raw = raw_source(tmp_path / "raw", FAMILIES["bert"])
    left_out = modules.Pooling(WIDTH, "mean", include_prompt=False)
    same_as_the_library(assembled(raw, tmp_path / "model", [left_out], prompts={"document": " "}), TEXTS)

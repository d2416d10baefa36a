"""A BERT with random weights: its files, sizes that are refused, and its training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file

from models.publishing.from_torch.backbone import quiet
from tests.tiny import tiny_source as make_tiny_source
from tests.training.recipe_cases import build_corpus
from tests.training.run_cases import losses
from training.__main__ import main
from training.errors import TrainingError
from training.methods.loading import load_encoder
from training.methods.recipe import load_recipe
from training.model.base import open_base
from training.model.new_bases import blank
from training.runs.command import train
from training.runs.options import Options
from training.text.corpus import TEXTS
from training.text.tokens import build_tokens

GIVEN: dict[str, Any] = {"precision": "fp32", "device": "cpu", "threads": 1, "record_steps": 1}


def sized(tiny_source: Path, out: Path, **sizes: int) -> Path:
    return blank(tiny_source, out, **({"layers": 2, "width": 64} | sizes))


def test_it_is_a_bert_that_transformers_reads_and_computes_alike(tiny_source: Path, tmp_path: Path) -> None:
    folder = sized(tiny_source, tmp_path / "blank")
    config = json.loads((folder / "config.json").read_text())
    assert (config["num_hidden_layers"], config["hidden_size"], config["num_attention_heads"]) == (2, 64, 1)
    assert (config["intermediate_size"], config["max_position_embeddings"]) == (256, 512)
    with quiet():
        model, report = transformers.AutoModel.from_pretrained(
            folder, attn_implementation="eager", output_loading_info=True
        )
    assert {name.split(".")[0] for name in report["missing_keys"]} == {"pooler"}
    assert not report["unexpected_keys"]
    encoder, _ = load_encoder(folder, load_recipe("first-last", {"pool": "cls"}), torch.device("cpu"))
    tokens = build_tokens([[2, 90, 91, 3], [2, 95, 3]])
    ids, mask = tokens.padded(0)
    with torch.no_grad():
        expected = model.eval()(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0]
        assert (encoder(tokens).pooled - expected).abs().max() < 1e-5


def test_weights_are_drawn_as_bert_s_from_their_seed(tiny_source: Path, tmp_path: Path) -> None:
    first, again, other = (
        load_file(sized(tiny_source, tmp_path / name, seed=seed) / "model.safetensors")
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    for name, found in first.items():
        assert np.array_equal(found, again[name])
        if found.ndim > 1:
            assert found.mean() == pytest.approx(0, abs=0.004), name
            assert found.std() == pytest.approx(0.02, rel=0.15), name
            assert not np.array_equal(found, other[name])
        else:
            assert (found == (1.0 if name.endswith("LayerNorm.weight") else 0.0)).all(), name


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"width": 129}, "2 layers of 129 dimensions in 2 heads are no model"),
        ({"width": 0}, "2 layers of 0 dimensions"),
        ({"layers": -1}, "-1 layers"),
    ],
)
def test_sizes_that_make_no_model_are_refused(
    tiny_source: Path, tmp_path: Path, sizes: dict[str, int], message: str
) -> None:
    with pytest.raises(TrainingError, match=message):
        sized(tiny_source, tmp_path / "blank", **sizes)
    assert not (tmp_path / "blank").exists()


def test_heads_are_of_64_dimensions(tiny_source: Path, tmp_path: Path) -> None:
    for width, heads in ((32, 1), (128, 2)):
        folder = blank(tiny_source, tmp_path / str(width), layers=1, width=width)
        assert json.loads((folder / "config.json").read_text())["num_attention_heads"] == heads


def test_a_folder_that_is_not_empty_is_left_alone(tiny_source: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    for taken in (tmp_path, tmp_path / "mine"):
        with pytest.raises(TrainingError, match="is not an empty folder"):
            sized(tiny_source, taken)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    (tmp_path / "empty").mkdir()
    assert sized(tiny_source, tmp_path / "empty").name == "empty"


def test_a_blank_model_is_pre_trained_and_its_run_is_the_base_of_another(
    tiny_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["blank", str(tmp_path / "blank"), "--tokenizer", str(tiny_source), "--layers", "1"]
    assert main([*arguments, "--width", "64"]) == 0
    assert f"simile train mlm --base {tmp_path / 'blank'}" in capsys.readouterr().out
    changes = {"optim.lr": 3e-3, "optim.batch": 32, "optim.warmup": 0.0, "dropout": 0.0}
    corpus = build_corpus(TEXTS)
    recipe = load_recipe("mlm", changes)
    result = train(recipe, corpus, tmp_path / "blank", tmp_path / "mlm", Options(steps=40, **GIVEN))
    found = list(losses(result).values())
    assert found[0] == pytest.approx(np.log(250), rel=0.05), "it knows nothing yet"
    assert np.mean(found[-4:]) < 0.6 * found[0]
    with open_base(str(tmp_path / "mlm"), tmp_path / "models") as base:
        assert (base.folder, base.name, base.version) == (tmp_path / "mlm" / "best", "mlm", None)
        again = train(recipe, corpus, base.folder, tmp_path / "again", Options(steps=1, **GIVEN))
        assert again.loss < 0.75 * found[0], "its head is trained as well"
        contrasted = train(
            load_recipe("simcse-unsup"), corpus, base.folder, tmp_path / "simcse", Options(steps=1, **GIVEN)
        )
    assert (contrasted.last / "modules.json").is_file()


@pytest.mark.parametrize("wrong", [["--layers", "0"], ["--seed", "-1"], ["--width", "-8"]])
def test_numbers_that_make_no_model_are_wrong_usage(tmp_path: Path, wrong: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["blank", str(tmp_path / "blank"), *wrong])


def test_a_tokenizer_of_a_model_that_is_not_there_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["blank", str(tmp_path / "blank"), "--tokenizer", str(tmp_path / "none")]) == 1
    assert "There is no model" in capsys.readouterr().err
    make_tiny_source(tmp_path / "whole")
    (tmp_path / "whole" / "tokenizer.json").unlink()
    assert main(["blank", str(tmp_path / "blank"), "--tokenizer", str(tmp_path / "whole")]) == 1
    assert "has no tokenizer.json" in capsys.readouterr().err

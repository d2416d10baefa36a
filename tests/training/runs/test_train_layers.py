"""`optim.train_layers`: what moves, what stays, and that such a run is one run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import ElectraConfig, ElectraModel

from models.store import Store
from tests.training.conftest import Run
from tests.training.families import family_source
from tests.training.recipe_cases import corpus_for, raw_source
from tests.training.run_cases import losses, stop_after, weights
from training.errors import TrainingError
from training.methods.loading import _freeze_embeddings
from training.methods.recipe import load_recipe
from training.runs.command import train
from training.runs.export import export_run
from training.runs.options import Options

LAST = load_recipe("simcse-unsup", {"optim.train_layers": 1, "optim.lr": 3e-3})


def moved(before: Path, after: Path) -> set[str]:
    one, other = weights(before), weights(after)
    assert other.keys() <= one.keys()  # a backbone's pooler and language head are not kept
    return {name for name in other if one[name] != other[name]}


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_only_the_last_layers_move(family: str, run: Run, tmp_path: Path) -> None:
    base = family_source(tmp_path / "base", family)
    whole = run("whole", base=base, recipe=load_recipe("simcse-unsup"))
    found = moved(base, run("out", base=base, recipe=LAST).last)
    assert found
    assert all("layer.1." in name for name in found)
    assert {name for name in moved(base, whole.last) if "layer.1." in name} == found
    assert any("embeddings" in name for name in moved(base, whole.last))


def test_all_layers_are_more_than_the_last_and_embeddings_stay(run: Run, tiny_source: Path) -> None:
    both = run("both", recipe=load_recipe("simcse-unsup", {"optim.train_layers": 2}))
    found = moved(tiny_source, both.last)
    assert any("layer.0." in name for name in found)
    assert not any("embeddings" in name for name in found)


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_embeddings_keep_their_values_and_all_layers_move(family: str, run: Run, tmp_path: Path) -> None:
    base = family_source(tmp_path / "base", family)
    recipe = load_recipe("simcse-unsup", {"optim.train_embeddings": False})
    found = moved(base, run("out", base=base, recipe=recipe).last)
    assert not any("embeddings" in name for name in found)
    assert all(any(f"layer.{at}." in name for name in found) for at in (0, 1))


def test_kept_embeddings_are_refused_where_they_are_all_that_learns(tmp_path: Path, run: Run) -> None:
    recipe = load_recipe("simcse-unsup", {"pool": "static", "optim.train_embeddings": False})
    with pytest.raises(TrainingError, match="leaves a word table nothing to learn"):
        run("out", base=raw_source(tmp_path / "raw"), recipe=recipe)


def test_a_run_of_some_layers_stopped_and_resumed_is_one_run_and_is_exported(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = run("straight", recipe=LAST)
    with monkeypatch.context() as patched:
        stop_after(patched, 3)
        run("stopped", recipe=LAST)
    resumed = run("stopped", recipe=LAST, resume=True)
    assert losses(resumed) == losses(straight)
    assert weights(resumed.last) == weights(straight.last)
    assert export_run(resumed.out, Store(tmp_path / "models")).origin == "simcse-unsup"
    with pytest.raises(TrainingError, match="holds a run with another recipe"):
        run("stopped", recipe=load_recipe("simcse-unsup"), resume=True)


def test_the_map_behind_narrow_embeddings_keeps_its_values_too() -> None:
    config = ElectraConfig(
        vocab_size=20, embedding_size=8, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2,
    )  # fmt: skip
    of_layers = SimpleNamespace(head=SimpleNamespace(tokens="last"))
    encoder: Any = SimpleNamespace(backbone=ElectraModel(config), source=of_layers)
    _freeze_embeddings(encoder)
    found = [name for name, each in encoder.backbone.named_parameters() if each.requires_grad]
    assert found
    assert all(name.startswith("encoder.layer.0.") for name in found)


@pytest.mark.parametrize("chunk", [None, 4])
def test_the_head_that_is_kept_is_trained_with_them(chunk: int | None, tmp_path: Path) -> None:
    recipe = load_recipe("simcse-sup", {"optim.train_layers": 1, "optim.batch": 8})
    options = Options(steps=2, precision="fp32", threads=1, chunk=chunk)
    result = train(recipe, corpus_for(recipe), raw_source(tmp_path / "raw"), tmp_path / "out", options)
    assert result.finished
    dense = [weights(found.parent) for found in sorted(result.last.glob("*_Dense/model.safetensors"))]
    one = train(
        recipe, corpus_for(recipe), tmp_path / "raw", tmp_path / "one", Options(steps=1, precision="fp32")
    )
    assert dense != [weights(found.parent) for found in sorted(one.last.glob("*_Dense/model.safetensors"))]
    assert dense


def test_the_twin_and_a_frozen_layer_agree(tmp_path: Path) -> None:
    recipe = load_recipe("esimcse", {"optim.train_layers": 1, "optim.batch": 8, "twin.momentum": 0.5})
    options = Options(steps=3, precision="fp32", threads=1)
    result = train(recipe, corpus_for(recipe), raw_source(tmp_path / "raw"), tmp_path / "out", options)
    found = moved(tmp_path / "raw", result.last)
    assert found
    assert all("layer.1." in name for name in found)


def test_more_layers_than_there_are_leave_nothing_behind(run: Run, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"optim\.train_layers is 3, and the base has 2 layers\."):
        run("out", recipe=load_recipe("simcse-unsup", {"optim.train_layers": 3}))
    assert not (tmp_path / "out").exists()


def test_a_recipe_without_it_keeps_its_digest() -> None:
    assert "train_layers" not in load_recipe("pairs").described()["optim"]
    assert load_recipe("simcse-sup").digest().startswith("dd5f56ed7201")
    assert LAST.described()["optim"]["train_layers"] == 1

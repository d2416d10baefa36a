"""Every shipped recipe as a whole: it learns, it can be resumed, and its result is published."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models.sources.folder import read_source
from models.store import ModelStore
from tests.training.recipe_cases import corpus_for, raw_source
from tests.training.run_cases import losses, stop_after, weights
from training.methods.recipe import Recipe, Student, load_recipe
from training.methods.recipe_files import shipped
from training.papers.postprocess import Whiten
from training.papers.spans import DocumentSpans
from training.runfile import Result
from training.runs.command import train
from training.runs.export import export_run
from training.runs.options import Options

TRAINED = [name for name in shipped() if load_recipe(name).objectives]
# One recipe of each kind: a plain head, templates, two models, documents, and no training.
FAST = {"simcse-unsup", "promptbert", "diffcse", "declutr", "whitening"}

MORE_STEPS = {
    "promptbert": 80,  # random weights set its two templates far apart at first
    "mlm-head": 80,  # nothing but the head learns, from random vectors
    "pairsupcon": 80,  # It learns only from the few rows that are entailments.
    "sbert-regression": 80,  # its wrong pairs share two words of three
    "augmented-sbert": 80,  # the same pairs
    "cross-encoder-scores": 80,  # the same pairs
}


def small(name: str) -> Recipe:
    """Returns a recipe for the tiny model, with a high learning rate and sizes that fit 64 rows."""
    recipe = load_recipe(name)
    batch = 8 if isinstance(recipe.source, DocumentSpans) else 32
    lr = 3e-4 if name == "sg-opt" else 3e-3  # its temperature is 0.01
    recipe = replace(recipe, optim=replace(recipe.optim, lr=lr, batch=batch, warmup=0.0, head_lr=None))
    if recipe.student is not None:
        recipe = replace(recipe, student=Student(1))
    if any(isinstance(each, Whiten) for each in recipe.post):
        return replace(recipe, post=(Whiten(8),))  # all 32 random directions would make much of rounding
    if isinstance(recipe.source, DocumentSpans):
        return replace(recipe, source=replace(recipe.source, shortest=8, longest=30), max_length=40)
    return recipe


def run_of(name: str, base: Path, out: Path, **changed: object) -> Result:
    recipe = small(name)
    given: dict[str, object] = {"precision": "fp32", "device": "cpu", "threads": 1, "record_steps": 1}
    return train(recipe, corpus_for(recipe), base, out, Options(**(given | changed)))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return raw_source(tmp_path_factory.mktemp("raw"))


@pytest.mark.long
@pytest.mark.parametrize("name", TRAINED)
def test_a_recipe_learns_what_it_is_shown(name: str, raw: Path, tmp_path: Path) -> None:
    steps = MORE_STEPS.get(name, 30)
    found = losses(run_of(name, raw, tmp_path / "out", steps=steps))
    early, late = np.mean([found[step] for step in (1, 2, 3)]), np.mean([found[steps - i] for i in range(3)])
    assert late < 0.8 * early, found


@pytest.mark.long
@pytest.mark.parametrize("name", TRAINED)
def test_a_recipe_stopped_and_resumed_is_one_run(
    name: str, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = run_of(name, raw, tmp_path / "straight", steps=4)
    with monkeypatch.context() as patched:
        stop_after(patched, 2)
        assert run_of(name, raw, tmp_path / "stopped", steps=4).interrupted
    resumed = run_of(name, raw, tmp_path / "stopped", steps=4, resume=True)
    assert losses(resumed) == losses(straight)
    assert weights(resumed.last) == weights(straight.last)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FAST else pytest.mark.long)
        for name in shipped()
        if name not in ("mlm", "mlm-head")
    ],
)
def test_what_a_recipe_makes_is_proved_and_published(name: str, raw: Path, tmp_path: Path) -> None:
    changed = {"steps": 2} if name in TRAINED else {}
    result = run_of(name, raw, tmp_path / "out", **changed)
    manifest = export_run(result.out, ModelStore(tmp_path / "models"))
    pools = {
        "first_last": "first_last.mean",
        "top2": "top2.mean",
        "static": "static.mean",
        "static_max": "static.max",
        "static_power": "static.mean+static.max+static.min",
        "mask": "mask:2",
    }
    pool = load_recipe(name).pool
    assert manifest.pooling == pools.get(pool, pool)
    assert manifest.portable == ("simile" if pool in pools else "sentence-transformers")


def test_what_mlm_makes_is_a_backbone_with_its_head(raw: Path, tmp_path: Path) -> None:
    result = run_of("mlm", raw, tmp_path / "out", steps=2)
    assert not (result.last / "modules.json").exists()
    source = read_source(result.last)
    assert source.weights
    again = run_of(
        "diffcse", result.out / "best", tmp_path / "diffcse", steps=1
    )  # its generator is that head
    assert again.finished

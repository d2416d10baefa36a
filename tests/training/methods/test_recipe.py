"""Parsing of recipes: without torch, and with errors that name the wrong key or value."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tests.training.conftest import RECIPE_TEXT as TEXT
from tests.training.conftest import read_recipe
from training.errors import TrainingError
from training.methods.components import Tanh
from training.methods.objectives import InfoNCE
from training.methods.recipe import Recipe, load_recipe, recipe_type
from training.methods.recipe_files import schema, shipped
from training.methods.views import Same
from training.papers import blocks  # registers its blocks


def test_unsupervised_simcse_has_the_published_numbers(recipe: Recipe) -> None:
    assert recipe.views == (Same(), Same())
    assert (recipe.pool, recipe.head) == ("cls", Tanh(keep=False))
    assert recipe.objectives == (InfoNCE(tau=0.05, weight=1.0),)
    assert (recipe.dropout, recipe.max_length, recipe.seed) == (0.1, 32, 42)
    optim = recipe.optim
    assert (optim.lr, optim.batch, optim.warmup) == (3e-5, 64, 0.0)
    assert (optim.weight_decay, optim.epsilon, optim.clip) == (0.0, 1e-8, 1.0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("dropout =", "droput =", "the recipe has no key 'droput'; 'dropout' is"),
        ("max_length = 32", "", "the recipe lacks max_length"),
        ("weight_decay = 0.0", "weight_decy = 0.0", "optim has no key 'weight_decy'; 'weight_decay' is"),
        (
            '"same"]',
            '"sane"]',
            "view 'sane' is not known; 'same' is. There are: crop, cutoff, delete, mask",
        ),
        ('"same", "same"', '"same"', "the recipe has 1"),
        ("dropout = 0.1", "dropout = 1.5", "dropout must be from 0 to 0.9, not 1.5"),
        ('"same"]', '{ name = "crop" }]', "the view lacks keep"),
        ('"same"]', '{ name = "crop", keep = 0 }]', "keep must be above 0 and at most 1, not 0"),
        ("seed = 42", 'seed = 42\npost = [{ name = "whiten", dimension = 0 }]', "dimension must be from 1"),
        (
            "seed = 42",
            'seed = 42\ntwin = { name = "ema", momentum = 2 }',
            "momentum must be from 0 to 1, not 2",
        ),
        ('"tanh"', '"bm"', "head 'bm' is not known. There are: bn, gelu, none, relu, tanh, transform"),
        ('"info_nce"', '"tripled"', "objective 'tripled' is not known"),
        ("tau = 0.05", "temperature = 0.05", "the objective has no key 'temperature'"),
        ("tau = 0.05", 'tau = "warm"', "tau must be a number, not 'warm'"),
        ("keep = false", "keep = 0", "keep must be true or false, not 0"),
        ('pool = "cls"', 'pool = "clss"', "pool 'clss' is not known; 'cls' is"),
        ('source = "lines"', 'source = "triplet"', "source 'triplet' is not known; 'triples' is"),
        ("batch = 64", "batch = 64.0", "batch must be a whole number, not 64.0"),
        ("batch = 64", "batch = 1", "batch must be from 2"),
        ("lr = 3e-5", "lr = nan", "lr must be above 0 and at most 1, not nan"),
        ("lr = 3e-5", "lr = 0", "lr must be above 0 and at most 1, not 0"),
        ("tau = 0.05", "tau = 0.0", "tau must be above 0"),
        ("epsilon = 1e-8", "epsilon = 0.0", "epsilon must be above 0"),
        ("clip = 1.0", "clip = 0", "clip must be above 0"),
        ("warmup = 0.0", "warmup = 1.5", "warmup must be from 0 to 1, not 1.5"),
        ("[optim]", "[optim", "is not TOML"),
        ('views = ["same", "same"]', 'views = "same"', "views must be a list, not 'same'"),
        ("seed = 42", "seed = -1", "seed must be from 0 to 9223372036854775807, not -1"),
        ("max_length = 32", "max_length = 2", "max_length must be from 3"),
        ("tau = 0.05 }", "tau = 0.05, weight = -1 }", "weight must be from 0"),
        (
            "seed = 42",
            'seed = 42\nresult = "model"',
            "result 'model' is not known. There are: encoder, backbone",
        ),
        ("seed = 42", 'seed = 42\nnegatives = ["nose"]', "negative 'nose' is not known; 'noise' is"),
        (
            "seed = 42",
            'seed = 42\ntwin = "emma"',
            "twin 'emma' is not known; 'ema' is. There are: clone, ema, frozen",
        ),
        ("seed = 42", 'seed = 42\npost = ["whiten"]', "the post lacks dimension"),
        ("seed = 42", "seed = 42\nfixed_mask = 1", "fixed_mask must be true or false, not 1"),
        (
            "lr = 3e-5",
            'lr = 3e-5\ndecay = "cosine"',
            "decay 'cosine' is not known. There are: linear, constant",
        ),
        ("lr = 3e-5", "lr = 3e-5\ndecay = 1", "decay must be a text, not 1"),
    ],
)
def test_what_a_recipe_gets_wrong_is_named(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(TrainingError) as refused:
        read_recipe(TEXT.replace(old, new, 1), "mine")
    assert str(refused.value).startswith("The recipe mine")
    assert message in str(refused.value)


def test_the_digest_names_the_method_and_not_its_file_or_seed(recipe: Recipe, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(TEXT.replace("seed = 42", "seed = 7  # another"), encoding="utf-8")
    mine = load_recipe(str(file))
    assert (mine.name, mine.seed) == ("mine", 7)
    assert mine.digest() == recipe.digest()
    assert read_recipe(TEXT.replace("tau = 0.05", "tau = 0.1"), "x").digest() != recipe.digest()
    assert read_recipe(TEXT.replace("lr = 3e-5", "lr = 1e-5"), "x").digest() != recipe.digest()


def test_a_recipe_that_is_nowhere_is_refused_with_those_there_are() -> None:
    with pytest.raises(
        TrainingError,
        match=r"no recipe 'simcse'\..* Name a TOML file or one of adapt, all-but-the-top, .*simcse-unsup",
    ):
        load_recipe("simcse")


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_recipe_is_short_and_says_all_that_was_decided_as_json(name: str) -> None:
    recipe = load_recipe(name)
    said = recipe.described()
    assert json.loads(json.dumps(said)) == said
    assert recipe.digest() == load_recipe(name, {"seed": 7}).digest()
    for change in ({"dropout": 0.33}, {"optim.lr": 0.33}, {"max_length": 33}):
        assert load_recipe(name, change).digest() != recipe.digest()


def test_methods_differ_in_their_digests() -> None:
    assert len({load_recipe(name).digest() for name in shipped()}) == len(shipped())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head.keep.more": 1}, "has no key head.keep.more, because keep is False"),
        ({"views.0": 1}, "has no key views.0, because views is ['same', 'same']"),
        ({"optim": 3}, "optim must be a table, not 3"),
    ],
)
def test_a_change_within_a_value_is_rejected(changes: dict[str, object], message: str) -> None:
    with pytest.raises(TrainingError) as refused:
        load_recipe("simcse-unsup", changes)
    assert message in str(refused.value)


def test_a_change_is_of_one_key_and_of_this_recipe_alone(recipe: Recipe) -> None:
    changed = load_recipe("simcse-unsup", {"optim.lr": 1e-5, "optim.decay": "constant", "pool": "mean"})
    assert (changed.optim.lr, changed.optim.decay, changed.pool) == (1e-5, "constant", "mean")
    assert changed.optim.batch == recipe.optim.batch
    assert load_recipe("simcse-unsup", {"head.keep": True}).head == Tanh(keep=True)
    assert load_recipe("simcse-unsup") == recipe


def bare(node: Any) -> Any:
    """Returns a JSON schema without titles and descriptions."""
    if isinstance(node, dict):
        return {key: bare(value) for key, value in node.items() if key not in ("description", "title")}
    return [bare(each) for each in node] if isinstance(node, list) else node


def test_the_schemas_match_the_classes() -> None:
    """If the test fails, copy the printed schema to recipes/schema.json (papers: papers/schema.json)."""
    assert blocks
    now = bare(recipe_type().json_schema())
    assert schema() == now, json.dumps(now, indent=1)


def test_a_recipe_of_the_product_imports_no_block_of_a_paper() -> None:
    """A separate process is used, because other tests import the blocks of papers."""
    code = (
        "import sys; from training.methods.recipe import load_recipe\n"
        "for name in sys.argv[1:]:\n"
        "    load_recipe(name)\n"
        "    print(name, 'training.papers.blocks' in sys.modules)\n"
    )
    folder = resources.files("training") / "recipes"
    names = [file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml")]
    given = [sys.executable, "-c", code, *names, "tsdae", "crops"]  # tsdae has only blocks of the product
    found = subprocess.run(given, capture_output=True, text=True, check=True).stdout.split()
    assert dict(zip(found[::2], found[1::2], strict=True)) == dict.fromkeys([*names, "tsdae"], "False") | {
        "crops": "True"
    }
    assert "simcse-unsup" in names

"""Fixtures for tests of training: corpora, recipes, short runs and a retraining job."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra train")

from models.store import ModelStore
from tests.training.jobs import gold
from tests.training.vocabularies import byte_level, lexicon_of, source_with
from training.methods.recipe import Recipe, load_recipe
from training.retraining.one import Job
from training.runfile import Result
from training.runs.command import train
from training.runs.options import Options
from training.text.corpus import Corpus
from training.text.lexicon import Lexicon

RECIPE_TEXT = (resources.files("training") / "recipes" / "simcse-unsup.toml").read_text(encoding="utf-8")
WORDS = "river stone market letter engine garden bridge paper window forest harbour cat dog animal".split()


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    """64 texts of three words each, which the tiny model can learn. No two texts have the same words."""
    triples = itertools.islice(itertools.combinations(WORDS, 3), 0, 64 * 5, 5)
    return Corpus.of((" ".join(triple) for triple in triples), "words")


@pytest.fixture
def recipe() -> Recipe:
    return load_recipe("simcse-unsup")


def read_recipe(text: str, name: str) -> Recipe:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{name}.toml"
        file.write_text(text, encoding="utf-8")
        return load_recipe(str(file))


Run = Callable[..., Result]


@pytest.fixture
def run(recipe: Recipe, corpus: Corpus, tiny_source: Path, tmp_path: Path) -> Run:
    """A function that trains the tiny model. Keywords replace recipe, corpus, base or fields of Options."""

    def begin(out: str, **changed: Any) -> Result:
        given: dict[str, Any] = {
            "steps": 6,
            "batch": 16,
            "precision": "fp32",
            "device": "cpu",
            "threads": 1,
            "record_steps": 1,
        } | changed
        what: dict[str, Any] = {"recipe": recipe, "corpus": corpus, "base": tiny_source}
        what = {name: given.pop(name, value) for name, value in what.items()}
        return train(**what, out=tmp_path / out, options=Options(**given))

    return begin


@pytest.fixture
def job(tmp_path: Path, tiny_models_dir: Path, recipe: Recipe, corpus: Corpus) -> Job:
    """A retraining job. Its active version is the tiny model, whose score on the evaluation set is 1."""
    shutil.copytree(tiny_models_dir, tmp_path / "models")
    store = ModelStore(tmp_path / "models")
    version = store.requested()
    assert version is not None
    encoder = store.open(version)
    data = gold(tmp_path / "data", lambda texts: encoder.encode(texts).vectors, corpus.texts)
    optim = replace(recipe.optim, batch=8)
    return Job(
        recipe=replace(recipe, optim=optim),
        corpus=corpus,
        base="active",
        steps=3,
        store=store,
        work=tmp_path / "work",
        data=data,
        options=Options(precision="fp32", threads=1),
    )


@pytest.fixture
def version(tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The tiny model's version. Sets SIMILE_MODELS_DIR to its folder and clears SIMILE_EVAL_DATA."""
    monkeypatch.setenv("SIMILE_MODELS_DIR", str(tiny_models_dir))
    monkeypatch.delenv("SIMILE_EVAL_DATA", raising=False)
    [manifest] = ModelStore(tiny_models_dir).versions()
    return manifest.version


@pytest.fixture(scope="session")
def wordpiece(tiny_source: Path) -> Lexicon:
    return lexicon_of(tiny_source)


@pytest.fixture(scope="session")
def byte_pairs(tmp_path_factory: pytest.TempPathFactory) -> Lexicon:
    return lexicon_of(source_with(tmp_path_factory.mktemp("bytes") / "base", byte_level()))

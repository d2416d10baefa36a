"""Models with 250,000 tokens, Unigram or BPE as in multilingual models, are served and trained from."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sentence_transformers")
from sentence_transformers.sentence_transformer import modules

from models.store import ModelStore
from models.tokens.texts import short_texts
from service.lifecycle.capacity import needed
from service.settings import Settings
from tests.models.families import assembled
from tests.models.large import WORDS, large_source, words
from tests.models.test_families import CLOSE, TEXTS, imported, reference
from tests.service.conftest import HOST, serving
from training.errors import TrainingError
from training.methods.recipe import load_recipe
from training.model.new_bases import extend
from training.runs.command import train
from training.runs.export import export_run
from training.runs.options import Options
from training.text.corpus import Corpus

pytestmark = pytest.mark.long
OPENED = """
import sys
from pathlib import Path
from models.store import ModelStore
def own():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))
before = own()
encoder = ModelStore(Path(sys.argv[1])).open(sys.argv[2])
encoder.encode(["babadu dede"] * 20)
print(own() - before)
"""
RARE = list(words(WORDS))[-400::4]  # at the end of the vocabulary
SOME = [*TEXTS, *RARE, " ".join(RARE[:40])]


def _source(at: Path, kind: str) -> Path:
    raw = large_source(at / "raw", layers=1, width=32, heads=2, kind=kind)
    return assembled(raw, at / "model", [modules.Pooling(32, "mean")])


@pytest.mark.parametrize("kind", ["unigram", pytest.param("bpe", marks=pytest.mark.soak)])
def test_a_vocabulary_of_250000_is_imported_and_served(tmp_path: Path, kind: str) -> None:
    folder = _source(tmp_path, kind)
    store = ModelStore(tmp_path / "models")
    manifest = imported(folder, store)
    encoder = store.open(manifest.version)
    ids = [id for row in encoder.tokenize(RARE) for id in row.ids]
    assert max(ids) > WORDS - 1000
    assert encoder.packs
    opened = subprocess.run(
        [sys.executable, "-c", OPENED, store.root, manifest.version],
        capture_output=True,
        text=True,
        check=True,
    )
    taken, thought = int(opened.stdout), needed([], 32, store.folder(manifest.version))
    assert thought / 3 < taken < thought, "what a start and a swap ask for is near what is taken"
    expected = reference(folder, SOME)
    store.request(manifest.version)
    settings = Settings(data_dir=tmp_path / "data", models_dir=store.root, allowed_hosts=HOST, cache_mb=0)
    with serving(settings) as client:
        found = client.post("/embed", json={"inputs": SOME}).json()
    np.testing.assert_allclose(found, expected, atol=CLOSE)
    with pytest.raises(TrainingError, match="cannot take new tokens"):
        extend(store.folder(manifest.version), SOME, tmp_path / "more", 10)


@pytest.mark.soak
def test_a_vocabulary_of_250000_is_trained_from(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "models")
    manifest = imported(_source(tmp_path, "unigram"), store)
    recipe = load_recipe("simcse-unsup")
    recipe = replace(recipe, optim=replace(recipe.optim, lr=1e-3))
    options = Options(steps=3, batch=8, precision="fp32", device="cpu", threads=1)
    run = train(
        recipe, Corpus.of(short_texts(64), "words"), store.folder(manifest.version), tmp_path / "run", options
    )
    trained = store.open(export_run(run.out, store).version)
    np.testing.assert_allclose(trained.encode(SOME).vectors, reference(run.best, SOME), atol=CLOSE)


def test_a_vocabulary_of_250000_words_learns_more_of_them(tmp_path: Path) -> None:
    """The first step of `adapt` is to add tokens, if the kind of the base's vocabulary allows it."""
    raw = large_source(tmp_path / "raw", layers=1, width=32, heads=2, kind="wordpiece")
    said = ["the bababadudu and the bababadudu"] * 8
    assert extend(raw, said, tmp_path / "more", 5) > 0
    store = ModelStore(tmp_path / "models")
    before, after = (store.open(imported(folder, store).version) for folder in (raw, tmp_path / "more"))
    assert len(after.tokenize(["bababadudu"])[0].ids) < len(before.tokenize(["bababadudu"])[0].ids)
    known = RARE[:8]
    np.testing.assert_allclose(after.encode(known).vectors, before.encode(known).vectors, atol=1e-6)

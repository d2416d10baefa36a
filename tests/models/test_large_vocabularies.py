"""Vocabularies of 250,000, of both kinds that models of many languages have: served, and trained from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sentence_transformers")
from sentence_transformers.sentence_transformer import modules

from models.store import Store
from models.tokens.texts import short_texts
from service.settings import Settings
from tests.models.families import assembled
from tests.models.large import WORDS, large_source, words
from tests.models.test_families import CLOSE, TEXTS, imported, reference
from tests.service.conftest import HOST, serving
from training.errors import TrainingError
from training.methods.catalogue import load_recipe
from training.model.vocabulary import extend
from training.runs.command import train
from training.runs.export import export_run
from training.runs.options import Options
from training.text.corpus import Corpus

pytestmark = pytest.mark.long
RARE = list(words(WORDS))[-400::4]  # at the end of the vocabulary
SOME = [*TEXTS, *RARE, " ".join(RARE[:40])]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_vocabulary_of_250000(tmp_path: Path, kind: str) -> None:
    raw = large_source(tmp_path / "raw", layers=1, width=32, heads=2, kind=kind)
    folder = assembled(raw, tmp_path / "model", [modules.Pooling(32, "mean")])
    store = Store(tmp_path / "models")
    manifest = imported(folder, store)
    encoder = store.open(manifest.version)
    ids = [id for row in encoder.tokenize(RARE) for id in row.ids]
    assert max(ids) > WORDS - 1000
    assert encoder.packs
    expected = reference(folder, SOME)
    store.want(manifest.version)
    settings = Settings(data_dir=tmp_path / "data", models_dir=store.root, allowed_hosts=HOST, cache_mb=0)
    with serving(settings) as client:
        found = client.post("/embed", json={"inputs": SOME}).json()
    np.testing.assert_allclose(found, expected, atol=CLOSE)
    with pytest.raises(TrainingError, match="cannot take new tokens"):
        extend(store.folder(manifest.version), SOME, tmp_path / "more", 10)
    recipe = load_recipe("simcse-unsup")
    recipe = replace(recipe, optim=replace(recipe.optim, lr=1e-3))
    options = Options(steps=3, batch=8, precision="fp32", device="cpu", threads=1)
    run = train(
        recipe, Corpus.of(short_texts(64), "words"), store.folder(manifest.version), tmp_path / "run", options
    )
    trained = store.open(export_run(run.out, store).version)
    np.testing.assert_allclose(trained.encode(SOME).vectors, reference(run.best, SOME), atol=CLOSE)


def test_a_vocabulary_of_250000_words_learns_more_of_them(tmp_path: Path) -> None:
    """What `adapt` begins with, of a base whose vocabulary takes new tokens."""
    raw = large_source(tmp_path / "raw", layers=1, width=32, heads=2, kind="wordpiece")
    said = ["the bababadudu and the bababadudu"] * 8
    assert extend(raw, said, tmp_path / "more", 5) > 0
    store = Store(tmp_path / "models")
    before, after = (store.open(imported(folder, store).version) for folder in (raw, tmp_path / "more"))
    assert len(after.tokenize(["bababadudu"])[0].ids) < len(before.tokenize(["bababadudu"])[0].ids)
    known = RARE[:8]
    np.testing.assert_allclose(after.encode(known).vectors, before.encode(known).vectors, atol=1e-6)

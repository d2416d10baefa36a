"""Each family gives sentence-transformers' vectors, and can be trained, exported and served again."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sentence_transformers")
import sentence_transformers
from numpy.typing import NDArray

from models.encoder import Encoder
from models.errors import Unsupported
from models.manifest import Manifest
from models.publishing.default import publish_named
from models.publishing.import_process import open_with_overrides
from models.sources.folder import NO_OVERRIDES, Overrides
from models.store import ModelStore
from models.tokens.texts import PROOF_TEXTS, short_texts
from service.settings import Settings
from tests.models.families import FAMILIES, NAMES, family_source, raw_source
from tests.service.conftest import HOST, serving, wait_until_active
from training.errors import TrainingError
from training.methods.recipe import load_recipe
from training.runs.command import train
from training.runs.export import export_run
from training.runs.options import Options
from training.text.corpus import Corpus

TEXTS = [*PROOF_TEXTS[:20], *short_texts(10), "garden " * 300, "bridge signal " * 90]
CLOSE = 1e-5


def reference(folder: Path, texts: list[str], **how: Any) -> NDArray[np.float32]:
    """Returns sentence-transformers' own unit vectors."""
    from models.publishing.from_torch.backbone import quiet

    with quiet():
        model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
        vectors: NDArray[np.float32] = model.encode(
            texts, normalize_embeddings=True, show_progress_bar=False, **how
        )
    return vectors


def imported(folder: Path, store: ModelStore, requested: Overrides = NO_OVERRIDES) -> Manifest:
    return publish_named(store, str(folder), opened=partial(open_with_overrides, requested))


def same_as_the_library(folder: Path, texts: list[str]) -> Encoder:
    """Imports the folder, compares its vectors with the library's, and returns its encoder."""
    store = ModelStore(folder.parent / "models")
    encoder = store.open(imported(folder, store).version)
    np.testing.assert_allclose(encoder.encode(texts).vectors, reference(folder, texts), atol=CLOSE)
    return encoder


def refused(folder: Path, reason: str, requested: Overrides = NO_OVERRIDES) -> None:
    """Checks that the import is refused with `reason`, in one line."""
    with pytest.raises(Unsupported, match=reason) as raised:
        imported(folder, ModelStore(folder.parent / "models"), requested)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_family_is_served_as_sentence_transformers_computes_it(tmp_path: Path, name: str) -> None:
    folder = family_source(tmp_path / name, name)
    store = ModelStore(tmp_path / "models")
    manifest = imported(folder, store)
    store.request(manifest.version)
    expected = reference(folder, TEXTS)
    assert np.abs(expected @ expected.T).min() < 0.9, "all texts would look alike"
    settings = Settings(data_dir=tmp_path / "data", models_dir=store.root, allowed_hosts=HOST, cache_mb=0)
    with serving(settings) as client:
        order = random.Random(0).sample(range(len(TEXTS)), len(TEXTS))
        together = client.post("/embed", json={"inputs": [TEXTS[at] for at in order]}).json()
        np.testing.assert_allclose(together, expected[order], atol=CLOSE)
        alone = [client.post("/embed", json={"inputs": text}).json()[0] for text in TEXTS]
        np.testing.assert_allclose(alone, expected, atol=CLOSE)
    again = reference(store.folder(manifest.version), TEXTS)  # A version is such a folder, too.
    np.testing.assert_allclose(again, expected, atol=CLOSE)
    assert imported(store.folder(manifest.version), store) == manifest


QUICK = {"bert", "static"}


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in NAMES]
)
def test_a_family_is_trained_exported_and_swapped_to(tmp_path: Path, name: str) -> None:
    folder = family_source(tmp_path / name, name)
    store = ModelStore(tmp_path / "models")
    base = imported(folder, store)
    recipe = load_recipe("simcse-unsup")
    recipe = replace(recipe, optim=replace(recipe.optim, lr=1e-3))
    options = Options(steps=3, batch=8, precision="fp32", device="cpu", threads=1)
    corpus = Corpus.of(short_texts(64), "words")
    run = train(recipe, corpus, store.folder(base.version), tmp_path / "run", options)
    trained = export_run(run.out, store)
    assert (trained.pooling, trained.dimension) == (base.pooling, base.dimension)
    expected = reference(run.best, TEXTS)
    store.request(base.version)
    settings = Settings(data_dir=tmp_path / "data", models_dir=store.root, allowed_hosts=HOST, cache_mb=0)
    with serving(settings) as client:
        before = client.post("/embed", json={"inputs": TEXTS}).json()
        client.post("/documents", json={"documents": [{"id": "a", "text": "river"}]})
        store.request(trained.version)
        wait_until_active(client, trained.version)
        after = client.post("/embed", json={"inputs": TEXTS}).json()
        np.testing.assert_allclose(after, expected, atol=CLOSE)
        assert np.abs(np.array(after) - before).max() > 1e-4, "it must be the trained weights"
        assert client.get("/search", params={"q": "river"}).json()["hits"][0]["id"] == "a"


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["roberta", "xlm-roberta", "distilbert", "mpnet", "modernbert", "deberta-v2"]
)
def test_a_family_is_pre_trained_where_it_can_guess_words(tmp_path: Path, name: str) -> None:
    raw = raw_source(tmp_path / "raw", FAMILIES[name])
    corpus = Corpus.of(short_texts(64), "words")
    options = Options(steps=3, batch=8, precision="fp32", device="cpu", threads=1)
    run = train(load_recipe("mlm"), corpus, raw, tmp_path / "mlm", options)
    again = train(load_recipe("simcse-unsup"), corpus, run.best, tmp_path / "simcse", options)
    version = export_run(again.out, ModelStore(tmp_path / "models")).version
    found = ModelStore(tmp_path / "models").open(version).encode(TEXTS).vectors
    np.testing.assert_allclose(found, reference(again.best, TEXTS), atol=CLOSE)


@pytest.mark.parametrize("name", ["albert", "static"])
def test_a_base_that_cannot_guess_words_says_so(tmp_path: Path, name: str) -> None:
    folder = family_source(tmp_path / name, name)
    corpus = Corpus.of(short_texts(64), "words")
    options = Options(steps=1, batch=8, precision="fp32", device="cpu", threads=1)
    with pytest.raises(TrainingError, match=f"'{name}' cannot predict words"):
        train(load_recipe("mlm"), corpus, folder, tmp_path / "mlm", options)


@pytest.mark.long
def test_families_of_other_dimensions_are_swapped_and_rolled_back_under_load(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "models")
    names = ["bert", "gemma3", "static", "qwen3"]
    versions = {name: imported(family_source(tmp_path / name, name), store) for name in names}
    assert {manifest.dimension for manifest in versions.values()} == {24, 32}
    store.request(versions["bert"].version)
    settings = Settings(data_dir=tmp_path / "data", models_dir=store.root, allowed_hosts=HOST, cache_mb=0)
    stop, trouble, served = threading.Event(), [], set()
    with serving(settings) as client:
        documents = [{"id": str(at), "text": text} for at, text in enumerate(short_texts(40))]
        assert client.post("/documents", json={"documents": documents}).status_code == 200

        def ask() -> None:
            while not stop.is_set():
                found = client.post("/embed", json={"inputs": TEXTS[:4]})
                hits = client.get("/search", params={"q": "river stone", "k": 3})
                if (found.status_code, hits.status_code) != (200, 200):
                    trouble.append((found.text, hits.text))
                served.add((found.headers["x-model-version"], len(found.json()[0])))

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for name in names[1:]:
                store.request(versions[name].version)
                wait_until_active(client, versions[name].version)
            assert client.post("/models/rollback").status_code in (200, 202)
            wait_until_active(client, versions["static"].version)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert not trouble
    known = {(manifest.version, manifest.dimension) for manifest in versions.values()}
    assert served <= known
    assert len(served) >= 2

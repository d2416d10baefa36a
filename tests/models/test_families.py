"""Each family is served as sentence-transformers computes it, and retrained from as it came."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from models.manifest import Manifest
from models.publishing.default import publish_named
from models.publishing.importing import opener
from models.sources.folder import NOTHING_ASKED, Asked
from models.store import Store
from models.tokens.texts import PROOF_TEXTS, short_texts
from service.settings import Settings
from tests.models.families import NAMES, family_source
from tests.service.conftest import HOST, serving

sentence_transformers = pytest.importorskip("sentence_transformers")
TEXTS = [*PROOF_TEXTS[:20], *short_texts(10), "garden " * 300, "bridge signal " * 90]
CLOSE = 1e-5


def reference(folder: Path, texts: list[str], **how: object) -> NDArray[np.float32]:
    """sentence-transformers' own unit vectors."""
    from models.publishing.from_torch.backbone import quiet

    with quiet():
        model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
        vectors: NDArray[np.float32] = model.encode(
            texts, normalize_embeddings=True, show_progress_bar=False, **how
        )
    return vectors


def imported(folder: Path, store: Store, asked: Asked = NOTHING_ASKED) -> Manifest:
    return publish_named(store, str(folder), opened=opener(asked))


@pytest.mark.parametrize("name", NAMES)
def test_a_family_is_served_as_sentence_transformers_computes_it(tmp_path: Path, name: str) -> None:
    folder = family_source(tmp_path / name, name)
    store = Store(tmp_path / "models")
    manifest = imported(folder, store)
    store.want(manifest.version)
    expected = reference(folder, TEXTS)
    assert np.abs(expected @ expected.T).min() < 0.9, "all texts would look alike"
    settings = Settings(data_dir=tmp_path / "data", models_dir=store.root, allowed_hosts=HOST, cache_mb=0)
    with serving(settings) as client:
        order = random.Random(0).sample(range(len(TEXTS)), len(TEXTS))
        together = client.post("/embed", json={"inputs": [TEXTS[at] for at in order]}).json()
        np.testing.assert_allclose(together, expected[order], atol=CLOSE)
        alone = [client.post("/embed", json={"inputs": text}).json()[0] for text in TEXTS]
        np.testing.assert_allclose(alone, expected, atol=CLOSE)
    again = reference(store.folder(manifest.version), TEXTS)  # the version is such a folder, too
    np.testing.assert_allclose(again, expected, atol=CLOSE)
    assert imported(store.folder(manifest.version), store) == manifest

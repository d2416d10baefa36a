"""Each family of cross-encoders gives the scores of sentence-transformers, alone and in any batch."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sentence_transformers")
import torch
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder

from models.manifest import Manifest
from models.publishing.default import publish_named
from models.publishing.from_torch.backbone import quiet
from models.publishing.import_process import open_with_overrides
from models.publishing.scores import PROOF_PAIRS
from models.reranker import Reranker
from models.sources.folder import NO_OVERRIDES
from models.store import ModelStore
from models.tokens.pairs import Pair
from models.tokens.texts import long_text, short_texts
from tests.models.cross_encoders import CLASSES, LABELS, cross_encoder_source

_SHORT = short_texts(24)
PAIRS = [
    *PROOF_PAIRS,
    *map(Pair, _SHORT[::2], _SHORT[1::2]),
    Pair("garden", long_text(40)),
    Pair(long_text(20), long_text(21)),
    Pair(long_text(80), "bridge"),
]
SCORES, LOGITS = 1e-5, 1e-4


def reference(folder: Path, **how: Any) -> NDArray[np.float32]:
    """Returns the scores of sentence-transformers' CrossEncoder, shape (pairs, outputs)."""
    with quiet():
        model = CrossEncoder(str(folder), device="cpu")
        found = model.predict([list(pair) for pair in PAIRS], show_progress_bar=False, **how)
    return np.asarray(found, np.float32).reshape(len(PAIRS), -1)


def imported(folder: Path, store: ModelStore) -> Manifest:
    return publish_named(store, str(folder), opened=partial(open_with_overrides, NO_OVERRIDES))


def same_as_the_library(folder: Path, store: ModelStore) -> Reranker:
    """Imports the folder, compares its scores with the library's, and returns its reranker."""
    reranker = store.open_reranker(imported(folder, store).version)
    scores, logits = reference(folder), reference(folder, activation_fn=torch.nn.Identity())
    assert scores.std(axis=0).min() > 1e-3, "all pairs would look alike"
    order = random.Random(0).sample(range(len(PAIRS)), len(PAIRS))
    together = np.empty_like(scores)
    rows = [row.ids for row in reranker.tokenize(PAIRS)]
    for start in range(0, len(order), 7):
        batch = order[start : start + 7]
        together[batch] = reranker.forward([rows[at] for at in batch])
    np.testing.assert_allclose(together, scores, atol=SCORES, rtol=0)
    np.testing.assert_allclose(reranker.score(PAIRS), scores, atol=SCORES, rtol=0)
    alone = np.concatenate([reranker.score([pair], normalize=False) for pair in PAIRS])
    assert (np.abs(alone - logits) / np.maximum(1e-2, np.abs(logits))).max() <= LOGITS
    return reranker


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("name", CLASSES)
def test_a_family_scores_as_sentence_transformers_does(tmp_path: Path, name: str, outputs: int) -> None:
    folder = cross_encoder_source(tmp_path / name, name, outputs)
    store = ModelStore(tmp_path / "models")
    manifest = same_as_the_library(folder, store).manifest
    assert (manifest.kind, manifest.dimension) == ("reranker", outputs)
    assert manifest.labels == ([] if outputs == 1 else list(LABELS[:outputs]))
    assert manifest.activation == ("sigmoid" if outputs == 1 else "identity")
    assert manifest.packed == (name != "deberta-v2")
    published = store.folder(manifest.version)
    np.testing.assert_allclose(reference(published), reference(folder), atol=SCORES, rtol=0)
    assert imported(published, store) == manifest, "a version is such a folder, too"

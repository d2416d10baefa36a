"""The raw engine computes correct vectors."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import raw
from benchmarks.raw import RawEngine
from benchmarks.rounds import Scenario, cosines
from benchmarks.workloads import Workload
from models.encoder import Encoder
from models.store import ModelStore
from models.tokens.tokenizer import FILE_NAME, Tokenizer
from tests.tiny import ROUNDING

TEXTS = [" ".join(["river", "stone", "market"][: 1 + at % 3] * (1 + at % 5)) for at in range(24)]


@pytest.fixture(scope="module")
def folder(tiny_models_dir: Path) -> Path:
    store = ModelStore(tiny_models_dir)
    [manifest] = store.versions()
    return store.folder(manifest.version)


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Encoder:
    return Encoder.open(folder)


@pytest.fixture(scope="module")
def tokenizer(folder: Path, encoder: Encoder) -> Tokenizer:
    return Tokenizer(folder / FILE_NAME, encoder.max_length)


@pytest.fixture(scope="module")
def engine(folder: Path, tokenizer: Tokenizer) -> RawEngine:
    calls, inputs = raw.onnx_runtime_calls(folder / "onnx" / "model.onnx", 2)
    return RawEngine("raw fp32", calls, inputs, tokenizer)


@pytest.fixture(scope="module")
def workload(encoder: Encoder) -> Workload:
    return Workload("sentences", TEXTS, [list(tokens.ids) for tokens in encoder.tokenize(TEXTS)])


def test_the_raw_engine_returns_the_encoder_s_vectors(engine: RawEngine, encoder: Encoder) -> None:
    np.testing.assert_allclose(engine.vectors(TEXTS), encoder.encode(TEXTS).vectors, atol=1e-6)


@pytest.mark.parametrize(("precision", "near"), [("f32", ROUNDING), ("bf16", 0.02)])
def test_the_raw_engine_in_openvino_returns_the_encoder_s_vectors(
    precision: str, near: float, folder: Path, encoder: Encoder, tokenizer: Tokenizer
) -> None:
    pytest.importorskip("openvino", reason="needs the extra openvino")
    calls, inputs = raw.openvino_calls(folder / "onnx" / "model.onnx", 2, precision)
    found = RawEngine("raw", calls, inputs, tokenizer).vectors(TEXTS)
    np.testing.assert_allclose(found, encoder.encode(TEXTS).vectors, atol=near)


def test_batches_have_every_text_once_sorted_within_the_budget(engine: RawEngine, workload: Workload) -> None:
    made = engine.batches(workload.ids, 64)
    found: list[list[list[int]]] = []
    for batch in made:
        ids, mask = batch["input_ids"], batch["attention_mask"]
        assert ids.size <= 64
        found.append([row[own == 1].tolist() for row, own in zip(ids, mask, strict=True)])
    assert sorted(row for rows in found for row in rows) == sorted(workload.ids)
    spans = sorted((min(n), max(n)) for n in ([len(row) for row in rows] for rows in found))
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


def record_rows(engine: RawEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each call of the engine appends its number of texts."""
    rows: list[int] = []
    [call, *_] = engine.calls

    def recorded(feed: raw.Feed) -> Any:
        rows.append(len(feed["input_ids"]))
        return call(feed)

    monkeypatch.setattr(engine, "calls", [recorded, recorded])
    return rows


def test_a_measurement_covers_the_whole_workload(
    engine: RawEngine, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.choose_budget(workload)
    rows = record_rows(engine, monkeypatch)
    found = engine.measure(Scenario("sentences", workload), 0)
    assert sum(rows) == len(TEXTS)
    assert found.rate > 0


def test_cosines_are_of_pairs_of_vectors_of_any_length() -> None:
    one = np.array([[3, 4], [1, 0], [1, 1]], np.float32)
    other = np.array([[6, 8], [0, 2], [2, 0]], np.float32)
    np.testing.assert_allclose(cosines(one, other), [1, 0, np.sqrt(0.5)], atol=1e-7)

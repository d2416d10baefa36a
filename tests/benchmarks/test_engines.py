"""The raw engine and the matrix products compute what they say, and peers are what their pins say."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import engines, gemm
from benchmarks.contestant import Scenario
from benchmarks.environments import LIBRARIES, PINS, environment, pins
from benchmarks.raw import RawEngine, SingleCalls, cosines
from benchmarks.workloads import ABSTRACTS, WIKIPEDIA, Workload, corpus
from models.encoder import Encoder
from models.store import Store
from models.tokens.tokenizer import FILE_NAME, Tokenizer
from tests.tiny import ROUNDING

TEXTS = [" ".join(["river", "stone", "market"][: 1 + at % 3] * (1 + at % 5)) for at in range(24)]


@pytest.fixture(scope="module")
def folder(tiny_models_dir: Path) -> Path:
    store = Store(tiny_models_dir)
    [manifest] = store.versions()
    return store.folder(manifest.version)


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Encoder:
    return Encoder.open(folder)


@pytest.fixture(scope="module")
def engine(folder: Path, encoder: Encoder) -> RawEngine:
    calls, inputs = engines.onnx_runtime(folder / "onnx" / "model.onnx", 2)
    return RawEngine("raw fp32", calls, inputs, Tokenizer(folder / FILE_NAME, encoder.max_length))


@pytest.fixture(scope="module")
def workload(encoder: Encoder) -> Workload:
    return Workload("sentences", TEXTS, [list(tokens.ids) for tokens in encoder.tokenize(TEXTS)])


def test_the_raw_engine_s_vectors_are_the_encoder_s(engine: RawEngine, encoder: Encoder) -> None:
    np.testing.assert_allclose(engine.vectors(TEXTS), encoder.encode(TEXTS).vectors, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
def test_what_a_lone_text_is_compared_with_computes_the_same(
    threads: int, folder: Path, encoder: Encoder
) -> None:
    call, inputs = engines.together(folder / "onnx" / "model.onnx", threads)
    found = RawEngine("raw", [call], inputs, Tokenizer(folder / FILE_NAME, encoder.max_length)).vectors(TEXTS)
    np.testing.assert_allclose(found, encoder.encode(TEXTS).vectors, atol=1e-6)


@pytest.mark.parametrize(("precision", "near"), [("f32", ROUNDING), ("bf16", 0.02)])
def test_the_raw_engine_in_openvino_computes_the_same(
    precision: str, near: float, folder: Path, encoder: Encoder
) -> None:
    pytest.importorskip("openvino", reason="needs the extra openvino")
    calls, inputs = engines.openvino(folder / "onnx" / "model.onnx", 2, precision)
    tokenizer = Tokenizer(folder / FILE_NAME, encoder.max_length)
    found = RawEngine("raw", calls, inputs, tokenizer).vectors(TEXTS)
    np.testing.assert_allclose(found, encoder.encode(TEXTS).vectors, atol=near)


def test_batches_hold_every_text_once_sorted_and_no_larger_than_allowed(
    engine: RawEngine, workload: Workload
) -> None:
    made = engine.batches(workload.ids, 64)
    assert sorted(row for batch in made for row in batch.rows) == list(range(len(TEXTS)))
    for batch in made:
        ids, mask = batch.feed["input_ids"], batch.feed["attention_mask"]
        assert ids.size <= 64
        for at, row in enumerate(batch.rows):
            assert ids[at][mask[at] == 1].tolist() == workload.ids[row]
    spans = sorted((min(n), max(n)) for n in ([len(workload.ids[row]) for row in b.rows] for b in made))
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_a_measurement_is_of_the_whole_workload(engine: RawEngine, workload: Workload) -> None:
    found = engine.measure(Scenario("sentences", workload), 0)
    assert found.rate > 0
    single = Scenario("single calls", workload, seconds=0.1)
    alone = SingleCalls("raw, a text a call", engine, tokenising=False).measure(single, 0)
    assert alone.p50_ms is not None
    assert alone.rate > 0


def test_cosines_are_those_of_each_pair_whatever_the_lengths() -> None:
    one = np.array([[3, 4], [1, 0], [1, 1]], np.float32)
    other = np.array([[6, 8], [0, 2], [2, 0]], np.float32)
    np.testing.assert_allclose(cosines(one, other), [1, 0, np.sqrt(0.5)], atol=1e-7)


def product(answer: Any) -> Any:
    """NumPy answers the array, ONNX Runtime a list of outputs."""
    return answer if isinstance(answer, np.ndarray) else answer[0]


@pytest.mark.parametrize("kind", list(gemm.KINDS))
def test_a_product_is_the_product(kind: str) -> None:
    found = gemm.KINDS[kind](4, 16, 8)()
    chance = np.random.default_rng(0)
    left, right = chance.random((4, 16), np.float32), chance.random((16, 8), np.float32)
    np.testing.assert_allclose(product(found), left.astype(np.float64) @ right, rtol=1e-5)


def test_a_peak_counts_two_operations_for_each_multiplication(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "SHAPES", ((10, 20, 30),))
    monkeypatch.setattr(gemm, "rate", lambda products, seconds: 5e9)
    peak = gemm.Gemm("GEMM", lambda m, k, n: lambda: None, 1)
    found = peak.measure(Scenario("products", Workload("sentences", [], [])), 0)
    assert found.rate == pytest.approx(5 * 2 * 6000)


def test_every_package_of_a_peer_is_pinned() -> None:
    files = sorted(PINS.glob("*.txt"))
    assert {file.stem for file in files} == {"infinity"} | {where for where, _ in LIBRARIES.values()}
    for file in files:
        lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
        assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line) for line in lines), file
    assert pins("infinity").keys() >= {"infinity_emb", "onnxruntime", "torch"}


def test_a_peer_does_not_inherit_our_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMILE_PORT", "1")
    monkeypatch.setenv("PATH", "/bin")
    found = environment()
    assert "OMP_NUM_THREADS" not in found
    assert "SIMILE_PORT" not in found
    assert found["PATH"] == "/bin"


def test_without_the_evaluation_folder_words_come_from_the_project_s_own_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMILE_EVAL_DATA", str(tmp_path))
    found = corpus()
    assert "example corpus" in found.source
    assert len(found.passages) > 100


@pytest.mark.parametrize("damage", ["missing", "a file", "no gzip"])
def test_an_evaluation_folder_that_cannot_be_read_ends_a_bench_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    folder, expected = tmp_path / "sets", "is not a folder. Name its folder"
    if damage == "a file":
        folder.write_text("")
    elif damage == "no gzip":
        for name in (WIKIPEDIA, *ABSTRACTS):
            (folder / name).parent.mkdir(parents=True)
            (folder / name).write_bytes(b"no gzip")
        expected = "wiki_sentences.tsv.gz"
    monkeypatch.setenv("SIMILE_EVAL_DATA", str(folder))
    with pytest.raises(SystemExit, match=f"{re.escape(str(folder))}.*{expected}") as ended:
        corpus()
    assert "\n" not in str(ended.value)

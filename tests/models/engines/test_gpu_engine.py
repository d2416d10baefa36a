"""The GPU engine, run with the CPU's provider. Tests on a real GPU are in test_gpu_device.py."""

from __future__ import annotations

import json
import logging
import random
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnxruntime
import pytest
from safetensors.numpy import load_file, save_file

from models.encoder import Encoder
from models.engines import cuda
from models.engines.cuda import CudaEngine
from models.engines.form import CPU, FP32, Form, Place, Precision, parse_place
from models.engines.nvidia import Halving, Provider, cuda_provider, is_exhaustion, require_cuda
from models.errors import DeviceMemory, DeviceUnavailable
from models.manifest import ONNX
from models.publishing.proof import check_golden
from models.publishing.publish import publish
from models.store import ModelStore
from models.tokens.texts import PROOF_TEXTS, long_text
from tests.models.feeds import padded
from tests.tiny import MAX_LENGTH, tiny_source
from tests.waiting import LIMIT

ON_CPU = Provider("CPUExecutionProvider", {}, "cpu")
SENTENCE = "sentence_embedding"
TEXTS = [*PROOF_TEXTS, *(long_text(n)[n:] for n in range(2, 60))]
# Messages of ONNX Runtime 1.31, and messages of CUDA from its issues.
POOL_AT_ITS_LIMIT = (
    "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running FusedMatMul node. "
    "Available memory of 7469824 is smaller than requested bytes of 50331648"
)
EXHAUSTED = [
    POOL_AT_ITS_LIMIT,
    "BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size 939524096",
    "CUDA failure 2: out of memory ; GPU=0 ; hostname=here",
    "cudaErrorMemoryAllocation:out of memory",
    "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0",
    "std::bad_alloc",
]


@pytest.fixture(scope="module")
def feed(encoder: Encoder) -> dict[str, np.ndarray]:
    return padded([row.ids for row in encoder.tokenize(TEXTS)], MAX_LENGTH)


@pytest.fixture
def engine(folder: Path) -> Iterator[CudaEngine]:
    engine = CudaEngine(folder / ONNX, "fp16", ON_CPU, MAX_LENGTH)
    yield engine
    engine.close()


def _part(feed: dict[str, np.ndarray], rows: list[int]) -> dict[str, np.ndarray]:
    """Returns `rows` of `feed`, cut to the longest of these rows."""
    length = int(feed["attention_mask"][rows].sum(axis=1).max())
    return {name: array[rows, :length] for name, array in feed.items()}


def _in_batches(engine: CudaEngine, feed: dict[str, np.ndarray], seed: int, size: int) -> np.ndarray:
    order = random.Random(seed).sample(range(len(TEXTS)), len(TEXTS))
    found = np.empty((len(TEXTS), 32), np.float32)
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        found[rows] = engine.run(_part(feed, rows), SENTENCE)
    return found


@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-6), ("fp16", 2e-3)])
@pytest.mark.parametrize("size", [1, 7, 33])
def test_vectors_are_those_of_the_cpu_in_any_batch(
    folder: Path, encoder: Encoder, feed: dict[str, np.ndarray], precision: Precision, bound: float, size: int
) -> None:
    engine = CudaEngine(folder / ONNX, precision, ON_CPU, MAX_LENGTH)
    expected = encoder.encode(TEXTS).vectors
    found = _in_batches(engine, feed, seed=size, size=size)
    np.testing.assert_allclose(found, expected, atol=bound, rtol=0)
    assert np.sum(found * expected, axis=1).min() >= 0.9999
    assert found.dtype == np.float32
    assert engine.form == Form(precision, "onnxruntime-cuda") != FP32


def test_a_batch_reaches_the_session_in_a_rounded_shape(
    engine: CudaEngine, feed: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = set()
    upload = onnxruntime.OrtValue.ortvalue_from_numpy

    def seen(array: np.ndarray, *device: object) -> object:
        shapes.add(array.shape)
        return upload(array, *device)

    monkeypatch.setattr(onnxruntime.OrtValue, "ortvalue_from_numpy", seen)
    for rows in range(1, len(TEXTS)):
        assert engine.run(_part(feed, list(range(rows))), SENTENCE).shape == (rows, 32)
    rungs = {*range(1, 9), *range(10, 17, 2), *range(20, 33, 4), *range(40, 65, 8), 80, 96}
    assert {rows for rows, _ in shapes} <= rungs
    assert all(length % 8 == 0 for _, length in shapes)


def test_threads_share_the_engine(engine: CudaEngine, encoder: Encoder, feed: dict[str, np.ndarray]) -> None:
    expected = encoder.encode(TEXTS).vectors
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda seed: _in_batches(engine, feed, seed, 9), range(12), timeout=LIMIT):
            np.testing.assert_allclose(found, expected, atol=2e-3, rtol=0)


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A version whose last normalization returns numbers beyond fp16 for about half of the texts."""
    root = tmp_path_factory.mktemp("overflowing")
    source = tiny_source(root / "source")
    weights = load_file(source / "model.safetensors")
    weights["encoder.layer.1.output.LayerNorm.weight"] *= 16_000
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    store = ModelStore(root / "models")
    return store.folder(publish(store, source).version)


def test_a_row_that_overflows_in_fp16_is_computed_again_in_fp32(
    overflowing: Path, feed: dict[str, np.ndarray], caplog: pytest.LogCaptureFixture
) -> None:
    expected = Encoder.open(overflowing).encode(TEXTS).vectors
    found = CudaEngine(overflowing / ONNX, "fp16", ON_CPU, MAX_LENGTH).run(feed, SENTENCE)
    exact = np.abs(found - expected).max(axis=1) <= 1e-6
    assert 5 <= exact.sum() <= len(TEXTS) - 5, "some rows overflow and some do not"
    np.testing.assert_allclose(found, expected, atol=2e-3, rtol=0)
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"{exact.sum()} {cuda.RECOMPUTED}"]
    row = int(np.argmax(exact))  # a row that was computed again
    caplog.clear()
    another = CudaEngine(overflowing / ONNX, "fp16", ON_CPU, MAX_LENGTH)
    for _ in range(12):
        another.run(_part(feed, [row]), SENTENCE)
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"{count} {cuda.RECOMPUTED}" for count in (1, 10)]


def test_a_row_that_cannot_be_computed_again_fails_alone(
    overflowing: Path,
    feed: dict[str, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected = Encoder.open(overflowing).encode(TEXTS).vectors
    engine = CudaEngine(overflowing / ONNX, "fp16", ON_CPU, MAX_LENGTH)
    monkeypatch.setattr(cuda, "open_session", Mock(side_effect=RuntimeError(EXHAUSTED[1])))
    found = engine.run(feed, SENTENCE)
    finite = np.isfinite(found).all(axis=1)
    assert 5 <= finite.sum() <= len(TEXTS) - 5
    np.testing.assert_allclose(found[finite], expected[finite], atol=2e-3, rtol=0)
    assert "could not be computed in fp32" in caplog.text


@pytest.mark.parametrize("words", EXHAUSTED)
def test_the_words_for_memory_that_ran_out_are_known(words: str) -> None:
    assert is_exhaustion(RuntimeError(words))
    assert is_exhaustion(MemoryError())


@pytest.mark.parametrize(
    "words", ["CUDA failure 700: an illegal memory access was encountered", "the model broke"]
)
def test_another_failure_is_passed_on_at_once(words: str) -> None:
    requested: list[slice] = []

    def compute(part: slice) -> np.ndarray:
        requested.append(part)
        raise RuntimeError(words)

    with pytest.raises(RuntimeError, match=words):
        Halving().run(compute, 64, 8)
    assert requested == [slice(0, 64)]


def _fitting(most: int, requested: list[int]) -> Callable[[slice], np.ndarray]:
    """Returns a pass that fails above `most` rows and records their number. A row's vector is its index."""

    def compute(part: slice) -> np.ndarray:
        requested.append(part.stop - part.start)
        if part.stop - part.start > most:
            raise RuntimeError(POOL_AT_ITS_LIMIT)
        return np.arange(part.start, part.stop, dtype=np.float32)[:, None]

    return compute


def test_a_batch_too_large_is_halved_until_it_fits_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    halving, requested = Halving(), list[int]()
    for _ in range(3):
        found = halving.run(_fitting(3, requested), 13, 8)
        np.testing.assert_array_equal(found[:, 0], range(13))
    assert requested[:4] == [13, 6, 3, 3]
    [said] = caplog.records
    assert said.levelno == logging.WARNING
    assert "13 x 8 tokens" in said.getMessage()


def test_a_single_row_too_large_says_what_helps() -> None:
    requested: list[int] = []
    with pytest.raises(DeviceMemory, match=r"row of 512 tokens .* SIMILE_GPU_MEM_MB"):
        Halving().run(_fitting(0, requested), 8, 512)
    assert requested == [8, 4, 2, 1]


def test_a_pool_that_is_really_full_is_answered_in_halves(folder: Path, tmp_path: Path) -> None:
    """Limits ONNX Runtime's own memory pool on the CPU, so that its errors are the real ones."""
    code = f"""
import logging, numpy as np, onnxruntime
from pathlib import Path
from models.engines.cuda import CudaEngine
from models.engines.nvidia import Provider
logging.basicConfig(format="%(message)s")
options = onnxruntime.SessionOptions
def limited():
    made = options()
    made.add_session_config_entry("session.use_env_allocators", "1")
    return made
onnxruntime.SessionOptions = limited
kind = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
memory = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, onnxruntime.OrtMemType.DEFAULT)
limit = {{"max_mem": 4 << 20, "arena_extend_strategy": 1}}
onnxruntime.create_and_register_allocator(memory, onnxruntime.OrtArenaCfg(limit))
provider = Provider("CPUExecutionProvider", {{}}, "cpu")
engine = CudaEngine(Path({str(folder / ONNX)!r}), "fp32", provider, 64)
ids = np.random.default_rng(1).integers(5, 200, (256, 64))
feed = {{"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": 0 * ids}}
np.save({str(tmp_path / "found.npy")!r}, engine.run(feed, "sentence_embedding"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "256 x 64 tokens does not fit" in done.stderr
    ids = np.random.default_rng(1).integers(5, 200, (256, 64))
    expected = Encoder.open(folder).forward(ids.tolist())
    np.testing.assert_allclose(np.load(tmp_path / "found.npy"), expected, atol=1e-6, rtol=0)


def test_places_are_read_from_their_names() -> None:
    assert parse_place("cpu", 100) == CPU
    assert parse_place("cuda") == Place("cuda", 0) == parse_place("cuda:0")
    assert parse_place("cuda:3", 2048) == Place("cuda", 3, 2048)
    assert [str(parse_place(name)) for name in ("cpu", "cuda", "cuda:3")] == ["cpu", "cuda:0", "cuda:3"]
    for name in ("gpu", "cuda:", "cuda:x", "CUDA", "cuda:-1", "cpu:0", ""):
        with pytest.raises(ValueError, match="cuda:N"):
            parse_place(name)


def test_the_limit_of_a_place_is_told_to_the_provider_in_bytes() -> None:
    name, options, device, number = cuda_provider(Place("cuda", 2, 512))
    assert (name, device, number) == ("CUDAExecutionProvider", "cuda", 2)
    assert (options["device_id"], options["gpu_mem_limit"]) == ("2", str(512 * 2**20))
    assert (options["arena_extend_strategy"], options["use_tf32"]) == ("kNextPowerOfTwo", "0")
    assert "gpu_mem_limit" not in cuda_provider(Place("cuda")).options


def test_a_session_that_would_run_on_the_cpu_instead_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a CUDA library does not load, ONNX Runtime opens a session on the CPU without an error."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the ONNX Runtime that is installed here does not know CUDA
        with pytest.raises(DeviceUnavailable, match="GPU 7, but ONNX Runtime cannot"):
            require_cuda(Place("cuda", 7))


def test_what_fp16_turns_is_told_as_mean_and_least(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.engines.opening.cuda_provider", lambda place: ON_CPU)
    copy = shutil.copytree(folder, tmp_path / "copy")
    golden = json.loads((copy / "golden.json").read_bytes())
    vector = np.asarray(golden["vectors"][3])
    across = np.roll(vector, 1)
    across -= vector * (across @ vector)
    turned = vector + 0.01 * across / np.linalg.norm(across)  # a cosine of 0.99995 to the vector before
    golden["vectors"][3] = (turned / np.linalg.norm(turned)).tolist()
    (copy / "golden.json").write_text(json.dumps(golden))
    half = Encoder.open(copy, form=Form("fp16", "onnxruntime-cuda"), place=Place("cuda", 0))
    assert half.turned is None, "nobody has looked"
    check_golden(half, copy)
    assert half.turned == (23, pytest.approx(1 - 5e-5 / 23, abs=1e-6), pytest.approx(0.99995, abs=5e-6))
    exact = Encoder.open(folder)
    check_golden(exact, folder)
    assert exact.turned is None, "fp32 is what the others are compared with"

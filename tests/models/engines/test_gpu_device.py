"""Behavior that only a machine with a GPU can show, or only a machine without one."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import numpy as np
import pytest

from models.encoder import Encoder
from models.engines.form import Form, Place, Precision
from models.engines.nvidia import require_cuda
from models.errors import DeviceUnavailable, ModelError
from models.tokens.texts import PROOF_TEXTS, long_text
from tests.tiny import MAX_LENGTH

GPU = Place("cuda")
TEXTS = [*PROOF_TEXTS, *(long_text(n)[n:] for n in range(2, 60))]


def _without_gpu() -> str:
    """Returns the reason why no GPU can be used. It is empty on a machine with a GPU."""
    try:
        require_cuda(GPU)
    except DeviceUnavailable as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def gpu() -> Place:
    if why := _without_gpu():
        pytest.skip(f"needs a GPU and the extra gpu: {why}")
    return GPU


def _form(precision: Precision) -> Form:
    return Form(precision, "onnxruntime-cuda")


def test_a_gpu_that_is_asked_for_and_not_there_is_refused_with_what_helps(folder: Path) -> None:
    if not (why := _without_gpu()):
        pytest.skip("this machine has a GPU")
    assert "SIMILE_DEVICE=cpu" in why
    assert "make serve SIMILE_DEVICE=cuda" in why or "nvidia-smi" in why  # extra or driver
    with pytest.raises(DeviceUnavailable, match="SIMILE_DEVICE=cpu"):
        Encoder.open(folder, form=_form("fp16"), place=GPU)


def test_a_gpu_beyond_the_last_one_is_refused(gpu: Place) -> None:
    with pytest.raises(DeviceUnavailable, match="GPU 99"):
        require_cuda(Place("cuda", 99))


@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-5), ("fp16", 5e-3)])
def test_vectors_of_the_gpu_are_those_of_the_cpu_in_any_batch(
    gpu: Place, folder: Path, precision: Precision, bound: float
) -> None:
    expected = Encoder.open(folder).encode(TEXTS).vectors
    encoder = Encoder.open(folder, form=_form(precision), place=gpu)
    assert encoder.providers[0] == "CUDAExecutionProvider"
    rows = [row.ids for row in encoder.tokenize(TEXTS)]
    for size in (1, 7, 33, len(rows)):
        order = random.Random(size).sample(range(len(rows)), len(rows))
        found = np.concatenate(
            [
                encoder.forward([rows[at] for at in order[start : start + size]])
                for start in range(0, len(order), size)
            ]
        )
        np.testing.assert_allclose(found, expected[order], atol=bound, rtol=0)
        assert np.sum(found * expected[order], axis=1).min() >= 0.9999


def test_memory_of_the_gpu_stops_growing_over_thousands_of_shapes(gpu: Place, folder: Path) -> None:
    encoder = Encoder.open(folder, form=_form("fp16"), place=gpu)
    chance = random.Random(0)

    def batches(count: int) -> int:
        for _ in range(count):
            length = chance.randint(2, MAX_LENGTH)
            encoder.forward([[2, *[7] * (length - 2), 3]] * chance.randint(1, 256))
        return _used_mb()

    early = batches(1000)
    assert batches(3000) <= 1.15 * early


def test_a_batch_larger_than_the_limit_is_computed_all_the_same(gpu: Place, folder: Path) -> None:
    rows = [[2, *[7] * (MAX_LENGTH - 2), 3]] * 4096  # their attention scores alone take 64 MiB in fp16
    expected = Encoder.open(folder).forward(rows[:1])
    encoder = Encoder.open(folder, form=_form("fp16"), place=Place("cuda", memory_mb=32))
    found = encoder.forward(rows)
    np.testing.assert_allclose(found, np.repeat(expected, len(rows), axis=0), atol=5e-3, rtol=0)


def test_a_limit_that_the_model_does_not_fit_into_is_said_when_it_is_opened(
    gpu: Place, default_models_dir: Path
) -> None:
    [version] = default_models_dir.glob("2*")
    with pytest.raises(ModelError, match="SIMILE_GPU_MEM_MB"):
        Encoder.open(version, form=_form("fp32"), place=Place("cuda", memory_mb=16))


def _used_mb() -> int:
    """Returns the MiB in use on the first GPU, by all processes."""
    requested = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    return int(subprocess.run(requested, capture_output=True, text=True, check=True).stdout)

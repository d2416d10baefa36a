"""Device, precision and reproducibility of a run."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from typing import Any

import torch

from training.arguments import DEVICE
from training.errors import TrainingError


def open_device(name: str) -> torch.device:
    """Returns the device that `name` stands for: auto, cpu, cuda or cuda:N.

    Raises:
        TrainingError: This machine does not have the device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not DEVICE.fullmatch(name):
        raise TrainingError(f"The device {name!r} is not there: name auto, cpu, cuda or cuda:N.")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built with CUDA
        raise TrainingError(f"The device {name!r} is not there: {str(error).splitlines()[0]}") from None


def use_bf16(precision: str, device: torch.device) -> bool:
    """Returns True for bfloat16. `auto` uses it if the device has instructions for it (1.8 times as fast)."""
    if precision != "auto":
        return precision == "bf16"
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    known: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # not in every release
    return bool(known.get("avx512_bf16") or known.get("amx_bf16"))


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """Gives the same numbers from run to run on one machine. Kernels that cannot raise an error.

    New memory is not filled, which took 3 % of a step, because no kernel in use reads memory that it has not
    written.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS requires it
    algorithms = torch.are_deterministic_algorithms_enabled()
    memory: Any = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(algorithms)
        memory.fill_uninitialized_memory = filled


@contextlib.contextmanager
def enough_memory() -> Iterator[None]:
    """Turns an out-of-memory error into a TrainingError that says what helps."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise TrainingError(
            f"The device has too little memory ({str(error).splitlines()[0]}). "
            "Give --chunk, or lower --batch or the recipe's max_length, and begin in another --out."
        ) from None


def give_back() -> None:
    """Returns freed memory to the system after a training, because glibc keeps it.

    Four steps of the default model left 1.4 GB.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)

"""Choose the device and the precision of a run, and make a run reproducible."""

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
    """Returns a device by name: auto, cpu, cuda or cuda:N.

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
    """Returns True for bfloat16. `auto` chooses bfloat16 if the device supports it (1.8 times as fast)."""
    if precision != "auto":
        return precision == "bf16"
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    known: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # not in every release
    return bool(known.get("avx512_bf16") or known.get("amx_bf16"))


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """Makes torch deterministic inside the `with` block: a run gives the same numbers on one machine.

    Operations without a deterministic implementation raise an error. torch's option to fill new memory is
    off, because it took 3 % of a step, and no operation in use reads memory before writing it.
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
    """Converts an out-of-memory error to a TrainingError that says what to change."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise TrainingError(
            f"The device has too little memory ({str(error).splitlines()[0]}). "
            "Give --chunk, or lower --batch or the recipe's max_length, and begin in another --out."
        ) from None


def give_back() -> None:
    """Returns freed memory to the operating system after a training. glibc would keep it otherwise.

    After four steps of the default model, 1.4 GB were free but not returned.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)

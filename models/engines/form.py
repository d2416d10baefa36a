"""Defines the interface of an engine, the precision and runtime (`Form`), and the device (`Place`).

The form is stored with vectors, because another precision or runtime changes their numbers slightly.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Literal, NamedTuple, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

Precision: TypeAlias = Literal["fp32", "bf16", "fp16", "int8"]
Runtime: TypeAlias = Literal["onnxruntime", "onnxruntime-cuda", "openvino"]


class Form(NamedTuple):
    precision: Precision
    runtime: Runtime

    def __str__(self) -> str:
        return f"{self.precision}/{self.runtime}"


def read_form(text: str) -> Form:
    """Parses a form such as `fp32/onnxruntime`, and ignores text after a space.

    The form may be one that this machine cannot compute.
    """
    precision, _, runtime = text.partition(" ")[0].partition("/")
    return Form(cast("Precision", precision), cast("Runtime", runtime))


FP32 = Form("fp32", "onnxruntime")  # Versions are verified in this form, and every machine supports it.


Device: TypeAlias = Literal["cpu", "cuda"]


class Place(NamedTuple):
    device: Device
    number: int = 0  # GPU number
    memory_mb: int = 0  # Limit of GPU memory per version in MiB; 0 means no limit.

    def __str__(self) -> str:
        return f"cuda:{self.number}" if self.device == "cuda" else self.device


CPU = Place("cpu")


def parse_place(name: str, memory_mb: int = 0) -> Place:
    """Parses `cpu`, `cuda` (the first GPU) or `cuda:N`. Raises ValueError for anything else."""
    found = re.fullmatch(r"cpu|cuda(?::(\d{1,3}))?", name)
    if found is None:
        raise ValueError("name cpu, cuda or cuda:N")
    return CPU if name == "cpu" else Place("cuda", int(found[1] or 0), memory_mb)


def default_device() -> str:
    """Returns the default device: `cuda` if the extra `gpu` is installed, otherwise `cpu`.

    A GPU that cannot be used is then reported, instead of being ignored.
    """
    try:
        version("onnxruntime-gpu")
    except PackageNotFoundError:
        return "cpu"
    return "cuda"


class Engine(Protocol):
    """Computes one opened graph. `run` is thread-safe."""

    @property
    def form(self) -> Form: ...

    @property
    def providers(self) -> list[str]:
        """Names of the devices that compute, as the runtime reports them, in order of preference."""

    @property
    def inputs(self) -> Collection[str]:
        """Names of the graph's inputs. `run` needs a value for each of them."""

    def run(self, feed: Mapping[str, NDArray[np.int64]], output: str) -> NDArray[np.float32]:
        """Computes the graph's `output`, shape (n, dimension), from inputs of shape (n, length)."""

    def close(self) -> None:
        """Frees the memory. The engine cannot be used afterwards."""

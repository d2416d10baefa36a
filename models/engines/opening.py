"""Open a published graph in a form."""

from __future__ import annotations

from pathlib import Path

from .engine import Engine
from .form import Form
from .nvidia import cuda_provider
from .onnx import OnnxEngine
from .place import Place


def open_engine(file: Path, form: Form, threads: int, place: Place, longest: int) -> Engine:
    """`file` is the ONNX file of a version that was checked.

    threads: how many may compute one call together, on the CPU.
    longest: tokens of the longest row that the model takes.
    """
    if place.device == "cuda":
        from .cuda import CudaEngine  # noqa: PLC0415  it needs onnx: a third of a second to import

        return CudaEngine(file, form.precision, cuda_provider(place), longest)
    return OnnxEngine(file, threads)

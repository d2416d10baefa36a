"""Open a published graph in a form."""

from __future__ import annotations

from pathlib import Path

from .engine import Engine
from .form import Form
from .onnx import OnnxEngine


def open_engine(file: Path, form: Form, threads: int) -> Engine:
    """`file` is the ONNX file of a version that was checked.

    threads: how many may compute one call together.
    """
    return OnnxEngine(file, threads)

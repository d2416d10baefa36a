"""ONNX Runtime on the processor: fp32, in which every version is proved, and int8."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from .form import Form


class OnnxEngine:
    """With threads=1 each call computes on the thread that makes it."""

    def __init__(self, file: Path, form: Form, threads: int) -> None:
        self.form = form
        self._session = _open_session(file, threads)
        self.inputs = [given.name for given in self._session.get_inputs()]
        self.providers: list[str] = self._session.get_providers()

    def run(self, feed: Mapping[str, NDArray[np.int64]], output: str) -> NDArray[np.float32]:
        found: NDArray[np.float32] = self._session.run([output], feed)[0]
        return found

    def close(self) -> None:
        del self._session


def _open_session(file: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.enable_mem_pattern = False  # it keeps a plan for every shape it ever saw, and was not faster
    options.log_severity_level = 3  # errors; its warnings are about fusions that it could not do
    # Spinning threads take a core from their neighbours while they wait, and were not faster.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

"""Computes graphs with OpenVINO on the CPU, for bf16. This module needs the extra `openvino`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import openvino
from numpy.typing import NDArray

from models.engines.form import Form
from models.graph.file import RESULTS

# OpenVINO keeps a kernel for each shape, 5,000 by default. 1,200 shapes of all-MiniLM-L6-v2 took 974 MiB, and
# 374 MiB with this limit. A batch then cost 4 % more on average, because some kernels are compiled again.
_KEPT_KERNELS = 200


class OpenvinoEngine:
    """Computes a graph with OpenVINO, in one stream per caller. Each stream uses `threads` threads."""

    def __init__(self, file: Path, form: Form, threads: int, callers: int) -> None:
        self.form = form
        self.providers = ["OpenVINO CPU"]
        self._compiled = _compile(file, form, threads, callers)
        self.inputs = [given.any_name for given in self._compiled.inputs]
        self._idle: list[openvino.InferRequest] = []  # Safe without a lock: append and pop are atomic.

    def run(self, feed: Mapping[str, NDArray[np.int64]], output: str) -> NDArray[np.float32]:
        try:
            request = self._idle.pop()
        except IndexError:
            request = self._compiled.create_infer_request()
        request.infer(dict(feed), share_inputs=True)
        vectors: NDArray[np.float32] = request.get_tensor(output).data.copy()
        self._idle.append(request)  # A failed request does not reach this line, and is dropped.
        return vectors

    def close(self) -> None:
        del self._compiled
        self._idle.clear()


def computes_bf16() -> bool:
    """Returns True if OpenVINO can compute in bf16 on this processor, possibly by emulation."""
    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def _compile(file: Path, form: Form, threads: int, callers: int) -> openvino.CompiledModel:
    core = openvino.Core()
    whole = core.read_model(str(file))
    # Without token vectors, which would be written for every batch and never read.
    pooled = [output.node for output in whole.outputs if output.get_names() & RESULTS]
    model = openvino.Model(pooled, whole.get_parameters(), "simile")
    options = {
        "INFERENCE_PRECISION_HINT": form.precision,
        "PERFORMANCE_HINT": "LATENCY",
        # With one stream, callers would wait for its lock.
        "NUM_STREAMS": callers,
        "INFERENCE_NUM_THREADS": threads * callers,
        "ENABLE_CPU_PINNING": False,  # Other programs share the processors.
        "ENABLE_HYPER_THREADING": False,
        "CPU_RUNTIME_CACHE_CAPACITY": _KEPT_KERNELS,
    }
    return core.compile_model(model, "CPU", options)

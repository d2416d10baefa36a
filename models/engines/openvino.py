"""OpenVINO on the processor: the same ONNX file, computed in bf16. Needs the extra `openvino`.

Imported only when a version is opened in such a form: the import alone takes a third of a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import openvino
from numpy.typing import NDArray

from models.engines.form import Form

_OUTPUTS = frozenset({"sentence_embedding", "pooled_embedding"})
_HINTS = {"bf16": "bf16"}
# Kernels are compiled for each shape and kept, 5,000 of them unless told: 1,200 shapes of all-MiniLM-L6-v2
# took 974 MiB, and 374 with this; a batch then cost 4 % more on average, since some are compiled again.
_KEPT_KERNELS = 200


class OpenvinoEngine:
    """A compiled model with a stream for each of `callers`, which computes on so many `threads`."""

    def __init__(self, file: Path, form: Form, threads: int, callers: int) -> None:
        self.form = form
        self.providers = ["OpenVINO CPU"]
        self._compiled = _compile(file, form, threads, callers)
        self.inputs = [given.any_name for given in self._compiled.inputs]
        self._idle: list[openvino.InferRequest] = []  # append and pop are atomic

    def run(self, feed: Mapping[str, NDArray[np.int64]], output: str) -> NDArray[np.float32]:
        try:
            request = self._idle.pop()
        except IndexError:
            request = self._compiled.create_infer_request()
        request.infer(dict(feed), share_inputs=True)
        vectors: NDArray[np.float32] = request.get_tensor(output).data.copy()
        self._idle.append(request)  # one that failed is dropped
        return vectors

    def close(self) -> None:
        del self._compiled
        self._idle.clear()


def computes_bf16() -> bool:
    """Return True if OpenVINO would compute in bf16 here, be it by imitating what the processor lacks."""
    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def _compile(file: Path, form: Form, threads: int, callers: int) -> openvino.CompiledModel:
    core = openvino.Core()
    whole = core.read_model(str(file))
    # The token vectors would be written for every batch, and nobody reads them.
    wanted = [output.node for output in whole.outputs if output.get_names() & _OUTPUTS]
    model = openvino.Model(wanted, whole.get_parameters(), "simile")
    options = {
        "INFERENCE_PRECISION_HINT": _HINTS[form.precision],
        "PERFORMANCE_HINT": "LATENCY",
        # With one stream, callers would wait for each other at its lock.
        "NUM_STREAMS": callers,
        "INFERENCE_NUM_THREADS": threads * callers,
        "ENABLE_CPU_PINNING": False,  # the processors are not ours alone
        "ENABLE_HYPER_THREADING": False,
        "CPU_RUNTIME_CACHE_CAPACITY": _KEPT_KERNELS,
    }
    return core.compile_model(model, "CPU", options)

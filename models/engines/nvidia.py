"""Opens ONNX Runtime sessions on an NVIDIA GPU, and splits batches that do not fit into its memory.

Start at `open_session` and `Halving`. Without a usable CUDA provider, ONNX Runtime falls back to the CPU.
This module raises an error instead. ONNX Runtime has no exception class for exhausted memory, so
`is_exhaustion` matches messages. The messages come from the memory pool (`Fail` at its limit,
`RuntimeException` on a full device), cuBLAS, cuDNN and CUDA.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import logging
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from models.engines.form import Place
from models.errors import DeviceMemory, DeviceUnavailable

CUDA = "CUDAExecutionProvider"


class Provider(NamedTuple):
    name: str
    options: dict[str, str]
    device: str  # Device of inputs and outputs.
    number: int = 0


def cuda_provider(place: Place) -> Provider:
    options = {
        "device_id": str(place.number),
        # The pool doubles when it grows. With `kSameAsRequested`, most batches of a new shape allocate memory
        # of the device, which stops it.
        "arena_extend_strategy": "kNextPowerOfTwo",
        "use_tf32": "0",  # TF32 rounds factors to 10 bits, even in fp32 graphs.
    }
    if place.memory_mb:
        options["gpu_mem_limit"] = str(place.memory_mb << 20)
    return Provider(CUDA, options, "cuda", place.number)


def open_session(graph: bytes, provider: Provider) -> onnxruntime.InferenceSession:
    """Opens a serialized ONNX model.

    Raises:
        DeviceUnavailable: The model cannot run on `provider`.
    """
    if provider.name not in onnxruntime.get_available_providers():
        raise DeviceUnavailable(
            f"SIMILE_DEVICE requests a GPU, but this onnxruntime ({onnxruntime.__version__}) has no CUDA. "
            "In Simile's folder, `make serve SIMILE_DEVICE=cuda` installs one that has it, in .venv-gpu. "
            "Or set SIMILE_DEVICE=cpu."
        )
    if provider.name == CUDA:
        _preload()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # Only shapes are computed on the CPU.
    options.enable_mem_pattern = False  # It would keep a plan for each shape.
    options.log_severity_level = 4
    providers: list[Any] = [(provider.name, provider.options)]
    try:
        # With fallback, a session would continue on the CPU and only print a message.
        session = onnxruntime.InferenceSession(graph, options, providers=providers, enable_fallback=0)
    except Exception as error:
        if provider.name != CUDA:
            raise
        if is_exhaustion(error):
            raise DeviceUnavailable(
                f"The model does not fit into the memory of GPU {provider.number} ({error}). Raise "
                "SIMILE_GPU_MEM_MB, or stop other programs on the GPU."
            ) from error
        raise DeviceUnavailable(_no_gpu(provider.number, str(error))) from error
    if session.get_providers()[0] != provider.name:  # If a library did not load, the CPU is used silently.
        raise DeviceUnavailable(_no_gpu(provider.number, _preload()))
    return session


def require_cuda(place: Place) -> str:
    """Tests the device with a tiny graph.

    Returns:
        A description of the runtime and its providers.

    Raises:
        DeviceUnavailable: The device cannot be used.
    """
    from onnx import TensorProto, helper  # noqa: PLC0415  a third of a second, not for every start

    from models.graph.nodes import IR_VERSION, OPSET  # noqa: PLC0415  as above

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "smallest", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    session = open_session(model.SerializeToString(), cuda_provider(place))
    return f"ONNX Runtime {onnxruntime.__version__}, {', '.join(session.get_providers())}"


@cache
def _preload() -> str:
    """Loads the CUDA libraries that pip installed, once. Returns a reason to show if CUDA does not work."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):  # preload_dlls prints, and stdout may be a JSON log.
        onnxruntime.preload_dlls()
    return " ".join(printed.getvalue().split()) or "the library of its CUDA provider does not load"


def _no_gpu(number: int, why: str) -> str:
    return (
        f"SIMILE_DEVICE requests GPU {number}, but ONNX Runtime cannot use it: {_no_driver() or why}. Check "
        "that `nvidia-smi` lists it, that its driver supports CUDA 13, that a container has access to it "
        "(--gpus all), and that the extra gpu is fully installed. Or set SIMILE_DEVICE=cpu."
    )


def _no_driver() -> str:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no NVIDIA driver is installed ({error})"
    return ""


log = logging.getLogger(__name__)

Vectors = NDArray[np.float32]
_WORDS = (
    "failed to allocate memory",
    "smaller than requested bytes",
    "out of memory",
    "memoryallocation",
    "status_alloc_failed",
)


def is_exhaustion(error: Exception) -> bool:
    """Returns True if `error` reports exhausted memory."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or "bad_alloc" in text or any(part in text for part in _WORDS)


class Halving:
    """Computes a batch. Halves a batch that does not fit into the memory, down to single rows."""

    def __init__(self) -> None:
        self._logged = False

    def run(self, compute: Callable[[slice], Vectors], rows: int, length: int, start: int = 0) -> Vectors:
        """Computes `rows` rows of `length` tokens from `start`; returns vectors (rows, dimension).

        Args:
            compute: Returns the vectors of a slice of rows.

        Raises:
            DeviceMemory: A single row does not fit into the memory.
        """
        failure = None
        try:
            return compute(slice(start, start + rows))
        except Exception as error:
            if not is_exhaustion(error):
                raise
            failure = error
        # Retry outside of the handler, because the exception's frames keep the batch's memory.
        if rows == 1:
            raise DeviceMemory(length) from failure
        del failure
        if not self._logged:
            self._logged = True
            log.warning(
                "A batch of %d x %d tokens does not fit into the device's memory. Such batches are computed "
                "in halves, which is slower. Raise SIMILE_GPU_MEM_MB, or stop other programs on the device.",
                rows,
                length,
            )
        half = rows // 2
        first = self.run(compute, half, length, start)
        return np.concatenate([first, self.run(compute, rows - half, length, start + half)])

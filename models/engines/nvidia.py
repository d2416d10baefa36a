"""Opens ONNX Runtime sessions on an NVIDIA GPU. Start at `open_session`.

Without a usable CUDA provider, ONNX Runtime falls back to the CPU. Here that is an error.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
from functools import cache
from typing import Any, NamedTuple

import onnxruntime

from models.engines.exhaustion import is_exhaustion
from models.engines.place import Place
from models.errors import DeviceUnavailable

CUDA = "CUDAExecutionProvider"


class Provider(NamedTuple):
    name: str
    options: dict[str, str]
    device: str  # Device of inputs and outputs.
    number: int = 0


def cuda_provider(place: Place) -> Provider:
    options = {
        "device_id": str(place.number),
        "arena_extend_strategy": "kSameAsRequested",  # The default doubles the arena each time.
        "use_tf32": "0",  # TF32 rounds factors to 10 bits, even in fp32 graphs.
    }
    if place.memory_mb:
        options["gpu_mem_limit"] = str(place.memory_mb << 20)
    return Provider(CUDA, options, "cuda", place.number)


def open_session(graph: bytes, provider: Provider) -> onnxruntime.InferenceSession:
    """Opens a serialized ONNX model.

    Raises:
        DeviceUnavailable: It cannot run on `provider`.
    """
    if provider.name not in onnxruntime.get_available_providers():
        raise DeviceUnavailable(
            f"SIMILE_DEVICE requests a GPU, but this onnxruntime ({onnxruntime.__version__}) has no CUDA. "
            "In the project's folder and a new virtual environment: pip install -c constraints.txt '.[gpu]'. "
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
    """Loads the CUDA libraries that pip installed, once. Returns the messages about failures."""
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

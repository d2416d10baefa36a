"""A session of ONNX Runtime on an NVIDIA GPU, or a word on what is missing for one.

Where its CUDA provider cannot be had, ONNX Runtime computes on the CPU without more ado. Here it is an error.
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
    """The device of a session, in ONNX Runtime's words."""

    name: str
    options: dict[str, str]
    device: str  # where its inputs and outputs lie
    number: int = 0


def cuda_provider(place: Place) -> Provider:
    options = {
        "device_id": str(place.number),
        "arena_extend_strategy": "kSameAsRequested",  # the other doubles what it takes each time
        "use_tf32": "0",  # it rounds what it multiplies to 10 bits, also where fp32 is asked for
    }
    if place.memory_mb:
        options["gpu_mem_limit"] = str(place.memory_mb << 20)
    return Provider(CUDA, options, "cuda", place.number)


def open_session(graph: bytes, provider: Provider) -> onnxruntime.InferenceSession:
    """`graph`: an ONNX model.

    Raises:
        DeviceUnavailable: it would run on something else than `provider`.

    """
    if provider.name not in onnxruntime.get_available_providers():
        raise DeviceUnavailable(
            f"SIMILE_DEVICE asks for a GPU, and this onnxruntime ({onnxruntime.__version__}) has no CUDA. "
            "In the project's folder and a new virtual environment: pip install -c constraints.txt '.[gpu]'. "
            "Or set SIMILE_DEVICE=cpu."
        )
    if provider.name == CUDA:
        _preload()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # for the shapes, which stay on the CPU
    options.enable_mem_pattern = False  # a plan for each shape would be kept
    options.log_severity_level = 4
    providers: list[Any] = [(provider.name, provider.options)]
    try:
        # Without this it would go on with the CPU, where a GPU fails, and say so on the terminal only.
        session = onnxruntime.InferenceSession(graph, options, providers=providers, enable_fallback=0)
    except Exception as error:
        if provider.name != CUDA:
            raise
        if is_exhaustion(error):
            raise DeviceUnavailable(
                f"The model does not fit into the memory of GPU {provider.number} ({error}). Raise "
                "SIMILE_GPU_MEM_MB, or end what else uses the GPU."
            ) from error
        raise DeviceUnavailable(_no_gpu(provider.number, str(error))) from error
    if session.get_providers()[0] != provider.name:  # a library did not load: the CPU is taken without a word
        raise DeviceUnavailable(_no_gpu(provider.number, _preload()))
    return session


def require_cuda(place: Place) -> str:
    """Try the device with the smallest of graphs; what runs there, in words. Raise DeviceUnavailable."""
    from onnx import TensorProto, helper  # noqa: PLC0415  a third of a second, not for every start

    from models.graph.nodes import IR_VERSION, OPSET  # noqa: PLC0415  as above

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "smallest", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    session = open_session(model.SerializeToString(), cuda_provider(place))
    return f"ONNX Runtime {onnxruntime.__version__}, {', '.join(session.get_providers())}"


@cache
def _preload() -> str:
    """Load the CUDA libraries that pip installed, once; what was said about those that cannot be."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):  # the log may be JSON, and it prints
        onnxruntime.preload_dlls()
    return " ".join(said.getvalue().split()) or "the library of its CUDA provider does not load"


def _no_gpu(number: int, why: str) -> str:
    return (
        f"SIMILE_DEVICE asks for GPU {number}, and ONNX Runtime cannot use it: {_no_driver() or why}. See "
        "that `nvidia-smi` lists it, that its driver knows CUDA 13, that a container is given it "
        "(--gpus all), and that the extra gpu was installed whole; or set SIMILE_DEVICE=cpu."
    )


def _no_driver() -> str:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"there is no NVIDIA driver ({error})"
    return ""

"""ONNX Runtime on an NVIDIA GPU.

    published fp32 graph ─▶ fused ─▶ fp16, or left in fp32 ─▶ session     made when it is opened, in memory

    batch ─▶ a rounded shape ─▶ uploaded once ─▶ session ─▶ (rows, dimension) ─▶ float32
                  ▲                                │   └─ a row that is not finite: again, in fp32
                  └──────── in halves ◀────────────┘ out of memory

Only the pooled vectors leave the device. Not here: batching, and whether the vectors are right (the golden
texts are asked after opening, on the real device).
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import logging
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from models.errors import DeviceUnavailable
from models.nodes import IR_VERSION, OPSET

from .exhaustion import Halving, is_exhaustion
from .form import Form, Precision
from .place import Place
from .shapes import MASK, padded

log = logging.getLogger(__name__)

CUDA = "CUDAExecutionProvider"
RECOMPUTED = (
    "texts so far gave no finite vector in fp16 and were computed again in fp32. Where they are many, "
    "SIMILE_PRECISION=fp32 is faster."
)
Feed = Mapping[str, NDArray[np.int64]]
Vectors = NDArray[np.float32]


class Provider(NamedTuple):
    """What a session runs on, in ONNX Runtime's words."""

    name: str
    options: dict[str, str]
    device: str  # where its inputs and outputs lie
    index: int = 0


def cuda_provider(place: Place) -> Provider:
    options = {
        "device_id": str(place.index),
        "arena_extend_strategy": "kSameAsRequested",  # the other doubles what it takes each time
        "use_tf32": "0",  # it rounds what it multiplies to 10 bits, also where fp32 is asked for
    }
    if place.memory_mb:
        options["gpu_mem_limit"] = str(place.memory_mb << 20)
    return Provider(CUDA, options, "cuda", place.index)


class CudaEngine:
    """A version in `precision`, fp32 or fp16. Each call computes on the GPU while its thread waits."""

    def __init__(self, file: Path, precision: Precision, provider: Provider, longest: int) -> None:
        """longest: tokens of the longest row that the model takes.

        Raises:
            DeviceUnavailable: the provider is not there, or its device.
            Unsupported: the graph cannot be computed in fp16.

        """
        self.form = Form(precision, "onnxruntime-cuda")
        self._file = file
        self._provider = provider
        self._longest = longest
        self._session = open_session(_graph(file, precision), provider)
        self._exact: onnxruntime.InferenceSession | None = None  # in fp32, once a row needs it
        self._opening = threading.Lock()
        self._halving = Halving()
        self._recomputed = 0
        self.inputs = [given.name for given in self._session.get_inputs()]
        self.providers: list[str] = self._session.get_providers()

    def run(self, feed: Feed, output: str) -> Vectors:
        """Raise DeviceMemory when not even a single row fits."""
        vectors = self._run(self._session, feed, output)
        if self.form.precision != "fp32":
            bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
            if len(bad):
                vectors[bad] = self._in_fp32({name: array[bad] for name, array in feed.items()}, output)
        return vectors

    def close(self) -> None:
        with self._opening:
            self._exact = None
        del self._session

    def _run(self, session: onnxruntime.InferenceSession, feed: Feed, output: str) -> Vectors:
        def compute(part: slice) -> Vectors:
            return self._bound(session, {name: array[part] for name, array in feed.items()}, output)

        return self._halving.run(compute, *feed[MASK].shape)

    def _bound(self, session: onnxruntime.InferenceSession, feed: Feed, output: str) -> Vectors:
        _, _, device, index = self._provider
        binding = session.io_binding()
        for name, array in padded(feed, self._longest).items():
            value = onnxruntime.OrtValue.ortvalue_from_numpy(array, device, index)
            binding.bind_ortvalue_input(name, value)
        binding.bind_output(output, device, index)
        session.run_with_iobinding(binding)
        vectors: Vectors = binding.copy_outputs_to_cpu()[0][: len(feed[MASK])]
        return vectors

    def _in_fp32(self, feed: Feed, output: str) -> Vectors:
        """Rows that overflowed. One that cannot be had in fp32 either stays not finite, and fails alone."""
        before, self._recomputed = self._recomputed, self._recomputed + len(feed[MASK])
        if len(str(before)) < len(str(self._recomputed)) or not before:  # the first, the 10th, the 100th, …
            log.warning("%d %s", self._recomputed, RECOMPUTED)
        try:
            with self._opening:
                self._exact = self._exact or open_session(str(self._file), self._provider)
                session = self._exact
            return self._run(session, feed, output)
        except Exception:
            log.exception("Rows that overflowed in fp16 could not be computed in fp32")
            width = self._session.get_outputs()[0].shape[-1]
            return np.full((len(feed[MASK]), width), np.nan, np.float32)


def open_session(graph: str | bytes, provider: Provider) -> onnxruntime.InferenceSession:
    """`graph`: a file's name, or its content.

    Raises:
        DeviceUnavailable: it would run on something else than `provider`.

    """
    if provider.name not in onnxruntime.get_available_providers():
        raise DeviceUnavailable(
            f"SIMILE_DEVICE asks for a GPU, and this onnxruntime ({onnxruntime.__version__}) has no CUDA. "
            "In a new virtual environment: pip install 'simile[gpu]'. Or set SIMILE_DEVICE=cpu."
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
                f"The model does not fit into the memory of GPU {provider.index} ({error}). Raise "
                "SIMILE_GPU_MEM_MB, or end what else uses the GPU."
            ) from error
        raise DeviceUnavailable(_no_gpu(provider.index, str(error))) from error
    if session.get_providers()[0] != provider.name:  # a library did not load: the CPU is taken without a word
        raise DeviceUnavailable(_no_gpu(provider.index, _preload()))
    return session


def require_cuda(place: Place) -> str:
    """Try the device with the smallest of graphs; what runs there, in words. Raise DeviceUnavailable."""
    from onnx import TensorProto, helper  # noqa: PLC0415  as in _graph

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "smallest", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    session = open_session(model.SerializeToString(), cuda_provider(place))
    return f"ONNX Runtime {onnxruntime.__version__}, {', '.join(session.get_providers())}"


def _graph(file: Path, precision: Precision) -> bytes:
    """The published graph as it is computed on a GPU."""
    import onnx  # noqa: PLC0415  a third of a second that a service without a GPU need not pay

    from .fusing import fuse  # noqa: PLC0415
    from .half import to_half  # noqa: PLC0415

    model = fuse(onnx.load(file))
    if precision == "fp16":
        to_half(model)
    graph: bytes = model.SerializeToString()
    return graph


@cache
def _preload() -> str:
    """Load the CUDA libraries that pip installed, once; what was said about those that cannot be."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):  # the log may be JSON, and it prints
        onnxruntime.preload_dlls()
    return " ".join(said.getvalue().split()) or "the library of its CUDA provider does not load"


def _no_gpu(index: int, why: str) -> str:
    return (
        f"SIMILE_DEVICE asks for GPU {index}, and ONNX Runtime cannot use it: {_no_driver() or why}. See "
        "that `nvidia-smi` lists it, that its driver knows CUDA 13, that a container is given it "
        "(--gpus all), and that pip install 'simile[gpu]' was whole; or set SIMILE_DEVICE=cpu."
    )


def _no_driver() -> str:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"there is no NVIDIA driver ({error})"
    return ""

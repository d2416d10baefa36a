"""Opens a published graph in a precision that this machine supports. Start at `open_engine`."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from models.cpus import CPUINFO
from models.engines.engine import Engine
from models.engines.form import FP32, Form
from models.engines.nvidia import cuda_provider
from models.engines.onnx import OnnxEngine
from models.engines.place import CPU, Place
from models.errors import FormUnavailable

BF16 = Form("bf16", "openvino")
CUDA_FP32, CUDA_FP16 = Form("fp32", "onnxruntime-cuda"), Form("fp16", "onnxruntime-cuda")
INT8 = Form("int8", "onnxruntime")
INT8_NAME = "int8.graph"  # Next to model.onnx. Not *.onnx, because some tools open any such file.
# x86 (AVX-512, AMX, AVX-NE-CONVERT) and Arm.
_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"})
# These add four 8-bit products in 32 bits. Without them, x86 adds pairs in 16 bits, which overflow.
_INT8_FLAGS = frozenset({"avx512_vnni", "avx_vnni", "asimddp"})


def form_for(precision: str, place: Place = CPU) -> Form:
    """Returns the form of a precision at a place; for `auto`, the fastest form that is nearly exact.

    Raises:
        FormUnavailable: This machine or Simile does not support it.
    """
    if place.device == "cuda":
        if precision not in {"fp32", "fp16", "auto"}:
            raise FormUnavailable("a GPU computes in fp32 or fp16; name one of them, or auto, which is fp16.")
        return CUDA_FP32 if precision == "fp32" else CUDA_FP16
    if precision == "auto":
        return FP32 if _why_no_bf16() else BF16
    for form in (FP32, BF16, INT8):
        if form.precision == precision:
            require(form)
            return form
    raise FormUnavailable(f"{precision} is not available on processors; fp32, bf16, int8 and auto are.")


def require(form: Form, place: Place = CPU) -> None:
    """Raises FormUnavailable if this machine cannot compute `form` at `place`.

    This does not test GPUs; nvidia.py does when it uses them.
    """
    if form in {CUDA_FP32, CUDA_FP16}:
        if place.device != "cuda":
            raise FormUnavailable(f"{form} needs a GPU, but SIMILE_DEVICE is {place}.")
        return
    if form not in {FP32, BF16, INT8}:
        raise FormUnavailable(f"{form} is not supported.")
    if form == INT8 and not has_int8():
        raise FormUnavailable(
            "This processor has no VNNI instructions, without which int8 is not exact; serve fp32."
        )
    if form == BF16 and (why := _why_no_bf16()):
        raise FormUnavailable(why)


def open_engine(
    file: Path, form: Form, threads: int, callers: int = 1, place: Place = CPU, longest: int = 512
) -> Engine:
    """Opens the ONNX file of a checked version.

    Args:
        threads: Threads that share one call.
        callers: Concurrent calls that do not wait for each other.

    Raises:
        FormUnavailable: This machine cannot compute the form, or the version has no int8 graph.
        DeviceUnavailable: The GPU is missing or too small.
    """
    require(form, place)
    if form == FP32:
        return OnnxEngine(file, form, threads)
    if form == INT8:
        quantized = file.with_name(INT8_NAME)
        if not quantized.is_file():
            raise FormUnavailable(
                "This version has no int8 graph: it was published by an old release, or from ONNX only, or "
                "lost too much accuracy. Publish it again with `python -m models import`, or serve fp32."
            )
        return OnnxEngine(quantized, form, threads)
    if form.runtime == "onnxruntime-cuda":
        from models.engines.cuda import CudaEngine  # noqa: PLC0415  it needs onnx: a third of a second to import

        return CudaEngine(file, form.precision, cuda_provider(place), longest)
    from models.engines.openvino import OpenvinoEngine  # noqa: PLC0415  an extra, and slow to import

    return OpenvinoEngine(file, form, threads, callers)


def has_bf16(cpuinfo: Path = CPUINFO) -> bool:
    """Returns True if the processor has bf16 instructions, or if this is unknown.

    OpenVINO claims bf16 for every processor with AVX-512, but its emulation is slower than fp32.
    """
    return _has_one(_BF16_FLAGS, cpuinfo)


def has_int8(cpuinfo: Path = CPUINFO) -> bool:
    """Returns True if the processor adds 8-bit products exactly, or if this is unknown."""
    return _has_one(_INT8_FLAGS, cpuinfo)


def _has_one(sufficient: frozenset[str], cpuinfo: Path) -> bool:
    try:
        lines = cpuinfo.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return True
    flags = [line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))]
    return not flags or not sufficient.isdisjoint(flags[0])


@cache
def _why_no_bf16() -> str | None:
    """Returns why this machine cannot compute bf16, or None if it can."""
    if find_spec("openvino") is None:
        return (
            "bf16 needs OpenVINO, which is not installed: in the project's folder, "
            "pip install -c constraints.txt '.[openvino]', or `make serve SIMILE_PRECISION=bf16`."
        )
    if not has_bf16():
        return "This processor has no bf16 instructions; serve fp32, which is the default."
    from models.engines.openvino import computes_bf16  # noqa: PLC0415  as above

    return None if computes_bf16() else "OpenVINO cannot compute bf16 on this processor; serve fp32."

"""Opens a published graph in a precision that this machine supports. Start at `open_engine` and `ENGINES`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from models.cpus import CPUINFO, facts
from models.engines import malloc
from models.engines.form import CPU, FP32, Device, Engine, Form, Place
from models.engines.nvidia import cuda_provider
from models.engines.onnx import OnnxEngine
from models.errors import FormUnavailable, install_command

BF16 = Form("bf16", "openvino")
CUDA_FP32, CUDA_FP16 = Form("fp32", "onnxruntime-cuda"), Form("fp16", "onnxruntime-cuda")
INT8 = Form("int8", "onnxruntime")
INT8_NAME = "int8.graph"  # Next to model.onnx. Not *.onnx, because some tools open any such file.
# Concurrent calls of a session share its arena. In half of all processes, int8 then takes 1.4 times as long,
# and fp32 1.1 times, probably because a call gets memory that is in another processor's cache. Without that
# arena, threads use glibc's arenas. But fp32 and longer texts need larger buffers, which glibc returns to the
# system after each call, so they always take longer, except fp32 after `keep_buffers`.
MAX_WITHOUT_ARENA = 512  # tokens
# x86 (AVX-512, AMX, AVX-NE-CONVERT) and Arm.
_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"})
# These add four 8-bit products in 32 bits. Without them, x86 adds pairs in 16 bits, which overflow.
_INT8_FLAGS = frozenset({"avx512_vnni", "avx_vnni", "asimddp"})


def form_for(precision: str, place: Place = CPU) -> Form:
    """Returns the form for a precision on a device.

    For `auto`, this is the fastest form whose vectors are nearly those of fp32.

    Raises:
        FormUnavailable: This machine or Simile does not support the form.
    """
    if precision == "auto":
        return CUDA_FP16 if place.device == "cuda" else FP32 if _why_no_bf16() else BF16
    for form, engine in ENGINES.items():
        if (form.precision, engine.device) == (precision, place.device):
            require(form, place)
            return form
    if place.device == "cuda":
        raise FormUnavailable("a GPU computes in fp32 or fp16; name one of them, or auto, which is fp16.")
    raise FormUnavailable(f"{precision} is not available on processors; fp32, bf16, int8 and auto are.")


def require(form: Form, place: Place = CPU) -> None:
    """Raises FormUnavailable if this machine cannot compute `form` at `place`.

    GPUs are not tested here. nvidia.py tests a GPU when it opens a session.
    """
    engine = ENGINES.get(form)
    if engine is None:
        raise FormUnavailable(f"{form} is not supported.")
    if engine.device == "cuda" and place.device != "cuda":
        raise FormUnavailable(f"{form} needs a GPU, but SIMILE_DEVICE is {place}.")
    if (why := engine.why_not()) is not None:
        raise FormUnavailable(why)


def open_engine(
    file: Path, form: Form, threads: int, callers: int = 1, place: Place = CPU, longest: int = 512
) -> Engine:
    """Opens a version's graph in one form.

    Args:
        file: The ONNX file of a version that was checked before.
        form: The precision and the runtime.
        threads: Threads that compute one call together.
        callers: Number of concurrent calls that run without waiting for each other.
        place: The CPU or a GPU. Forms for GPUs need a GPU.
        longest: Tokens of the longest row that the model supports.

    Raises:
        FormUnavailable: This machine cannot compute the form.
        DeviceUnavailable: The GPU does not exist, or is too small.
        Unsupported: The graph cannot be computed on a GPU in this precision.
    """
    require(form, place)
    return ENGINES[form].open(file, form, threads, callers, place, longest)


# Opens a file, with the other arguments of `open_engine`.
Open = Callable[[Path, Form, int, int, Place, int], Engine]


def _use_arena(callers: int, longest: int) -> bool:
    return callers == 1 or longest > MAX_WITHOUT_ARENA


def _open_fp32(file: Path, form: Form, threads: int, callers: int, _: Place, longest: int) -> Engine:
    arena = _use_arena(callers, longest) or not malloc.buffers_stay
    return OnnxEngine(file, form, threads, arena=arena)


def _open_int8(file: Path, form: Form, threads: int, callers: int, _: Place, longest: int) -> Engine:
    quantized = file.with_name(INT8_NAME)
    if not quantized.is_file():
        version = file.parents[1].name
        raise FormUnavailable(
            f"{version} has no int8 graph. Add one: `simile models quantize {version}`, then activate the "
            "version that it publishes. Or serve fp32."
        )
    return OnnxEngine(quantized, form, threads, arena=_use_arena(callers, longest))


def _open_cuda(file: Path, form: Form, _threads: int, _callers: int, place: Place, longest: int) -> Engine:
    from models.engines.cuda import CudaEngine  # noqa: PLC0415  it needs onnx: a third of a second to import

    return CudaEngine(file, form.precision, cuda_provider(place), longest)


def _open_openvino(file: Path, form: Form, threads: int, callers: int, *_: object) -> Engine:
    from models.engines.openvino import OpenvinoEngine  # noqa: PLC0415  an extra, and slow to import

    return OpenvinoEngine(file, form, threads, callers)


def has_bf16(cpuinfo: Path = CPUINFO) -> bool:
    """Returns True if the processor has bf16 instructions, or if its instructions are unknown.

    OpenVINO claims bf16 for every processor with AVX-512, but its emulation is slower than fp32.
    """
    return _has_one(_BF16_FLAGS, cpuinfo)


def has_int8(cpuinfo: Path = CPUINFO) -> bool:
    """Returns True if the processor adds 8-bit products exactly, or if its instructions are unknown."""
    return _has_one(_INT8_FLAGS, cpuinfo)


def _has_one(sufficient: frozenset[str], cpuinfo: Path) -> bool:
    found = facts(cpuinfo)
    flags = found.get("flags", found.get("Features"))
    return flags is None or not sufficient.isdisjoint(flags.split())


@cache
def _why_no_bf16() -> str | None:
    """Returns why this machine cannot compute bf16, or None if it can."""
    if find_spec("openvino") is None:
        return (
            "bf16 needs OpenVINO, which is not installed. `make serve SIMILE_PRECISION=bf16` installs it, or "
            f"{install_command('openvino')}"
        )
    if not has_bf16():
        return "This processor has no bf16 instructions; serve fp32, which is the default."
    from models.engines.openvino import computes_bf16  # noqa: PLC0415  as above

    return None if computes_bf16() else "OpenVINO cannot compute bf16 on this processor; serve fp32."


def _why_no_int8() -> str | None:
    if has_int8():
        return None
    return "This processor has no VNNI instructions, without which int8 is not exact; serve fp32."


class EngineOf(NamedTuple):
    """Describes how one `Form`, a precision and a runtime, is computed.

    Args:
        device: The device that computes it.
        open: Opens an ONNX file in it.
        why_not: Returns the reason why this machine cannot compute it, or None if it can.
    """

    device: Device
    open: Open
    why_not: Callable[[], str | None] = lambda: None


# Every form. SIMILE_PRECISION, `/info` and docs/SETTINGS.md name the precision of each, as a test checks.
ENGINES: dict[Form, EngineOf] = {
    FP32: EngineOf("cpu", _open_fp32),
    BF16: EngineOf("cpu", _open_openvino, _why_no_bf16),
    INT8: EngineOf("cpu", _open_int8, _why_no_int8),
    CUDA_FP32: EngineOf("cuda", _open_cuda),
    CUDA_FP16: EngineOf("cuda", _open_cuda),
}
CPU_FORMS = tuple(form for form, engine in ENGINES.items() if engine.device == "cpu")

"""Forms that this machine can compute, and a published graph opened in one of them."""

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
INT8_NAME = "int8.graph"  # beside model.onnx; not *.onnx, since some tools take whichever file ends so
# Of x86 (AVX-512, AMX, AVX-NE-CONVERT) and of Arm.
_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"})
# Sums of four 8-bit products in 32 bits; without, x86 adds pairs in 16 bits, where they overflow.
_INT8_FLAGS = frozenset({"avx512_vnni", "avx_vnni", "asimddp"})


def form_for(precision: str, place: Place = CPU) -> Form:
    """The form of a precision on the CPU or a GPU, or the quickest that is nearly exact for `auto`.

    Raises:
        FormUnavailable: this machine cannot compute it, or nobody has built it; the message says what to do.

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
    raise FormUnavailable(f"{precision} is not built yet on processors; fp32, bf16, int8 and auto are.")


def require(form: Form, place: Place = CPU) -> None:
    """Raise FormUnavailable when no version can be opened in `form` here, with no other device than `place`.

    Whether a GPU is there is seen when it is used (nvidia.py).
    """
    if form in {CUDA_FP32, CUDA_FP16}:
        if place.device != "cuda":
            raise FormUnavailable(f"{form} is computed on a GPU, and SIMILE_DEVICE is {place}.")
        return
    if form not in {FP32, BF16, INT8}:
        raise FormUnavailable(f"This program knows no form {form}.")
    if form == INT8 and not has_int8():
        raise FormUnavailable(
            "This processor has no VNNI instructions, without which int8 is not exact; serve fp32."
        )
    if form == BF16 and (why := _why_no_bf16()):
        raise FormUnavailable(why)


def open_engine(
    file: Path, form: Form, threads: int, callers: int = 1, place: Place = CPU, longest: int = 512
) -> Engine:
    """`file` is the ONNX file of a version that was checked.

    threads: how many compute one call together.
    callers: how many calls at once should not wait for each other.
    place: which GPU, for a form of one.
    longest: tokens of the longest row that the model takes.

    Raises:
        FormUnavailable: as `require`.
        DeviceUnavailable: there is no such GPU, or it is too small.

    """
    require(form, place)
    if form == FP32:
        return OnnxEngine(file, form, threads)
    if form == INT8:
        quantised = file.with_name(INT8_NAME)
        if not quantised.is_file():
            raise FormUnavailable(
                "This version has no int8: it was published before there was one, or from ONNX alone, or "
                "lost too much by it. Publish its source anew: `python -m models import`, or serve fp32."
            )
        return OnnxEngine(quantised, form, threads)
    if form.runtime == "onnxruntime-cuda":
        from models.engines.cuda import CudaEngine  # noqa: PLC0415  it needs onnx: a third of a second to import

        return CudaEngine(file, form.precision, cuda_provider(place), longest)
    from models.engines.openvino import OpenvinoEngine  # noqa: PLC0415  an extra, and slow to import

    return OpenvinoEngine(file, form, threads, callers)


def has_bf16(cpuinfo: Path = CPUINFO) -> bool:
    """True if the processor multiplies bf16 itself, or the system does not tell.

    OpenVINO counts every processor with AVX-512 among those that do; where it has to imitate them it is
    slower than fp32.
    """
    return _has_one(_BF16_FLAGS, cpuinfo)


def has_int8(cpuinfo: Path = CPUINFO) -> bool:
    """True if the processor adds 8-bit products exactly, or the system does not tell."""
    return _has_one(_INT8_FLAGS, cpuinfo)


def _has_one(wanted: frozenset[str], cpuinfo: Path) -> bool:
    try:
        lines = cpuinfo.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return True
    flags = [line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))]
    return not flags or not wanted.isdisjoint(flags[0])


@cache
def _why_no_bf16() -> str | None:
    """Why bf16 cannot be computed here, None when it can."""
    if find_spec("openvino") is None:
        return (
            "bf16 is computed by OpenVINO, which is not installed: in the project's folder, "
            "pip install -c constraints.txt '.[openvino]', or `make serve SIMILE_PRECISION=bf16`."
        )
    if not has_bf16():
        return "This processor has no bf16 instructions; serve fp32, which is the default."
    from models.engines.openvino import computes_bf16  # noqa: PLC0415  as above

    return None if computes_bf16() else "OpenVINO computes no bf16 on this processor; serve fp32."

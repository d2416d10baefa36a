"""A form: in which precision, and by which runtime, a version's vectors are computed.

It stands beside the fingerprint wherever vectors are kept. Two forms of one version point almost the same
way, and are not the same numbers.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Precision: TypeAlias = Literal["fp32", "bf16", "fp16", "int8"]
Runtime: TypeAlias = Literal["onnxruntime", "onnxruntime-cuda", "openvino"]


class Form(NamedTuple):
    precision: Precision
    runtime: Runtime

    def __str__(self) -> str:
        return f"{self.precision}/{self.runtime}"


Asked: TypeAlias = Literal["fp32", "bf16", "fp16", "int8", "auto"]  # `auto`: the fastest that loses nothing

FP32 = Form("fp32", "onnxruntime")  # what a version is proved in, and what every machine can do


def cuda_form(asked: Asked) -> Form:
    """The form that a GPU computes in. Raise ValueError for one that it does not."""
    if asked not in {"fp32", "fp16", "auto"}:
        raise ValueError("a GPU computes in fp32 or fp16 here; name one of them, or auto, which is fp16")
    return Form("fp32" if asked == "fp32" else "fp16", "onnxruntime-cuda")

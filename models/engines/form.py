"""The precision and the runtime of a version's vectors.

Stored vectors keep both, because another precision or runtime changes the numbers slightly.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, cast

Precision: TypeAlias = Literal["fp32", "bf16", "fp16", "int8"]
Runtime: TypeAlias = Literal["onnxruntime", "onnxruntime-cuda", "openvino"]


class Form(NamedTuple):
    precision: Precision
    runtime: Runtime

    def __str__(self) -> str:
        return f"{self.precision}/{self.runtime}"


def read_form(text: str) -> Form:
    """Parses the result of `str` up to a space. The form may be unknown to this machine."""
    precision, _, runtime = text.partition(" ")[0].partition("/")
    return Form(cast("Precision", precision), cast("Runtime", runtime))


FP32 = Form("fp32", "onnxruntime")  # Versions are verified in this form, and every machine supports it.

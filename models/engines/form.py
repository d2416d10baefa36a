"""A form: in which precision, and by which runtime, a version's vectors are computed.

It stands beside the fingerprint wherever vectors are kept. Two forms of one version point almost the same
way, and are not the same numbers.
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
    """The form that `str` made `text` of, up to a space; can this machine compute it is another question."""
    precision, _, runtime = text.partition(" ")[0].partition("/")
    return Form(cast("Precision", precision), cast("Runtime", runtime))


FP32 = Form("fp32", "onnxruntime")  # what a version is proved in, and what every machine can do

"""One operator for what CUDA has one kernel for: attention, embeddings, a sum with its normalisation, gelu.

ONNX Runtime's own optimiser for BERT does it; a graph that it does not know is left as it is. Its attention
takes the number of tokens of each row instead of a mask, which says the same only where padding stands on the
right, as it always does here. Whether the result computes the same is for the caller to check.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import onnx

_LOGGERS = ("fusion_base", "fusion_utils", "onnx_model", "onnx_model_bert", "shape_infer_helper")


def fuse(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model`, which is used up, with its known patterns fused."""
    bert, options = _optimiser()
    fused = bert(model, num_heads=0, hidden_size=0)  # 0: as found in the graph
    fused.optimize(options("bert"))
    fused.topological_sort()
    found: onnx.ModelProto = fused.model
    return found


def _optimiser() -> tuple[Any, Any]:
    """Imported when it is needed: half a second. It logs every fusion, and adds two folders to the path where
    modules are looked for, with names such as `metrics`: neither is left behind.
    """
    path = list(sys.path)
    try:
        from onnxruntime.transformers.fusion_options import FusionOptions  # noqa: PLC0415
        from onnxruntime.transformers.onnx_model_bert import BertOnnxModel  # noqa: PLC0415
    finally:
        sys.path[:] = path
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    return BertOnnxModel, FusionOptions

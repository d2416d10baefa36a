"""Reads the classification head of a cross-encoder from its weights. Start at `read_classifier`.

The head of each family is a pooling and layers (head.py), under names of its own:

    bert                                       pooler (tanh), classifier
    roberta, xlm-roberta, camembert, mpnet     dense (tanh), out_proj
    electra                                    dense (gelu), out_proj
    distilbert                                 pre_classifier (relu), classifier
    modernbert                                 dense (gelu), norm, classifier

They pool the first token; ModernBERT can pool the mean instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from models.errors import Unsupported
from models.graph.backbone import Tensors, map_safetensors, modern_name, require_finite
from models.graph.head import Dense, Layer, LayerNorm
from models.graph.modernbert import FAMILY

_DENSE = (("classifier.dense", "tanh"), ("classifier.out_proj", "identity"))
_LAYERS = {
    "bert": (("bert.pooler.dense", "tanh"), ("classifier", "identity")),
    "roberta": _DENSE,
    "xlm-roberta": _DENSE,
    "camembert": _DENSE,
    "mpnet": _DENSE,
    "electra": (("classifier.dense", "gelu"), ("classifier.out_proj", "identity")),
    "distilbert": (("pre_classifier", "relu"), ("classifier", "identity")),
    FAMILY: (("head.dense", ""), ("head.norm", "norm"), ("classifier", "identity")),
}


class Classifier(NamedTuple):
    pooling: str  # One of head.py.
    layers: tuple[Layer, ...]  # The last one has a row for each output.


def read_classifier(config: Mapping[str, Any], files: Sequence[Path]) -> Classifier | None:
    """Reads the head of a `*ForSequenceClassification` folder from its safetensors files.

    Returns:
        The head, or None if Simile does not know the head of the family.

    Raises:
        Unsupported: A tensor is missing or not finite.
    """
    names = _LAYERS.get(str(config.get("model_type")))
    if not files or names is None:
        return None
    if config.get("model_type") == FAMILY:
        pooling = str(config.get("classifier_pooling", "cls"))
        activation = str(config.get("classifier_activation", "gelu"))
        if pooling not in ("cls", "mean") or activation not in ("gelu", "relu", "silu", "tanh"):
            return None
        names = tuple((at, kind or activation) for at, kind in names)
    else:
        pooling = "cls"
    wanted = {f"{at}.{part}" for at, _ in names for part in ("weight", "bias")}
    tensors: Tensors = {}
    for file in files:
        tensors |= {modern_name(name): found for name, found in map_safetensors(file, wanted).items()}
    epsilon = float(config.get("norm_eps", 1e-5))
    return Classifier(pooling, tuple(_layer(tensors, at, kind, epsilon) for at, kind in names))


def _layer(tensors: Tensors, at: str, kind: str, epsilon: float) -> Layer:
    weight, bias = tensors.get(f"{at}.weight"), tensors.get(f"{at}.bias")
    if weight is None:
        raise Unsupported(
            f"The weights are incomplete: the tensor {at}.weight is missing. A cross-encoder needs a trained "
            "classification head."
        )
    for part, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None:
            require_finite(f"{at}.{part}", tensor)
    if kind == "norm":
        return LayerNorm(weight, np.zeros_like(weight) if bias is None else bias, epsilon)
    return Dense(weight, bias, kind)

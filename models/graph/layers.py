"""Layers after the pooling: dense, layer normalization, unit length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.errors import Unsupported
from models.graph.nodes import Nodes

Vector = NDArray[np.float32]
# Keyed by the names that sentence-transformers saves.
ACTIVATIONS = {
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.SiLU": "silu",
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
}


@dataclass(frozen=True)
class Dense:
    """A `2_Dense` module: activation(x @ weight.T + bias)."""

    weight: Vector  # (out, in)
    bias: Vector | None  # (out,)
    activation: str


@dataclass(frozen=True)
class LayerNorm:
    """A `2_LayerNorm` module: (x - mean) / sqrt(variance + epsilon) * weight + bias."""

    weight: Vector  # (width,)
    bias: Vector
    epsilon: float = 1e-5  # The default of torch, which sentence-transformers uses.


@dataclass(frozen=True)
class Unit:
    """A `Normalize` module that is not the last module: x / |x|."""


Layer = Dense | LayerNorm | Unit


def check_widths(layers: Sequence[Layer], width: int) -> None:
    """Rejects layers that do not fit a pooled vector of `width` numbers, or each other."""
    for layer in layers:
        if isinstance(layer, Unit):
            continue
        out = layer.weight.shape[0]
        bias = (out,) if layer.bias is None else layer.bias.shape
        weight = (out, width) if isinstance(layer, Dense) else (width,)
        if layer.weight.shape != weight or bias != (out,):
            raise Unsupported(
                f"A {type(layer).__name__} after the pooling has weights {layer.weight.shape} and a bias "
                f"{bias}, but its input has {width} numbers."
            )
        width = out


def append_layer(n: Nodes, x: str, layer: Layer) -> str:
    if isinstance(layer, Unit):
        return n.unit(x)
    if isinstance(layer, LayerNorm):
        return _layer_norm(n, x, layer)
    x = n("MatMul", x, n.tensor(layer.weight.T))
    if layer.bias is not None:
        x = n("Add", x, n.tensor(layer.bias))
    return _activate(n, x, layer.activation)


def _layer_norm(n: Nodes, x: str, layer: LayerNorm) -> str:
    # The opset of an adopted graph may be older than the operator LayerNormalization.
    width = n.tensor(float(len(layer.weight)))
    centered = n("Sub", x, n("Div", n("ReduceSum", x, n.ints(1), keepdims=1), width))
    variance = n("Div", n("ReduceSum", n("Mul", centered, centered), n.ints(1), keepdims=1), width)
    spread = n("Sqrt", n("Add", variance, n.tensor(layer.epsilon)))
    return n("Add", n("Mul", n("Div", centered, spread), n.tensor(layer.weight)), n.tensor(layer.bias))


def _activate(n: Nodes, x: str, activation: str) -> str:
    if activation == "identity":
        return x
    if activation == "gelu":
        gate = n("Add", n("Erf", n("Div", x, n.tensor(math.sqrt(2)))), n.tensor(1.0))
        return n("Mul", n("Mul", x, gate), n.tensor(0.5))
    if activation == "silu":
        return n("Mul", x, n("Sigmoid", x))
    return n({"tanh": "Tanh", "relu": "Relu", "sigmoid": "Sigmoid"}[activation], x)

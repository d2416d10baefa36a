"""Computes pooling and the layers after it in torch. graph/head.py writes the same steps in ONNX."""

# ruff: noqa: N803, N806  shapes live in names
from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from models.graph.head import Dense, Layer, LayerNorm, Prompt, Unit, mask_distance

_ACTIVATE: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "identity": lambda x: x,
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
    "sigmoid": torch.sigmoid,
}


def pool(
    hidden_RTD: Tensor, mask_RT: Tensor, modes: Sequence[str], skipped_R: Tensor | None = None
) -> Tensor:
    """Pools the token vectors of each row to one vector. Results of several poolings are concatenated.

    Args:
        hidden_RTD: Token vectors, shape (rows, tokens, width).
        mask_RT: 1 for tokens, 0 for padding on the right.
        modes: Names of the poolings.
        skipped_R: Number of tokens at the start of each row that are not pooled.
    """
    if skipped_R is None:
        skipped_R = torch.zeros(len(mask_RT), dtype=torch.long, device=mask_RT.device)
    return torch.cat([_pool(hidden_RTD, mask_RT, skipped_R, mode) for mode in modes], dim=-1)


def skipped(ids_RT: Tensor, left_out: Sequence[Prompt]) -> Tensor:
    """Counts the tokens at the start of each row that pooling leaves out. Returns int64, shape (R,)."""
    skipped_R = torch.zeros(len(ids_RT), dtype=torch.long, device=ids_RT.device)
    for prompt in left_out:
        start = torch.tensor(prompt.ids, device=ids_RT.device)
        if ids_RT.shape[1] >= len(start):
            begins_R = (ids_RT[:, : len(start)] == start).all(1)
            skipped_R = skipped_R.maximum(begins_R.long() * prompt.tokens)
    return skipped_R


def _pool(hidden_RTD: Tensor, mask_RT: Tensor, skipped_R: Tensor, mode: str) -> Tensor:
    rows_R = torch.arange(len(hidden_RTD), device=hidden_RTD.device)
    distance = mask_distance(mode)
    if distance is not None:
        return hidden_RTD[rows_R, mask_RT.sum(1) - 1 - distance]
    if mode == "cls":
        return hidden_RTD[rows_R, skipped_R]
    places_RT = mask_RT.cumsum(1)
    pooled_RT = mask_RT * (places_RT > skipped_R[:, None])
    if mode == "min":
        return -_largest(-hidden_RTD, pooled_RT > 0)
    if mode == "max":
        return _largest(hidden_RTD, pooled_RT > 0)
    weights_RT = (pooled_RT * places_RT if mode == "weightedmean" else pooled_RT).to(hidden_RTD.dtype)
    total_R1 = weights_RT.sum(1, keepdim=True).clamp(min=1e-9)
    divisor_R1 = total_R1.sqrt() if mode == "mean_sqrt_len_tokens" else total_R1
    return (hidden_RTD * weights_RT[..., None]).sum(1) / divisor_R1


def _largest(hidden_RTD: Tensor, pooled_RT: Tensor) -> Tensor:
    """Returns the maximum of each dimension over the pooled tokens. Rows without such tokens get zeros."""
    if not hidden_RTD.shape[1]:
        return hidden_RTD.sum(1)
    largest_RD = hidden_RTD.masked_fill(~pooled_RT[..., None], -torch.inf).amax(1)
    return largest_RD.where(pooled_RT.any(1, keepdim=True), 0.0)


class DenseLayer(nn.Module):
    """A `2_Dense` module: activation(linear(x))."""

    def __init__(self, linear: nn.Linear, activation: str) -> None:
        super().__init__()
        self.linear = linear
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return _ACTIVATE[self.activation](self.linear(x))


class UnitLayer(nn.Module):
    """A `Normalize` module that is not the last module."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.normalize(x, dim=-1)


def torch_layers(layers: Sequence[Layer]) -> nn.Sequential:
    """Creates the torch layers of a published head."""
    return nn.Sequential(*map(_torch_layer, layers))


def _torch_layer(layer: Layer) -> nn.Module:
    if isinstance(layer, Unit):
        return UnitLayer()
    if isinstance(layer, LayerNorm):
        norm = nn.LayerNorm(len(layer.weight), eps=layer.epsilon)
        _copy(norm.weight, layer.weight)
        _copy(norm.bias, layer.bias)
        return norm
    outputs, inputs = layer.weight.shape
    linear = nn.Linear(inputs, outputs, bias=layer.bias is not None)
    _copy(linear.weight, layer.weight)
    if layer.bias is not None:
        _copy(linear.bias, layer.bias)
    return DenseLayer(linear, layer.activation)


@torch.no_grad()
def _copy(parameter: Tensor, values: np.ndarray) -> None:
    parameter.copy_(torch.from_numpy(np.array(values)))


def published_layer(layer: nn.Module) -> Layer:
    """Converts a layer from `torch_layers` back to a layer of a head, with the current weights."""
    if isinstance(layer, UnitLayer):
        return Unit()
    if isinstance(layer, nn.LayerNorm):
        return LayerNorm(_values(layer.weight), _values(layer.bias), layer.eps)
    if not isinstance(layer, DenseLayer):
        raise TypeError(f"{type(layer).__name__} is not a layer of a version.")
    bias = None if layer.linear.bias is None else _values(layer.linear.bias)
    return Dense(_values(layer.linear.weight), bias, layer.activation)


def _values(parameter: Tensor) -> np.ndarray:
    return parameter.detach().cpu().numpy()

"""Heads: what the objective sees instead of the pooled vector. One that is not kept ends with the run.

none    the pooled vector itself
tanh    a linear layer and tanh: SimCSE's
bn      two linear layers with batch normalisation: DiffCSE's
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from models.publishing.from_torch.pooling import DenseLayer
from training.methods.ranges import Flag

_SPREAD = 0.02  # BERT's initializer_range; torch's own default for Linear gave other scores


class Head(Protocol):
    @property
    def keep(self) -> bool:
        """True if the published model has it."""

    def build(self, width: int, generator: torch.Generator) -> nn.Module:
        """(rows, width) -> (rows, width)."""


@dataclass(frozen=True)
class Plain:
    keep: ClassVar[bool] = False
    name: Literal["none"] = "none"

    def build(self, _width: int, _generator: torch.Generator) -> nn.Module:
        return nn.Identity()


@dataclass(frozen=True)
class Tanh:
    """A linear layer and tanh, as BERT's pooler has them, from random weights: SimCSE's `mlp`."""

    keep: Flag  # whether the published model has it
    name: Literal["tanh"] = "tanh"

    def build(self, width: int, generator: torch.Generator) -> DenseLayer:
        linear = nn.Linear(width, width)
        nn.init.normal_(linear.weight, std=_SPREAD, generator=generator)
        nn.init.zeros_(linear.bias)
        return DenseLayer(linear, "tanh")


class BatchNormHead(nn.Module):
    """Linear(D, 2D), BatchNorm, ReLU, Linear(2D, D), BatchNorm without weights (Chuang et al. 2022)."""

    def __init__(self, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.wide = nn.Linear(width, 2 * width, bias=False)
        self.inner = nn.BatchNorm1d(2 * width)
        self.narrow = nn.Linear(2 * width, width, bias=False)
        self.outer = nn.BatchNorm1d(width, affine=False)
        for linear in (self.wide, self.narrow):
            nn.init.normal_(linear.weight, std=_SPREAD, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        x = self.narrow(torch.relu(self.inner(self.wide(x))))
        normed: Tensor = self.outer(x)
        return normed


@dataclass(frozen=True)
class BatchNorm:
    """Statistics are over the rows of all views together, as DiffCSE's. It ends with the run."""

    keep: ClassVar[bool] = False
    name: Literal["bn"] = "bn"

    def build(self, width: int, generator: torch.Generator) -> nn.Module:
        return BatchNormHead(width, generator)

"""Heads: what the objective sees instead of the pooled vector. One that is not kept ends with the run."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from models.export import DenseLayer

_SPREAD = 0.02  # BERT's initializer_range; torch's own default for Linear gave other scores (methods, 1.1)


@dataclass(frozen=True)
class Tanh:
    """A linear layer and tanh, as BERT's pooler has them, from random weights: SimCSE's `mlp`."""

    keep: bool  # whether the published model has it

    def build(self, width: int, generator: torch.Generator) -> DenseLayer:
        """(rows, width) -> (rows, width)."""
        linear = nn.Linear(width, width)
        nn.init.normal_(linear.weight, std=_SPREAD, generator=generator)
        nn.init.zeros_(linear.bias)
        return DenseLayer(linear, "tanh")


HEADS = {"tanh": Tanh}

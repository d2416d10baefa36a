"""Heads: what the objective sees instead of the pooled vector. One that is not kept ends with the run.
`build` makes a module from (rows, width) to (rows, any width); source: the base.

none    the pooled vector itself
tanh    a linear layer and tanh: SimCSE's
bn      two linear layers with batch normalisation: DiffCSE's
relu    two linear layers without biases to another width: PairSupCon's
gelu    two wide layers: SG-OPT's
transform    the base's own layer before its guess of a word: PromptBERT's, supervised
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from models.publishing.from_torch.pooling import DenseLayer
from models.sources.folder import Source
from training.errors import TrainingError
from training.methods.ranges import Count, Flag
from training.model.language_head import language_head

_SPREAD = 0.02  # BERT's initializer_range; torch's own default for Linear gave other scores


@dataclass(frozen=True)
class Plain:
    keep: ClassVar[bool] = False
    name: Literal["none"] = "none"

    def build(self, _source: Source, _width: int, _generator: torch.Generator) -> nn.Module:
        return nn.Identity()


@dataclass(frozen=True)
class Tanh:
    """A linear layer and tanh, as BERT's pooler has them, from random weights: SimCSE's `mlp`."""

    keep: Flag  # whether the published model has it
    name: Literal["tanh"] = "tanh"

    def build(self, _source: Source, width: int, generator: torch.Generator) -> DenseLayer:
        return DenseLayer(_linear(width, width, generator), "tanh")


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

    def build(self, _source: Source, width: int, generator: torch.Generator) -> nn.Module:
        return BatchNormHead(width, generator)


@dataclass(frozen=True)
class Relu:
    """Linear(D, D), ReLU, Linear(D, width), without biases. Zhang et al. 2021 (PairSupCon), its code."""

    width: Count = 128
    keep: ClassVar[bool] = False
    name: Literal["relu"] = "relu"

    def build(self, _source: Source, width: int, generator: torch.Generator) -> nn.Module:
        first = _linear(width, width, generator, bias=False)
        return nn.Sequential(first, nn.ReLU(), _linear(width, self.width, generator, bias=False))


@dataclass(frozen=True)
class Gelu:
    """Linear(D, width), GELU, Linear(width, width), GELU. Kim et al. 2021 (SG-OPT), its code."""

    width: Count = 4096
    keep: ClassVar[bool] = False
    name: Literal["gelu"] = "gelu"

    def build(self, _source: Source, width: int, generator: torch.Generator) -> nn.Module:
        first, second = _linear(width, self.width, generator), _linear(self.width, self.width, generator)
        return nn.Sequential(first, nn.GELU(), second, nn.GELU())


@dataclass(frozen=True)
class Transform:
    """The linear layer, GELU and normalisation of the base's masked-language head (Jiang et al. 2022)."""

    keep: Flag
    name: Literal["transform"] = "transform"

    def build(self, source: Source, width: int, generator: torch.Generator) -> nn.Module:
        """Raise TrainingError when the base has none, or vectors of another width."""
        language, stored = language_head(source, generator)
        if not stored or width != source.width or source.config.get("hidden_act", "gelu") != "gelu":
            raise TrainingError(
                "The head `transform` is the base's own masked-language one with GELU, and it has none. "
                "Take a pre-trained BERT as it was released, or give it a head: train mlm-head,…"
            )
        return nn.Sequential(DenseLayer(language.dense, "gelu"), language.norm)


def _linear(inputs: int, outputs: int, generator: torch.Generator, *, bias: bool = True) -> nn.Linear:
    """As BERT begins one."""
    linear = nn.Linear(inputs, outputs, bias=bias)
    nn.init.normal_(linear.weight, std=_SPREAD, generator=generator)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear

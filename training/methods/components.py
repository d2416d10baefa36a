"""Parts that training adds to an encoder: a head, further negatives, a twin.

Heads map the pooled vector to what the objective reads. A head that is not kept ends with the run.

    none         the pooled vector itself
    tanh         a linear layer and tanh (SimCSE)
    bn           two linear layers with batch normalization (DiffCSE)
    relu         two linear layers without biases, to another width (PairSupCon)
    gelu         two wide layers (SG-OPT)
    transform    the layer of the base that precedes its prediction of a word (PromptBERT, supervised)

Negatives are rows that every text is compared with, in addition to the batch.

    queue        vectors of earlier steps, from a slowly moving copy of the encoder (ESimCSE, after MoCo)
    noise        random directions (GS-InfoNCE)

Twins are second encoders, never published. They are copied after the weights are loaded: random initial
weights would be a known mistake.

    ema          follows the encoder by its momentum; a queue keeps its vectors (ESimCSE)
    clone        is also trained, and encodes the first view (CT, QuickThoughts)
    frozen       keeps its weights; the means of its layers are further views of the first text (SG-OPT)
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from models.publishing.from_torch.pooling import DenseLayer
from models.sources.folder import Source
from training.errors import TrainingError
from training.methods.objectives import NO_TEXT, Extra
from training.model.encoder import TrainedEncoder
from training.model.language_head import language_head
from training.validation import AboveZero, Count, Flag, Share

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


class Rows(nn.Module):
    """Negatives as a module, so that what they remember is in every checkpoint."""

    def rows(self, generator: torch.Generator) -> Extra:
        """K of them, of which a text's own earlier vectors are none of its negatives."""
        raise NotImplementedError

    def push(self, rows: Extra) -> None:
        """Vectors of a batch that is over."""


class QueueBuffer(Rows):
    """The newest vectors first; empty at first, then at most `size`."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.kept: Tensor
        self.texts: Tensor
        self.filled: Tensor
        self.register_buffer("kept", torch.zeros(size, width))
        self.register_buffer("texts", torch.full((size,), NO_TEXT))
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64))

    def rows(self, _generator: torch.Generator) -> Extra:
        filled = int(self.filled)
        return Extra(self.kept[:filled], self.texts[:filled])

    def push(self, rows: Extra) -> None:
        size = len(self.kept)
        self.kept.copy_(torch.cat([rows.z.detach().to(self.kept), self.kept])[:size])
        self.texts.copy_(torch.cat([rows.texts.to(self.texts), self.texts])[:size])
        self.filled.copy_((self.filled + len(rows.z)).clamp(max=size))


@dataclass(frozen=True)
class Queue:
    """size: in batches. Wu et al. 2022 (ESimCSE), section 3.2: 2.5 batches were best."""

    batches: AboveZero
    name: Literal["queue"] = "queue"

    def build(self, width: int, batch: int) -> Rows:
        return QueueBuffer(round(self.batches * batch), width)


class NoiseRows(Rows):
    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.shape = (count, width)

    def rows(self, generator: torch.Generator) -> Extra:
        return Extra(torch.randn(self.shape, generator=generator), torch.full(self.shape[:1], NO_TEXT))


@dataclass(frozen=True)
class Noise:
    """Wu et al. 2022 (GS-InfoNCE): Gaussian vectors, whose spread cancels in a cosine."""

    batches: AboveZero
    name: Literal["noise"] = "noise"

    def build(self, width: int, batch: int) -> Rows:
        return NoiseRows(round(self.batches * batch), width)


@dataclass(frozen=True)
class Ema:
    """A copy whose weights follow by `momentum`: θ' ← m θ' + (1 - m) θ after every step (MoCo; ESimCSE)."""

    momentum: Share
    name: Literal["ema"] = "ema"

    def build(self, encoder: TrainedEncoder) -> TrainedEncoder:
        return _still(encoder)

    @torch.no_grad()
    def follow(self, twin: nn.Module, encoder: nn.Module) -> None:
        for own, other in zip(twin.parameters(), encoder.parameters(), strict=True):
            own.lerp_(other, 1 - self.momentum)


@dataclass(frozen=True)
class Clone:
    """A copy with weights of its own, which train too. Carlsson et al. 2021 (CT), section 3."""

    name: Literal["clone"] = "clone"

    def build(self, encoder: TrainedEncoder) -> TrainedEncoder:
        return copy.deepcopy(encoder)


@dataclass(frozen=True)
class Frozen:
    """The encoder as it began. Kim et al. 2021 (SG-OPT), section 3."""

    name: Literal["frozen"] = "frozen"

    def build(self, encoder: TrainedEncoder) -> TrainedEncoder:
        return _still(encoder)


def _still(encoder: TrainedEncoder) -> TrainedEncoder:
    twin = copy.deepcopy(encoder)
    twin.requires_grad_(requires_grad=False)
    return twin

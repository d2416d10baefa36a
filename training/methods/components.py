"""Modules that a recipe can add to the encoder during training: heads, further negatives and twins.

Heads map the pooled vector to the vector that the objective reads. A head is published with the model only if
its `keep` is true.

    none         no head
    tanh         a linear layer and tanh (SimCSE)
    bn           two linear layers with batch normalization (DiffCSE)
    relu         two linear layers without biases, to another width (PairSupCon)
    gelu         two wide layers (SG-OPT)
    transform    the layer of the base that precedes the prediction of a word (PromptBERT, supervised)

Negatives are vectors with which every text is compared, in addition to the texts of the batch.

    queue        vectors of earlier steps, from a slowly moving copy of the encoder (ESimCSE, after MoCo)
    noise        random directions (GS-InfoNCE)

Twins are second encoders, which are used in training only. They start with the loaded weights of the encoder.

    ema          is a moving average of the encoder; its vectors fill the queue (ESimCSE)
    clone        is also trained, and encodes the first view (CT, QuickThoughts)
    frozen       keeps its weights; the means of its layers are further views of the first text (SG-OPT)
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from models.publishing.from_torch.pooling import DenseLayer
from models.sources.folder import Source
from training.errors import TrainingError
from training.methods.objectives import NO_TEXT, Extra
from training.model.encoder import TrainedEncoder
from training.model.language_head import bert_linear, language_head
from training.validation import AboveZero, Count, Flag, Share


@dataclass(frozen=True)
class Plain:
    keep: ClassVar[bool] = False
    name: Literal["none"] = "none"

    def build(self, _source: Source, _width: int, _generator: torch.Generator) -> nn.Module:
        return nn.Identity()


@dataclass(frozen=True)
class Tanh:
    """A head of a linear layer and tanh with random initial weights, like `mlp` in SimCSE."""

    keep: Flag  # publishes the head with the model
    name: Literal["tanh"] = "tanh"

    def build(self, _source: Source, width: int, generator: torch.Generator) -> DenseLayer:
        return DenseLayer(bert_linear(width, width, generator), "tanh")


@dataclass(frozen=True)
class BatchNorm:
    """A head with batch normalization (Chuang et al. 2022, DiffCSE).

    The layers are Linear(D, 2D), BatchNorm, ReLU, Linear(2D, D), BatchNorm without weights. The statistics
    are over the vectors of all views together, as in DiffCSE.
    """

    keep: ClassVar[bool] = False
    name: Literal["bn"] = "bn"

    def build(self, _source: Source, width: int, generator: torch.Generator) -> nn.Module:
        layers = {
            "wide": bert_linear(width, 2 * width, generator, bias=False),
            "inner": nn.BatchNorm1d(2 * width),
            "relu": nn.ReLU(),
            "narrow": bert_linear(2 * width, width, generator, bias=False),
            "outer": nn.BatchNorm1d(width, affine=False),
        }
        return nn.Sequential(OrderedDict(layers))


@dataclass(frozen=True)
class Relu:
    """A head of Linear(D, D), ReLU, Linear(D, width) without biases, as in the code of PairSupCon (2021)."""

    width: Count = 128
    keep: ClassVar[bool] = False
    name: Literal["relu"] = "relu"

    def build(self, _source: Source, width: int, generator: torch.Generator) -> nn.Module:
        first = bert_linear(width, width, generator, bias=False)
        return nn.Sequential(first, nn.ReLU(), bert_linear(width, self.width, generator, bias=False))


@dataclass(frozen=True)
class Gelu:
    """A head of Linear(D, width), GELU, Linear(width, width), GELU, as in the code of SG-OPT (2021)."""

    width: Count = 4096
    keep: ClassVar[bool] = False
    name: Literal["gelu"] = "gelu"

    def build(self, _source: Source, width: int, generator: torch.Generator) -> nn.Module:
        first = bert_linear(width, self.width, generator)
        second = bert_linear(self.width, self.width, generator)
        return nn.Sequential(first, nn.GELU(), second, nn.GELU())


@dataclass(frozen=True)
class Transform:
    """A head made of the linear layer, GELU and normalization of the base's masked-language head.

    Source: Jiang et al. 2022 (PromptBERT).
    """

    keep: Flag
    name: Literal["transform"] = "transform"

    def build(self, source: Source, width: int, generator: torch.Generator) -> nn.Module:
        """Returns the layers.

        Raises:
            TrainingError: The base has no masked-language head with GELU and the width of the base.

        """
        language, stored = language_head(source, generator)
        if not stored or width != source.width or source.config.get("hidden_act", "gelu") != "gelu":
            raise TrainingError(
                "The head `transform` is the base's masked-language head with GELU. This base has none. "
                "Take a pre-trained BERT as it was released, or give it a head: train mlm-head,…"
            )
        return nn.Sequential(DenseLayer(language.dense, "gelu"), language.norm)


class Rows(nn.Module):
    """Base class of further negatives. They are torch modules, so checkpoints contain their state."""

    def rows(self, generator: torch.Generator) -> Extra:
        """Returns K vectors as negatives for one step, each with its text's number or NO_TEXT.

        Texts with equal numbers are not negatives of each other.
        """
        raise NotImplementedError

    def push(self, rows: Extra) -> None:
        """Receives the vectors of the twin `ema` after each step. Does nothing by default."""


class QueueBuffer(Rows):
    """Negatives from earlier steps. Stores at most `size` vectors, the newest first."""

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
    """Negatives from the last `batches` batches (Wu et al. 2022, ESimCSE, section 3.2: 2.5 is best)."""

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
    """Gaussian random vectors as negatives (Wu et al. 2022, GS-InfoNCE). Their length does not matter."""

    batches: AboveZero
    name: Literal["noise"] = "noise"

    def build(self, width: int, batch: int) -> Rows:
        return NoiseRows(round(self.batches * batch), width)


@dataclass(frozen=True)
class Ema:
    """A twin that is updated after every step by θ' ← m θ' + (1 - m) θ, with m = `momentum` (ESimCSE)."""

    momentum: Share
    name: Literal["ema"] = "ema"

    def build(self, encoder: TrainedEncoder) -> TrainedEncoder:
        return copy.deepcopy(encoder).requires_grad_(requires_grad=False)

    @torch.no_grad()
    def follow(self, twin: nn.Module, encoder: nn.Module) -> None:
        for own, other in zip(twin.parameters(), encoder.parameters(), strict=True):
            own.lerp_(other, 1 - self.momentum)


@dataclass(frozen=True)
class Clone:
    """A twin that is trained together with the encoder (Carlsson et al. 2021, CT, section 3)."""

    name: Literal["clone"] = "clone"

    def build(self, encoder: TrainedEncoder) -> TrainedEncoder:
        return copy.deepcopy(encoder)


@dataclass(frozen=True)
class Frozen:
    """A twin that keeps the initial weights (Kim et al. 2021, SG-OPT, section 3)."""

    name: Literal["frozen"] = "frozen"

    def build(self, encoder: TrainedEncoder) -> TrainedEncoder:
        return copy.deepcopy(encoder).requires_grad_(requires_grad=False)

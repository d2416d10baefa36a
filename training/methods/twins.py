"""Twins: a second encoder beside the one that is trained. Never published.

All are copied after the weights are loaded: a twin that begins at random is a known mistake.

    ema       follows by its momentum; its vectors of earlier batches are a queue's negatives (ESimCSE)
    clone     is trained as well, and encodes the first view (CT, QuickThoughts)
    frozen    stays as it began; its layers' means are further views of the first text (SG-OPT)
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from training.methods.ranges import Share
from training.model.encoder import TrainedEncoder


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

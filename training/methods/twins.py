"""Twins: a second encoder beside the one that is trained. Never published."""

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
    """A copy whose weights follow by `momentum`: θ' ← m θ' + (1 - m) θ after every step (MoCo; ESimCSE).

    It is copied after the weights are loaded: a twin that begins at random is a known mistake.
    """

    momentum: Share
    name: Literal["ema"] = "ema"

    def build(self, encoder: TrainedEncoder) -> TrainedEncoder:
        twin = copy.deepcopy(encoder)
        twin.requires_grad_(requires_grad=False)
        return twin

    @torch.no_grad()
    def follow(self, twin: nn.Module, encoder: nn.Module) -> None:
        for own, other in zip(twin.parameters(), encoder.parameters(), strict=True):
            own.lerp_(other, 1 - self.momentum)

"""Negatives beside those of the batch: rows that every text is compared with.

queue    vectors of earlier steps, by a slowly moving copy of the encoder (ESimCSE, after MoCo)
noise    random directions (GS-InfoNCE)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from training.methods.objectives import NO_TEXT, Extra
from training.methods.ranges import AboveZero


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

"""Negatives beside those of the batch: rows that every text is compared with.

queue    vectors of earlier steps, by a slowly moving copy of the encoder (ESimCSE, after MoCo)
noise    random directions (GS-InfoNCE)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from training.methods.ranges import AboveZero


class Rows(nn.Module):
    """Negatives as a module, so that what they remember is in every checkpoint."""

    def rows(self, generator: torch.Generator) -> Tensor:
        """(K, P)"""
        raise NotImplementedError

    def push(self, rows: Tensor) -> None:
        """Vectors of a batch that is over, (N, P)."""


class QueueBuffer(Rows):
    """The newest vectors first; empty at first, then at most `size`."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.kept: Tensor
        self.filled: Tensor
        self.register_buffer("kept", torch.zeros(size, width))
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64))

    def rows(self, _generator: torch.Generator) -> Tensor:
        return self.kept[: int(self.filled)]

    def push(self, rows: Tensor) -> None:
        size = len(self.kept)
        self.kept.copy_(torch.cat([rows.detach().to(self.kept.dtype), self.kept])[:size])
        self.filled.copy_((self.filled + len(rows)).clamp(max=size))


@dataclass(frozen=True)
class Queue:
    """size: in batches. Wu et al. 2022 (ESimCSE), section 3.2: 2.5 batches were best."""

    batches: AboveZero
    name: Literal["queue"] = "queue"
    reads_twin: ClassVar[bool] = True

    def build(self, width: int, batch: int) -> Rows:
        return QueueBuffer(round(self.batches * batch), width)


class NoiseRows(Rows):
    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.shape = (count, width)

    def rows(self, generator: torch.Generator) -> Tensor:
        return torch.randn(self.shape, generator=generator)


@dataclass(frozen=True)
class Noise:
    """Wu et al. 2022 (GS-InfoNCE): Gaussian vectors, whose spread cancels in a cosine."""

    batches: AboveZero
    name: Literal["noise"] = "noise"
    reads_twin: ClassVar[bool] = False

    def build(self, width: int, batch: int) -> Rows:
        return NoiseRows(round(self.batches * batch), width)

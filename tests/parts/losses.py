"""Random vectors, and a comparison of gradients with finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor


def vectors(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def check_gradient(loss: Callable[[Tensor], Tensor], z: Tensor, step: float = 1e-2) -> None:
    """Compares the gradient of `loss` with central differences in three directions, within 1%."""
    z = z.clone().requires_grad_()
    loss(z).backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    for seed in range(3):
        along = vectors(*z.shape, seed=seed + 10)
        with torch.no_grad():
            change = (loss(z + step * along) - loss(z - step * along)).item() / (2 * step)
        assert (z.grad * along).sum().item() == pytest.approx(change, rel=1e-2, abs=2e-3)

"""A normalizing flow as a post-processor: an invertible map that makes vectors Gaussian (BERT-flow).

    x ─▶ scale and shift ─▶ shuffle ─▶ second half += m(first half) ─▶ … `steps` times ─▶ z ~ N(0, 1)

The function m is a network with one hidden layer and ReLU. Because x = relu(x) - relu(-x), each step can be
written exactly as two dense layers. The published model contains these dense layers.
"""

# ruff: noqa: N803, N806  shapes live in names
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from numpy.typing import NDArray
from torch import Tensor, nn

from models.progress import counted
from training.model.encoder import Affine, TrainedEncoder
from training.validation import Count, Rate

_BATCH = 256
_SEED = 20_201_116  # arbitrary but fixed: the same vectors give the same flow


class FlowStep(nn.Module):
    """A step of the flow. The coupling is additive, so log|det| depends only on the scale."""

    def __init__(self, width: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.first = width // 2
        self.shift, self.log_scale = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))
        self.order: Tensor
        self.register_buffer("order", torch.randperm(width, generator=generator))
        self.inner = nn.Linear(self.first, hidden)
        self.outer = nn.Linear(hidden, width - self.first)
        nn.init.normal_(self.inner.weight, std=self.first**-0.5, generator=generator)
        for zero in (self.inner.bias, self.outer.weight, self.outer.bias):
            # The coupling begins as the identity.
            nn.init.zeros_(zero)

    def forward(self, x_ND: Tensor) -> Tensor:
        x_ND = ((x_ND + self.shift) * self.log_scale.exp())[:, self.order]
        first, second = x_ND[:, : self.first], x_ND[:, self.first :]
        return torch.cat([first, second + self.outer(F.relu(self.inner(first)))], dim=1)

    @torch.no_grad()
    def start(self, x_ND: Tensor) -> None:
        """Initializes scale and shift to give `x_ND` mean 0 and variance 1 (Kingma and Dhariwal 2018)."""
        self.shift.copy_(-x_ND.mean(0))
        self.log_scale.copy_(-x_ND.std(0, correction=0).clamp(min=1e-6).log())

    @torch.no_grad()
    def layers(self) -> list[Affine]:
        """Returns two dense layers that compute the step."""
        width = len(self.order)
        scaled = torch.diag(self.log_scale.exp())[self.order]  # x ─▶ scaled x + moved
        moved = (self.log_scale.exp() * self.shift)[self.order]
        coupled = self.inner.weight @ scaled[: self.first]
        bias = self.inner.weight @ moved[: self.first] + self.inner.bias
        whole = torch.eye(width)
        below = torch.cat([torch.zeros(self.first, len(bias)), self.outer.weight])
        first = torch.cat([scaled, -scaled, coupled]), torch.cat([moved, -moved, bias])
        second = torch.cat([whole, -whole, below], dim=1), F.pad(self.outer.bias, (self.first, 0))
        made = ((*first, "relu"), (*second, "identity"))
        return [Affine(weight.T.double().numpy(), bias.double().numpy(), name) for weight, bias, name in made]


@dataclass(frozen=True)
class Flow:
    """A post-processor that fits a flow by maximum likelihood (Li et al. 2020, BERT-flow, equation 4).

    The paper uses Glow with three levels, of which the second and the third transform only a half and a
    quarter of the components. This flow has one level.
    """

    steps: Count = 3
    hidden: Count = 32
    epochs: Count = 1
    lr: Rate = 1e-3
    name: Literal["flow"] = "flow"

    def apply(self, encoder: TrainedEncoder, texts: Sequence[str]) -> None:
        encoder.add_dense(self.fit(np.concatenate([*encoder.pooled_chunks(texts)])))

    def fit(self, vectors: NDArray[np.float32]) -> list[Affine]:
        x_ND = torch.from_numpy(vectors)
        generator = torch.Generator().manual_seed(_SEED)
        flow = [FlowStep(x_ND.shape[1], self.hidden, generator) for _ in range(self.steps)]
        at: Tensor = x_ND
        for step in flow:
            step.start(at)
            at = step(at).detach()
        optimizer = torch.optim.Adam(nn.ModuleList(flow).parameters(), lr=self.lr)
        orders = [torch.randperm(len(x_ND), generator=generator) for _ in range(self.epochs)]
        batches = [rows for order in orders for rows in torch.split(order, _BATCH)]
        for rows in counted(batches, "steps", len(batches), "fitting the flow"):
            optimizer.zero_grad()
            negative_log_likelihood(flow, x_ND[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return [layer for step in flow for layer in step.layers()]


def negative_log_likelihood(flow: Sequence[FlowStep], x_ND: Tensor) -> Tensor:
    """Returns the mean of |z|²/2 - log|det dz/dx| over vectors, without the constant D log(2π)/2."""
    z_ND = x_ND
    for step in flow:
        z_ND = step(z_ND)
    log_det = torch.stack([step.log_scale.sum() for step in flow]).sum()
    return z_ND.square().sum(1).mean() / 2 - log_det

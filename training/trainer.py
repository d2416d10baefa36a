"""One training step, as the papers write it.

    views ─▶ one forward of all rows of all views ─▶ head ─▶ Σ weight · objective ─▶ backward ─▶ clip ─▶ AdamW

Every random number of a step follows from the seed and the number of the step, so a checkpoint needs none.
Not here: how often anything is reported, evaluated or saved (run.py).
"""

# ruff: noqa: N806  shapes live in names
from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from training.encoder import Encoder
from training.objectives import Reps
from training.recipe import Recipe
from training.sources import Lines
from training.views import join

_STEPS = 1  # beside the seed: sources.py draws its order from 0


class Trainer:
    def __init__(
        self, encoder: Encoder, head: nn.Module, recipe: Recipe, source: Lines, *, steps: int, bf16: bool
    ) -> None:
        """steps: of the whole run, which the learning rate follows. bf16: compute in bfloat16 by autocast."""
        self.encoder = encoder
        self._recipe = recipe
        self._source = source
        self._steps = steps
        self._bf16 = bf16
        self._device = encoder.device
        self.model = nn.ModuleDict({"encoder": encoder, "head": head})
        self.optimizer = torch.optim.AdamW(
            [
                {"params": list(self._parameters(matrices=True)), "weight_decay": recipe.optim.weight_decay},
                {"params": list(self._parameters(matrices=False)), "weight_decay": 0.0},
            ],
            eps=recipe.optim.epsilon,
            fused=True,
        )

    def step(self, number: int) -> tuple[float, int]:
        """Make step `number`, counted from 0; its loss, and how many texts it saw."""
        generator = self._seed(number)
        batch = self._source.batch(number)
        views = [view(batch.tokens, generator) for view in self._recipe.views]
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            pooled = self.encoder(join(views).to(self._device), self._recipe.dropout)
        z_VNP = self.model["head"](pooled).unflatten(0, (len(views), -1))
        reps = Reps(z_VNP.transpose(0, 1), batch.texts.to(self._device))
        loss = torch.stack([weight * objective(reps) for weight, objective in self._recipe.objectives]).sum()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), self._recipe.optim.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(number)
        self.optimizer.step()
        return loss.item(), len(batch.texts)

    def rate(self, number: int) -> float:
        """The learning rate of a step: up over the warmup, then down linearly, to reach 0 after the last."""
        warmup = round(self._recipe.optim.warmup * self._steps)
        if number < warmup:
            return self._recipe.optim.lr * number / warmup
        return self._recipe.optim.lr * (self._steps - number) / (self._steps - warmup)

    def _seed(self, number: int) -> torch.Generator:
        """Dropout draws from torch's own generators; the views from the one that is answered."""
        entropy = np.random.SeedSequence([self._recipe.seed, _STEPS, number]).generate_state(2, np.uint64)
        torch.manual_seed(int(entropy[0]))
        return torch.Generator().manual_seed(int(entropy[1]))

    def _parameters(self, *, matrices: bool) -> Iterator[nn.Parameter]:
        return (tensor for tensor in self.model.parameters() if (tensor.ndim > 1) == matrices)

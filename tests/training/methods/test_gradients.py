"""The gradient of a whole training step equals finite differences of the loss, for many recipes.

Source, views, twin, pool, head and objectives take part, so a wrongly detached or wrongly trained tensor
shows here. Other tests check the values of the objectives.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.recipe_cases import raw_source
from tests.training.world_process import recipe_of, trainer_for

STEP = 1e-3
RECIPES = (
    *("consert", "ct", "ct-in-batch", "sg-opt", "is-bert", "quickthoughts", "defsent", "s-simcse"),
    *("promptbert-sup", "sbert-regression", "cosent", "augmented-sbert", "pairsupcon", "diffcse-transfer"),
    *("mlm-head", "cross-encoder", "cross-encoder-scores", "cross-encoder-nli", "distil-rerank"),
)


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return raw_source(tmp_path_factory.mktemp("raw"))


@pytest.mark.parametrize("name", RECIPES)
def test_the_gradient_of_a_step_is_that_of_finite_differences(name: str, raw: Path) -> None:
    changes: dict[str, Any] = {
        "optim.lr": 1e-30,
        "optim.head_lr": 1e-30,
        "optim.weight_decay": 0.0,
        "optim.warmup": 0.0,
    }
    if name.startswith("cross-encoder"):
        del changes["optim.head_lr"]  # The head is a part of the model.
    if name == "sg-opt":
        changes["head"] = {"name": "gelu", "width": 64}  # Instead of 4,096.
    recipe = recipe_of(name, changes, batch=8)
    trainer = trainer_for(raw, recipe, rows=8)
    trainer.step(0)
    learns = [each for each in trainer.model.parameters() if each.requires_grad and each.grad is not None]
    grads = [each.grad.clone() for each in learns if each.grad is not None]
    for seed in range(2):
        random = torch.Generator().manual_seed(seed)
        # Mostly along the gradient, so that the difference of the losses is larger than float32's rounding.
        along = [grad / grad.norm().clamp(min=1e-12) + 0.1 * noise(grad, random) for grad in grads]
        length = torch.sqrt(sum((each**2).sum() for each in along))
        expected = sum((grad * each).sum().item() for grad, each in zip(grads, along, strict=True))
        found = []
        for sign in (1, -1):
            for parameter, way in zip(learns, along, strict=True):
                parameter.data.add_(way / length, alpha=sign * STEP)
            found.append(trainer.step(0).loss)
            for parameter, way in zip(learns, along, strict=True):
                parameter.data.sub_(way / length, alpha=sign * STEP)
        assert (found[0] - found[1]) / (2 * STEP) == pytest.approx(expected / length.item(), rel=2e-2)


def noise(like: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    return torch.randn(like.shape, generator=random).div(math.sqrt(like.numel()))

"""The share of a training that is kept: weights between the base's and the trained ones.

    base ── 0.25 ── 0.5 ── 0.75 ── trained        each scored on searches that neither train nor judge

Fine-tuning on one task costs others, and a point on the way costs less than it loses (Wortsman et al. 2022,
WiSE-FT; Xiao et al. 2023, LM-Cocktail, arXiv 2311.13534, for embedding models).
"""

# ruff: noqa: N806  shapes live in names
from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.words.progress import Say
from training.evaluation.encoding import Choose
from training.methods.recipe import Recipe
from training.model.encoder import TrainedEncoder

SHARES = (0.25, 0.5, 0.75, 1.0)


def chosen_by(choose: Choose | None, recipe: Recipe, steps: int) -> Choose | None:
    """`choose`, where there are weights to choose between: not for a backbone, nor before a fitted map."""
    return choose if steps and recipe.result == "encoder" and not recipe.post else None


def keep_share(
    encoder: TrainedEncoder, base: TrainedEncoder, choose: Choose, say: Say
) -> tuple[float, dict[str, float]]:
    """Put the chosen weights into `encoder`; the share, and of each share the mean of its figures."""
    start = base.state_dict()
    trained = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    figures = {}
    for number, share in enumerate(SHARES, 1):
        say(f"scoring {share:.0%} of the training, {number} of {len(SHARES)}")
        encoder.load_state_dict(between(start, trained, share))
        figures[share] = choose(encoder.encode_queries, encoder.encode_documents)
    kept = smallest_good(figures)
    encoder.load_state_dict(between(start, trained, kept))
    return kept, {str(share): round(float(found.mean()), 4) for share, found in figures.items()}


def between(base: Mapping[str, Tensor], trained: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """The weights at `share` of the way from base to trained; what is no fraction is the trained one's."""
    return {
        name: torch.lerp(base[name], tensor, share) if tensor.is_floating_point() else tensor
        for name, tensor in trained.items()
    }


def smallest_good(figures: Mapping[float, NDArray[np.float64]]) -> float:
    """The smallest share that is not worse than the best by more than one standard error.

    figures: of the same searches for each share. The error is that of the mean difference from the best one,
    search by search (Breiman et al. 1984, the rule of one standard error): ties and noise keep the base.
    """
    best = max(sorted(figures), key=lambda share: float(figures[share].mean()))

    def good(share: float) -> bool:
        behind_N = figures[best] - figures[share]
        return bool(behind_N.mean() <= behind_N.std() / np.sqrt(len(behind_N)))

    return min(share for share in figures if good(share))

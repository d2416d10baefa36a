"""Interpolation between the weights of the base and the trained weights.

    base ── 0.25 ── 0.5 ── 0.75 ── trained        each scored on searches that neither train nor judge

Fine-tuning on one task costs quality on others. Interpolated weights lose less of it than they give up in
gain (Wortsman et al. 2022, WiSE-FT; Xiao et al. 2023, LM-Cocktail, arXiv 2311.13534, for embedding models).
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from models.progress import Say
from training.evaluation.encoding import Choose
from training.methods.recipe import Recipe
from training.model.encoder import TrainedEncoder

SHARES = (0.25, 0.5, 0.75, 1.0)


def chosen_by(choose: Choose | None, recipe: Recipe, steps: int) -> Choose | None:
    """Returns `choose` if the run has weights to interpolate, else None.

    Backbones and fitted maps have none. A student has none either: it begins as its teacher without some
    layers, which is not worth keeping.
    """
    shares = recipe.result == "encoder" and not recipe.post and recipe.student is None
    return choose if steps and shares else None


def keep_share(
    encoder: TrainedEncoder, base: TrainedEncoder, choose: Choose, say: Say
) -> tuple[float, dict[str, float]]:
    """Puts the chosen weights into `encoder`. Returns the share, and the mean score of each share."""
    start = base.state_dict()
    trained = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    figures = {}
    for number, share in enumerate(SHARES, 1):
        say(f"scoring {share:.0%} of the training, {number} of {len(SHARES)}")
        encoder.load_state_dict(between(start, trained, share))
        figures[share] = round(float(choose(encoder.encode_queries, encoder.encode_documents).mean()), 4)
    kept = best(figures)
    encoder.load_state_dict(between(start, trained, kept))
    return kept, {str(share): mean for share, mean in figures.items()}


def best(figures: Mapping[float, float]) -> float:
    """Returns the share with the highest mean; of equal shares the largest.

    The smallest of equal shares, and the smallest within one standard error, each kept a quarter of a
    training whose whole was worth far more (training/RESULTS.md).
    """
    return max(figures, key=lambda share: (figures[share], share))


def between(base: Mapping[str, Tensor], trained: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """Returns weights at `share` of the way from base to trained. Integer tensors are the trained ones."""
    return {
        name: torch.lerp(base[name], tensor, share) if tensor.is_floating_point() else tensor
        for name, tensor in trained.items()
    }

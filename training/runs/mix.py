"""Interpolate between the weights of the base and the trained weights, and choose the best share.

    base (0) ── 0.25 ── 0.5 ── 0.75 ── trained (1)        each scored on searches that neither train nor judge

Fine-tuning on one task reduces the quality on other tasks. Interpolated weights keep most of the gain and
lose less quality on other tasks (Wortsman et al. 2022, WiSE-FT; Xiao et al. 2023, LM-Cocktail, arXiv
2311.13534, for embedding models).
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from models.progress import Say
from training.evaluation.encoding import Choose
from training.methods.recipe import Recipe
from training.model.encoder import TrainedEncoder

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


def chosen_by(choose: Choose | None, recipe: Recipe, steps: int) -> Choose | None:
    """Returns `choose` if the trained weights can be interpolated with the base, or else None.

    They cannot if the recipe makes a backbone, has post-processors or trains no step. Students are not
    interpolated, because an untrained student, the teacher without some layers, is of no use.
    """
    shares = recipe.result == "encoder" and not recipe.post and recipe.student is None
    return choose if steps and shares else None


def keep_share(
    encoder: TrainedEncoder, base: TrainedEncoder, choose: Choose, say: Say
) -> tuple[float, dict[str, float]]:
    """Replaces the weights of `encoder` by a mix of them and the weights of the base.

    Tries each of SHARES, and keeps the share of trained weights with the best mean score.

    Returns:
        The chosen share of the trained weights (0: the base alone), and the mean score of each share.
    """
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
    """Returns the share with the highest mean score. If several are equal, the largest share.

    Two other rules, the smallest of equal shares and the smallest within one standard error, chose a quarter
    of a training that was worth far more in full (training/RESULTS.md).
    """
    return max(figures, key=lambda share: (figures[share], share))


def between(base: Mapping[str, Tensor], trained: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """Interpolates linearly: share 0 gives the base, 1 the trained weights. Integer tensors are not mixed."""
    return {
        name: torch.lerp(base[name], tensor, share) if tensor.is_floating_point() else tensor
        for name, tensor in trained.items()
    }

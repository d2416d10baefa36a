"""The share of a training that is kept: weights between the base's and the trained ones.

    base ── 0.25 ── 0.5 ── 0.75 ── trained        each scored on searches that neither train nor judge

Fine-tuning on one task costs others, and a point on the way costs less than it loses (Wortsman et al. 2022,
WiSE-FT; Xiao et al. 2023, LM-Cocktail, arXiv 2311.13534, for embedding models).
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
    """`choose`, where there are weights to choose between: not for a backbone, nor before a fitted map.

    Nor for a student, whose beginning is the teacher without some of its layers: that knows nothing to keep.
    """
    shares = recipe.result == "encoder" and not recipe.post and recipe.student is None
    return choose if steps and shares else None


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
        figures[share] = round(float(choose(encoder.encode_queries, encoder.encode_documents).mean()), 4)
    kept = best(figures)
    encoder.load_state_dict(between(start, trained, kept))
    return kept, {str(share): mean for share, mean in figures.items()}


def best(figures: Mapping[float, float]) -> float:
    """The share with the highest mean; of equal ones the largest.

    The smallest of equal ones, and the smallest within one standard error, were tried: each kept a quarter
    of a training whose whole was worth far more (training/RESULTS.md). The gate says if the best is good
    enough.
    """
    return max(figures, key=lambda share: (figures[share], share))


def between(base: Mapping[str, Tensor], trained: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """The weights at `share` of the way from base to trained; what is no fraction is the trained one's."""
    return {
        name: torch.lerp(base[name], tensor, share) if tensor.is_floating_point() else tensor
        for name, tensor in trained.items()
    }

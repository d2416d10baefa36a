"""The share of a training that is kept: weights between the base's and the trained ones.

    base ── 0.25 ── 0.5 ── 0.75 ── trained        each scored on searches that neither train nor judge

Fine-tuning on one task costs others, and a point on the way costs less than it loses (Wortsman et al. 2022,
WiSE-FT; Xiao et al. 2023, LM-Cocktail, arXiv 2311.13534, for embedding models).
"""

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
    figures: dict[float, NDArray[np.float64]] = {}
    for number, share in enumerate(SHARES, 1):
        say(f"scoring {share:.0%} of the training, {number} of {len(SHARES)}")
        encoder.load_state_dict(between(start, trained, share))
        figures[share] = choose(encoder.encode_queries, encoder.encode_documents)
    kept = most(figures)
    encoder.load_state_dict(between(start, trained, kept))
    return kept, {str(share): round(float(each.mean()), 4) for share, each in figures.items()}


def most(figures: Mapping[float, NDArray[np.float64]]) -> float:
    """The largest share that is as good as the best within one standard error of their difference.

    figures: of each share, (queries,). A fall within it is luck (Breiman and others 1984, section 3.4.3). The
    best alone was tried: over 22 queries of dev it kept a quarter of a training whose whole was worth three
    times as much on 609 others. The gate says if what is kept is good enough.
    """
    best = max(figures.values(), key=np.mean)
    return max(share for share, each in figures.items() if (best - each).mean() <= _error(best - each))


def _error(differences: NDArray[np.float64]) -> float:
    """The standard error of their mean; 0 of a single one."""
    count = len(differences)
    return float(differences.std(ddof=1) / count**0.5) if count > 1 else 0.0


def between(base: Mapping[str, Tensor], trained: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """The weights at `share` of the way from base to trained; what is no fraction is the trained one's."""
    return {
        name: torch.lerp(base[name], tensor, share) if tensor.is_floating_point() else tensor
        for name, tensor in trained.items()
    }

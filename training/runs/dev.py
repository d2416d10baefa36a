"""The dev score, by which a run chooses the best step.

Recipes for sentences use STS-B dev, 1500 pairs with a score from 0 to 5. Recipes for search use searches that
the retraining provides. Without such pairs or searches, the last step counts as the best. A run saves the
last step as well, because the dev score of the best step is too optimistic. `simile evaluate`
scores the test sets.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from training.errors import TrainingError
from training.evaluation.data import STSB, Pairs, load
from training.evaluation.encoding import Encode
from training.evaluation.sts import similarity

if TYPE_CHECKING:
    from training.methods.recipe import Recipe
    from training.model.encoder import TrainedEncoder

STSB_DEV, SEARCH_DEV = "stsb_dev", "search_dev"
# Scores an encoder in training. Higher is better; NaN means that it has no score.
Score = Callable[["TrainedEncoder"], float]


class Dev(NamedTuple):
    name: str
    score: Score


def build_dev(recipe: Recipe, data: Path | None, given: Score | None) -> Dev | None:
    """Returns the dev score of a recipe, or None if the last step counts as the best.

    A score that is `given` by the retraining takes precedence over STS-B dev.

    Raises:
        TrainingError: The evaluation data cannot be read.
    """
    pairs = read_dev(data)
    if given is not None:
        return Dev(SEARCH_DEV, given)
    if pairs is None or recipe.source.searches or recipe.result != "encoder":
        return None
    found = pairs
    return Dev(STSB_DEV, lambda encoder: spearman(encoder.encode, found))


def read_dev(data: Path | None) -> Pairs | None:
    """Reads DATA/stsb/dev.tsv.gz. Returns None if the file is missing.

    Raises:
        TrainingError: The file cannot be read, or `data` is not a folder.
    """
    if data is None:
        return None
    if not data.is_dir():
        raise TrainingError(f"{data} is not a folder of evaluation sets.")
    return load(STSB, data, "dev") if (data / STSB / "dev.tsv.gz").is_file() else None


def spearman(encode: Encode, pairs: Pairs) -> float:
    """Returns the rank correlation of cosines and scores, from -1 to 1. NaN if all cosines are equal."""
    score: float = similarity(pairs, encode)["spearman_all"]
    return score

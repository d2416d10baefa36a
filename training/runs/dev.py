"""The score that chooses the best step of a run.

For sentences it is STS-B dev, 1500 pairs with a score from 0 to 5. A recipe that learns to search is never
chosen by it: a retraining gives such a run searches of its own, and without any the last step is the best.
Choosing by labels uses them, so the last step is kept as well (methods, 4.8). Not here: the test sets and
what else is measured, which is the work of `python -m training evaluate`.
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
# Of an encoder in training; the higher the better, and NaN is no score.
Score = Callable[["TrainedEncoder"], float]


class Dev(NamedTuple):
    name: str
    score: Score


def dev_of(recipe: Recipe, data: Path | None, given: Score | None) -> Dev | None:
    """None where nothing says which step is the best. Raise TrainingError for data that cannot be read."""
    pairs = read_dev(data)
    if given is not None:
        return Dev(SEARCH_DEV, given)
    if pairs is None or recipe.source.searches:
        return None
    found = pairs
    return Dev(STSB_DEV, lambda encoder: spearman(encoder.encode, found))


def read_dev(data: Path | None) -> Pairs | None:
    """DATA/stsb/dev.tsv.gz; None when it is not there. Raise TrainingError when it cannot be read."""
    if data is None:
        return None
    if not data.is_dir():
        raise TrainingError(f"{data} is not a folder of evaluation sets.")
    return load(STSB, data, "dev") if (data / STSB / "dev.tsv.gz").is_file() else None


def spearman(encode: Encode, pairs: Pairs) -> float:
    """Rank correlation of cosine and score, from -1 to 1; NaN when every cosine is the same."""
    return similarity(pairs, encode).spearman_all

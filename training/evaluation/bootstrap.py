"""The paired bootstrap: how far a difference between two models may be luck, over what both were asked.

Queries or pairs are drawn again, with replacement, as many as there are; both models are scored on the same
draw. The middle of the differences over many draws is the interval (Efron and Tibshirani 1993, the percentile
interval; Koehn 2004 for two systems on one test set).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
ROUNDS = 1000
_SEED = 20_110_531  # any number; always the same, so that the same scores give the same verdict


class Interval(NamedTuple):
    low: float
    high: float


class Graded(NamedTuple):
    """Scored pairs of one set, (n,) each: what people said, and the cosines of both models."""

    gold: Floats
    before: Floats
    after: Floats


def of_mean(
    before: Sequence[float] | Floats, after: Sequence[float] | Floats, *, level: float, rounds: int = ROUNDS
) -> Interval:
    """The interval of the mean of `after` less that of `before`, over the same queries. NaN for none.

    level: how often the interval holds the true difference, as 0.95.
    """
    difference = np.asarray(after, np.float64) - np.asarray(before, np.float64)
    n = len(difference)
    if not n:
        return Interval(float("nan"), float("nan"))
    random = np.random.default_rng(_SEED)
    # A draw of n with replacement, as how often each is drawn.
    draws = random.multinomial(n, np.full(n, 1 / n), size=rounds)
    return _interval(draws @ difference / n, level)


def of_spearman(sets: Sequence[Graded], *, level: float, rounds: int = ROUNDS) -> Interval:
    """The interval of the mean over `sets` of Spearman's correlation; pairs are drawn within a set."""
    from scipy.stats import rankdata  # noqa: PLC0415  a second

    random = np.random.default_rng(_SEED)
    totals = np.zeros(rounds)
    for gold, before, after in sets:
        for at in range(rounds):
            drawn = random.integers(len(gold), size=len(gold))
            people = rankdata(gold[drawn])
            totals[at] += _correlation(people, rankdata(after[drawn]))
            totals[at] -= _correlation(people, rankdata(before[drawn]))
    return _interval(totals / max(1, len(sets)), level)


def _interval(differences: Floats, level: float) -> Interval:
    low, high = np.quantile(differences, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def _correlation(x: Floats, y: Floats) -> float:
    """The correlation of ranks; 0 where one side is constant, which a draw of few pairs can be."""
    a, b = x - x.mean(), y - y.mean()
    lengths = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / lengths) if lengths else 0.0

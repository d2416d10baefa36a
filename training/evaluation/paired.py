"""Statistics of paired differences over queries: intervals, detectable gains, and repeated tests.

    differences, one for each query ─▶ Spread ─▶ interval, smallest detectable gain, queries needed

Queries that share an answer are not independent, so they form a cluster. The standard error is that of
clustered data (Liang and Zeger 1986). Intervals are from Student's t, with one degree of freedom less than
there are clusters. Smucker, Allan and Carterette (2007) found that Student's test, randomization and the
bootstrap agree.

Each retraining tests its candidate on the same queries again. Among many candidates, one may look better by
chance. Therefore test number k on the same queries has the significance level LEVEL / √k. The table has the
number of candidates that pass in a hundred nights although they are no better: the sum of the levels, and a
simulation with 200 queries (2,000 times a hundred nights).

                              one candidate a night    three, as many as `auto` has
    the same queries          0.19, simulated 0.17     0.33, simulated 0.27
    new queries each night    1.0, simulated 1.0       2.3, simulated 2.1

With four candidates a night, as many as `auto` has if the vocabulary does not suit a part of the text, the
sums are 0.39 and 2.8.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.01  # one-sided, of a first test: one false promotion in a hundred nights of one candidate each
POWER = 0.8  # probability to detect the least detectable gain: four nights of five


class Interval(NamedTuple):
    low: float
    high: float


class Spread(NamedTuple):
    mean: float
    error: float  # standard error of the mean
    queries: int
    pieces: int  # pieces of evidence: groups of queries

    def half(self, level: float) -> float:
        """Returns half the width of the interval at a one-sided `level`. Infinite for a single cluster."""
        if self.pieces < 2:
            return math.inf
        from scipy.stats import t  # noqa: PLC0415  a second

        return float(t.isf(level, self.pieces - 1)) * self.error

    def interval(self, level: float) -> Interval:
        """Returns the interval of the mean at a one-sided `level`."""
        half = self.half(level)
        return Interval(self.mean - half, self.mean + half)

    def least_gain(self, level: float) -> float:
        """Returns the smallest true gain that would be significant at `level` with probability POWER."""
        return self.half(level) + NormalDist().inv_cdf(POWER) * self.error

    def enough(self, level: float) -> int | None:
        """Returns how many queries would make this gain significant.

        None without a gain, or for a single cluster.
        """
        half = self.half(level)
        if self.mean <= 0 or not math.isfinite(half):
            return None
        return math.ceil(self.queries * (half / self.mean) ** 2)


def spread(
    before: Sequence[float] | NDArray[np.float64],
    after: Sequence[float] | NDArray[np.float64],
    groups: Sequence[object] | NDArray[np.int64] | None = None,
) -> Spread:
    """Computes the mean difference `after` - `before` over queries, with its standard error.

    Args:
        before: Scores of the queries by one model.
        after: Scores of the same queries by the other model.
        groups: Cluster of each query. None means that all queries are independent.

    """
    differences = np.asarray(after, np.float64) - np.asarray(before, np.float64)
    count = len(differences)
    labels = np.arange(count) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    pieces = int(labels.max()) + 1 if count else 0
    mean = float(differences.mean()) if count else math.nan
    sums = np.bincount(labels, weights=differences - mean) if count else np.zeros(0)
    error = math.sqrt(float(sums @ sums) * pieces / (pieces - 1)) / count if pieces > 1 else math.inf
    return Spread(mean, error, count, pieces)


def compute_level(looks: float) -> float:
    """Returns the one-sided significance level of test number `looks` on the same queries, from 1."""
    return LEVEL / math.sqrt(max(1.0, looks))

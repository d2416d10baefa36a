"""Paired differences over queries: their interval, the gain that could have been seen, and repeated looks.

    differences, one for each query ─▶ Spread ─▶ interval, least gain, queries that would settle it

Queries that share an answer are one piece of evidence: the standard error is that of clusters (Liang and
Zeger 1986), and the interval is Student's with as many degrees of freedom as there are clusters, less one.
Smucker, Allan and Carterette (2007) found that Student's test, randomization and the bootstrap agree.

Every night asks the same queries again, and sooner or later one of many candidates looks better by luck. So
the k-th look has the level LEVEL / √k. In a hundred nights so many candidates that are no better pass, by
the sum of the levels, and with 200 queries in a simulation (2,000 times a hundred nights):

                          one candidate a night    three, as many as `auto` has
    the same queries      0.19, simulated 0.17     0.33, simulated 0.27
    new ones each night   1.0, simulated 1.0       2.3, simulated 2.1

With four, as where a part of the text cannot be read, the sums are 0.39 and 2.8.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

LEVEL = 0.01  # one-sided, of a first look: one false promotion in a hundred nights of one candidate each
POWER = 0.8  # of the least gain that would have been seen: in four nights of five


class Spread(NamedTuple):
    mean: float
    error: float  # standard error of the mean
    queries: int
    pieces: int  # of evidence: groups of queries

    def half(self, level: float) -> float:
        """Half the width of the interval; the true mean is beyond each end with `level`. Infinite for one."""
        if self.pieces < 2:
            return math.inf
        from scipy.stats import t  # noqa: PLC0415  a second

        return float(t.isf(level, self.pieces - 1)) * self.error

    def least_gain(self, level: float) -> float:
        """The least true gain that shows at that level with POWER."""
        return self.half(level) + NormalDist().inv_cdf(POWER) * self.error

    def enough(self, level: float) -> int | None:
        """Queries with which a gain of this size would show; None where there is no gain."""
        half = self.half(level)
        if self.mean <= 0 or not math.isfinite(half):
            return None
        return math.ceil(self.queries * (half / self.mean) ** 2)


def spread(before: Sequence[float], after: Sequence[float], groups: Sequence[int] | None = None) -> Spread:
    """The mean of `after` less `before`, over the same queries. groups: of each query; None: each its own."""
    differences = np.asarray(after, np.float64) - np.asarray(before, np.float64)
    count = len(differences)
    labels = np.arange(count) if groups is None else np.unique(groups, return_inverse=True)[1]
    pieces = int(labels.max()) + 1 if count else 0
    mean = float(differences.mean()) if count else math.nan
    sums = np.bincount(labels, weights=differences - mean) if count else np.zeros(0)
    error = math.sqrt(float(sums @ sums) * pieces / (pieces - 1)) / count if pieces > 1 else math.inf
    return Spread(mean, error, count, pieces)


def compute_level(looks: float) -> float:
    """One-sided level of a look; looks: the number of this one at the same queries, from 1."""
    return LEVEL / math.sqrt(max(1.0, looks))

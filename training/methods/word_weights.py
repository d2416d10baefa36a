"""Weights of words by how often the corpus has them, for vectors that are means of a word table.

    corpus ─▶ counts of the ids ─▶ a weight for each ─▶ the rows of the table, times it

The mean of weighted rows is then the weighted mean; its length cancels in a cosine.

    sif     a / (a + p)                            Arora, Liang and Ma 2017
    usif    the same with an `a` of the counts     Ethayarajh 2018
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from training.methods.ranges import AboveZero, Count

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sif:
    """Arora, Liang and Ma 2017, section 3: a / (a + p(w)); their `a` is from 1e-4 to 1e-3."""

    a: AboveZero = 1e-3
    name: Literal["sif"] = "sif"

    def weights(self, counts: NDArray[np.int64]) -> Floats:
        """counts: of each id in the corpus. (ids,)"""
        weights: Floats = self.a / (self.a + counts / counts.sum())
        return weights


@dataclass(frozen=True)
class Usif:
    """Ethayarajh 2018, section 3.3: a / (a/2 + p(w)) with a = (1 - share) / (share * V/2).

    share: of the V words of the corpus, those with p(w) > 1 - (1 - 1/V)^words. words: of a sentence; 11.
    """

    words: Count = 11
    name: Literal["usif"] = "usif"

    def weights(self, counts: NDArray[np.int64]) -> Floats:
        """counts: of each id in the corpus. (ids,)"""
        p = counts / counts.sum()
        known = int((counts > 0).sum())
        # At least one word counts as frequent: with none, every weight would be without bound.
        share = max((p > 1 - (1 - 1 / known) ** self.words).sum(), 1) / known
        a = (1 - share) / (share * known / 2)
        weights: Floats = a / (a / 2 + p)
        return weights

"""Gains of a candidate beyond what luck explains: the paired bootstrap over what both answered.

A gain is looked for in the searches over the team's own text; where there is none, in the mean of the
similarity sets. Several are looked at together, so each has a wider interval (Bonferroni): a candidate that
is no better shows one in about one of forty retrainings at most.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from training.evaluation.bootstrap import Graded, of_mean, of_spearman
from training.retraining.gate.verdict import EACH, SAMPLES, Gain, Scores, measures

_LEVEL = 0.95  # of all intervals together


def gains(candidate: Scores, active: Scores) -> tuple[Gain, ...]:
    """Gains of each search, or that of the mean of the similarity sets; empty when neither has samples."""
    return tuple(_own(candidate, active)) or tuple(_similarity(candidate, active))


def _own(candidate: Scores, active: Scores) -> Iterator[Gain]:
    before, after = (measures(side.get("own") or {}) for side in (active, candidate))
    common = [name for name in before if name in after and len(before[name][EACH]) == len(after[name][EACH])]
    for name in common:
        sides = before[name][EACH], after[name][EACH]
        interval = of_mean(*sides, level=1 - (1 - _LEVEL) / len(common))
        yield Gain(f"own {name}", float(np.mean(sides[1]) - np.mean(sides[0])), *interval)


def _similarity(candidate: Scores, active: Scores) -> Iterator[Gain]:
    """The gain over the sets whose pairs both models have answered."""
    before, after = active.get(SAMPLES) or {}, candidate.get(SAMPLES) or {}
    common = [name for name in before if name in after and len(before[name][1]) == len(after[name][1])]
    if common:
        sets = [Graded(before[name][0], before[name][1], after[name][1]) for name in common]
        figures = [scores["sts"][name]["spearman_all"] for scores in (active, candidate) for name in common]
        if None not in figures:
            half = len(common)
            difference = (sum(figures[half:]) - sum(figures[:half])) / half
            yield Gain(f"mean of {half}", difference, *of_spearman(sets, level=_LEVEL))

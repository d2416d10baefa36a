"""Compute the gains of a candidate, and choose the searches on which a gain is required.

With enough judged queries, the gain is that on "questions as they come" (ranking/cross_validation.py).
Otherwise, it is that on searches made from text: titles and known items, each with a part of the significance
level (Bonferroni). Without any search, it is that in the mean of the similarity sets. Too few judged queries
cannot show a gain, but they must not get worse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from training.evaluation.paired import compute_level, spread
from training.evaluation.significance import Graded, of_spearman
from training.ranking.cross_validation import COMING, NEW
from training.ranking.fitting import MIN_QUERIES
from training.retraining.gate.verdict import EACH, GROUPS, KEYS, SAMPLES, Gain, Scores

Floats = Sequence[float] | NDArray[np.float64]
Groups = Sequence[object] | NDArray[np.int64] | None


def gains(candidate: Scores, active: Scores, looks: float = 1.0) -> tuple[Gain, ...]:
    """Computes the gains of a candidate on the searches of `deciding`, or else on the similarity sets.

    Args:
        candidate: Scores of the candidate.
        active: Scores of the active version.
        looks: Which test on the same queries this is, from 1 (paired.compute_level).

    Returns:
        The gains. Empty if both versions have scores on neither searches nor similarity sets.

    """
    level = compute_level(looks)
    return tuple(_own(candidate, active, level)) or tuple(_similarity(candidate, active, level))


def deciding(own: Scores) -> list[str]:
    """Returns the names of the searches on which a gain is required."""
    if COMING in own and own[COMING]["queries"] >= MIN_QUERIES:
        return [COMING]
    return [name for name in own if name not in {NEW, COMING}]


def rests_on_one_key(candidate: Scores, active: Scores) -> Iterator[str]:
    """Yields each API key without whose queries the gain of the judged queries would disappear."""
    both = [side.get("own") or {} for side in (active, candidate)]
    before, after = (own.get(COMING) for own in both)
    if before is None or after is None or len(before[EACH]) != len(after[EACH]):
        return
    keys, differences = before.get(KEYS, ()), np.subtract(after[EACH], before[EACH])
    for name in sorted({*keys} - {None}):
        others = differences[[key != name for key in keys]]
        if differences.mean() > 0 and not (len(others) and others.mean() > 0):
            yield name


def _own(candidate: Scores, active: Scores, level: float) -> Iterator[Gain]:
    before, after = active.get("own") or {}, candidate.get("own") or {}
    both = [(name, before[name][EACH], after[name][EACH]) for name in deciding(before) if name in after]
    common = [(name, was, now) for name, was, now in both if len(was) == len(now)]
    for name, was, now in common:
        yield build_gain(f"own {name}", was, now, before[name].get(GROUPS), level / len(common))


def build_gain(name: str, before: Floats, after: Floats, groups: Groups, level: float) -> Gain:
    """Returns the gain between two arrays of scores of the same queries. See `spread` for `groups`."""
    found = spread(before, after, groups)
    ends, means = found.interval(level), (float(np.mean(before)), float(np.mean(after)))
    return Gain(name, found.mean, *ends, *means, found.queries, found.least_gain(level), found.enough(level))


def _similarity(candidate: Scores, active: Scores, level: float) -> Iterator[Gain]:
    """Yields the gain in the mean of the similarity sets that both versions were scored on."""
    before, after = active.get(SAMPLES) or {}, candidate.get(SAMPLES) or {}
    common = [name for name in before if name in after and len(before[name][1]) == len(after[name][1])]
    if common:
        sets = [Graded(before[name][0], before[name][1], after[name][1]) for name in common]
        sides = [[scores["sts"][name]["spearman_all"] for name in common] for scores in (active, candidate)]
        if None not in (*sides[0], *sides[1]):
            was, now = (float(np.mean(side)) for side in sides)
            low, high = of_spearman(sets, level=1 - 2 * level)
            yield Gain(f"mean of {len(common)}", now - was, low, high, was, now, None, None, None)

"""Gains of a candidate beyond luck, and the searches that decide.

Labelled queries decide where there are enough: what people asked and called relevant. Else titles,
neighbours and known items stand in for them, each with its part of the level (Bonferroni); where there is no
search at all, the mean of the similarity sets. A few labelled queries can hardly show a gain, so they only
guard. A query's figure is the mean of dense and hybrid search, so one gain is looked for in what people use,
and not one in each mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from training.evaluation.significance import Graded, of_spearman
from training.retraining.gate.paired import compute_level, spread
from training.retraining.gate.verdict import (
    CLICKED,
    EACH,
    GROUPS,
    HYBRID,
    JUDGED,
    KEYS,
    SAMPLES,
    SERVED,
    TOO_FEW_JUDGED,
    Gain,
    Scores,
)


def gains(candidate: Scores, active: Scores, looks: float = 1.0) -> tuple[Gain, ...]:
    """Gains of the searches that decide, or that of the mean of the similarity sets; empty without either.

    looks: the number of this look at the same queries (paired.compute_level).
    """
    level = compute_level(looks)
    return tuple(_own(candidate, active, level)) or tuple(_similarity(candidate, active, level))


def deciding(own: Scores) -> list[str]:
    """The names of the searches that a gain is looked for in."""
    return [JUDGED] if JUDGED in own else [name for name in own if name != TOO_FEW_JUDGED]


def rests_on_one_key(candidate: Scores, active: Scores) -> Iterator[str]:
    """The keys without whose queries the judged ones, or those that were clicked, gain nothing."""
    both = [side.get("own") or {} for side in (active, candidate)]
    before, after = (own.get(JUDGED) or own.get(CLICKED) for own in both)
    if before is None or after is None or len(before[EACH]) != len(after[EACH]):
        return
    keys = before.get(KEYS) or [None] * len(before[EACH])
    differences = np.subtract(list_each(after), list_each(before))
    for name in sorted({key for key in keys if key is not None}):
        others = differences[[key != name for key in keys]]
        if differences.mean() > 0 and not (len(others) and others.mean() > 0):
            yield name


def _own(candidate: Scores, active: Scores, level: float) -> Iterator[Gain]:
    before, after = active.get("own") or {}, candidate.get("own") or {}
    common = [
        name
        for name in deciding(before)
        if name in after and len(before[name][EACH]) == len(after[name][EACH])
    ]
    for name in common:
        was, now = list_each(before[name]), list_each(after[name])
        found = spread(was, now, before[name].get(GROUPS))
        part = level / len(common)
        half = found.half(part)
        yield Gain(
            f"own {name}",
            found.mean,
            found.mean - half,
            found.mean + half,
            float(np.mean(was)),
            float(np.mean(now)),
            found.queries,
            found.least_gain(part),
            found.enough(part),
        )


def list_each(figures: Scores) -> Sequence[float]:
    """nDCG@10 of every query as it is served, else the mean of dense and hybrid search."""
    if SERVED in figures:
        return list(figures[SERVED][EACH])
    modes: list[Any] = [figures[EACH], *([figures[HYBRID][EACH]] if HYBRID in figures else [])]
    each: list[float] = np.mean(modes, axis=0).tolist()
    return each


def _similarity(candidate: Scores, active: Scores, level: float) -> Iterator[Gain]:
    """The gain over the sets whose pairs both models have answered."""
    before, after = active.get(SAMPLES) or {}, candidate.get(SAMPLES) or {}
    common = [name for name in before if name in after and len(before[name][1]) == len(after[name][1])]
    if common:
        sets = [Graded(before[name][0], before[name][1], after[name][1]) for name in common]
        sides = [[scores["sts"][name]["spearman_all"] for name in common] for scores in (active, candidate)]
        if None not in (*sides[0], *sides[1]):
            was, now = (float(np.mean(side)) for side in sides)
            low, high = of_spearman(sets, level=1 - 2 * level)
            yield Gain(f"mean of {len(common)}", now - was, low, high, was, now, None, None, None)

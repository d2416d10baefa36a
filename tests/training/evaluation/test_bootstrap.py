"""Intervals of a difference: as wide as theory says, paired, and the same every time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm, spearmanr

from training.evaluation.significance import Graded, of_mean, of_spearman


def test_the_interval_of_a_mean_is_that_of_the_normal_law() -> None:
    """For many values: mean ± 1.96 standard deviations / sqrt(n)."""
    rng = np.random.default_rng(3)
    before = rng.uniform(0, 1, 400)
    difference = rng.normal(0.02, 0.1, 400)
    low, high = of_mean(before, before + difference, level=0.95, rounds=20_000)
    error = difference.std() / 20
    assert low == pytest.approx(difference.mean() + norm.ppf(0.025) * error, abs=0.0003)
    assert high == pytest.approx(difference.mean() + norm.ppf(0.975) * error, abs=0.0003)


def test_a_constant_difference_leaves_no_doubt() -> None:
    assert of_mean([0.0, 0.5, 0.75], [0.25, 0.75, 1.0], level=0.95) == (0.25, 0.25)
    assert math.isnan(of_mean([], [], level=0.95).low)


def test_a_higher_level_is_wider_and_the_same_scores_give_the_same_interval() -> None:
    rng = np.random.default_rng(4)
    before, after = rng.uniform(0, 1, (2, 100))
    one = of_mean(before, after, level=0.95)
    wider = of_mean(before, after, level=0.99)
    assert wider.low < one.low < one.high < wider.high
    assert one == of_mean(before, after, level=0.95)


@pytest.mark.long
def test_the_interval_of_spearman_is_that_of_differences_drawn_one_by_one() -> None:
    rng = np.random.default_rng(5)
    sets = []
    for n in (60, 90):
        gold = rng.integers(0, 6, n).astype(float)
        sets.append(Graded(gold, gold + rng.normal(0, 3, n), gold + rng.normal(0, 2, n)))
    low, high = of_spearman(sets, level=0.9, rounds=1500)
    draw = np.random.default_rng(99)
    found = []
    for _ in range(1500):
        total = 0.0
        for gold, before, after in sets:
            at = draw.choice(len(gold), len(gold))
            total += spearmanr(after[at], gold[at]).statistic - spearmanr(before[at], gold[at]).statistic
        found.append(total / 2)
    assert low == pytest.approx(np.quantile(found, 0.05), abs=0.025)
    assert high == pytest.approx(np.quantile(found, 0.95), abs=0.025)


def test_a_model_against_itself_has_no_difference() -> None:
    gold = np.arange(20.0)
    cosine = np.sin(gold)
    assert of_spearman([Graded(gold, cosine, cosine)], level=0.95, rounds=50) == (0.0, 0.0)
    constant = np.ones(20)
    assert of_spearman([Graded(gold, constant, constant)], level=0.95, rounds=5) == (0.0, 0.0)

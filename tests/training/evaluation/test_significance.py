"""Differences between two models, with their bootstrap intervals."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm, spearmanr

from tests.tiny import tiny_source as make_tiny_source
from tests.training.evaluation.beir import write_collection
from tests.training.evaluation.pairs import small_data
from training.__main__ import main
from training.evaluation.significance import Graded, Measured, differences, of_mean, of_spearman, table

RANDOM = np.random.default_rng(0)
GOLD = RANDOM.uniform(0, 5, 120)


def cosines(noise: float, seed: int) -> np.ndarray:
    found: np.ndarray = GOLD / 5 + np.random.default_rng(seed).normal(size=120) * noise
    return found


def test_a_clear_difference_is_told_from_luck() -> None:
    before = Measured({"stsb": (GOLD, cosines(0.5, 1)), "sickr": (GOLD, cosines(0.5, 2))}, {})
    after = Measured({"stsb": (GOLD, cosines(0.1, 3)), "sickr": (GOLD, cosines(0.5, 4))}, {})
    stsb, sickr, mean = differences(before, after)
    assert (stsb.name, sickr.name, mean.name) == ("STS-B", "SICK-R", "mean of 2")
    assert stsb.before == pytest.approx(spearmanr(before.pairs["stsb"][1], GOLD).statistic)
    assert mean.after == pytest.approx((stsb.after + sickr.after) / 2)
    assert [each.verdict for each in (stsb, sickr, mean)] == ["better", "may be luck", "better"]
    other_way = (Measured({"stsb": each.pairs["stsb"]}, {}) for each in (after, before))
    assert [each.verdict for each in differences(*other_way)] == ["worse"]
    for each in (stsb, sickr, mean):
        assert each.interval.low < each.after - each.before < each.interval.high
    (line,) = [line for line in table([stsb]).splitlines() if line.startswith("STS-B")]
    assert line.split()[-1] == "better"
    assert line.split()[1] == f"{100 * stsb.before:.2f}"


def test_searches_are_compared_query_by_query() -> None:
    before = Measured({}, {"cranfield": [0.5, 0.1] * 40})
    after = Measured({}, {"cranfield": [0.6, 0.2] * 40})
    (found,) = differences(before, after)
    assert found.after - found.before == pytest.approx(0.1)
    assert found.interval == pytest.approx((0.1, 0.1)), "every query gains as much"
    (same,) = differences(before, before)
    assert same.verdict == "may be luck"


def test_a_set_of_another_language_stands_beside_the_mean() -> None:
    pairs = {key: (GOLD, cosines(0.5, at)) for at, key in enumerate(("stsb", "sickr", "korsts"))}
    found = list(differences(Measured(pairs, {}), Measured(pairs, {})))
    assert [each.name for each in found] == ["STS-B", "SICK-R", "KorSTS", "mean of 2"]
    assert found[-1].before == pytest.approx((found[0].before + found[1].before) / 2)


@pytest.mark.long
def test_two_versions_are_compared_by_their_names(
    tmp_path: Path, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = small_data(tmp_path / "data")
    shutil.copytree(data / "stsb", data / "korsts")
    write_collection(data / "tiny", {"a": ("", "the cat"), "b": ("", "a dog")}, {"q": "cat"}, [("q", "a", 1)])
    second = str(make_tiny_source(tmp_path / "other", seed=5))
    given = ["significance", version, second, "--data", str(data), "--suite"]
    assert main([*given, "sts,retrieval"]) == 0
    found = [re.split(r"  +", line) for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[0] for row in found] == [
        "STS12",
        "STS-B",
        "SICK-R",
        "KorSTS",
        "mean of 3",
        "tiny",
        "tiny hybrid",
    ]
    low, high = (float(end) for end in found[0][4].strip("[]").split(", "))
    assert low <= float(found[0][3]) <= high
    items = [int(row[5]) for row in found]
    assert items[5:] == [1, 1]
    assert items[4] == sum(items[:3])
    assert main([*given, "transfer"]) == 1
    assert "There is no suite 'transfer'. There are: sts, retrieval." in capsys.readouterr().err


def test_the_interval_of_a_mean_is_that_of_the_normal_law() -> None:
    """For many values, the 95% interval is the mean ± 1.96 standard deviations / sqrt(n)."""
    rng = np.random.default_rng(3)
    before = rng.uniform(0, 1, 400)
    difference = rng.normal(0.02, 0.1, 400)
    low, high = of_mean(before, before + difference, level=0.95)
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

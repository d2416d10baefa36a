"""The rules that decide whether a ranking is published."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

pytest.importorskip("lightgbm", reason="needs the extra train")

from tests.training.ranking.judged import judged_queries, with_shuffled_labels
from training.ranking.cross_validation import COMING, NEW, Comparison, Rows, cross_validate
from training.ranking.examples import Example
from training.ranking.fitting import Procedure, fit
from training.ranking.rules import describe, judge_added, judge_first, judge_judgments, judge_refit

LINEAR = partial(fit, prior={"hybrid": 1.5}, procedure=Procedure(None, trees=False))


def rows_with(new: float, coming: float, spread: float = 0.2, count: int = 100) -> Rows:
    """Returns comparisons of `count` queries with the mean gains `new` and `coming`."""
    random = np.random.default_rng(0)
    noise = random.normal(size=count)
    noise = spread * (noise - noise.mean()) / noise.std()
    before, ranks = np.full(count, 0.5), np.ones((count, 2), np.int64)
    return {
        name: Comparison(np.full(count, 0.1), before, before + gain + noise, np.arange(count), ranks)
        for name, gain in ((NEW, new), (COMING, coming))
    }


@pytest.mark.parametrize(
    ("new", "coming", "published"),
    [(0.0, 0.05, True), (-0.03, 0.05, True), (-0.05, 0.05, False), (0.05, 0.02, False)],
    ids=["a gain", "an uncertain loss of new ones", "a certain loss of new ones", "an unlikely gain"],
)
def test_the_first_ranking_needs_a_likely_gain_and_no_certain_loss(
    new: float, coming: float, published: bool
) -> None:
    assert (judge_first(rows_with(new, coming)) == []) == published


def test_with_few_queries_a_gain_must_be_certain() -> None:
    """The 80 % interval is from 1.0 to 6.2 points, and the 95 % interval begins below 0."""
    [reason] = judge_first(rows_with(0.0, 0.036, count=99))
    assert "not certain, as it must be with fewer than 100" in reason
    assert judge_first(rows_with(0.0, 0.036)) == []
    assert judge_first(rows_with(0.0, 0.06, count=99)) == []


@pytest.mark.parametrize(
    ("against", "published"), [((0.0, -0.03), True), ((-0.05, 0.0), False), ((0.0, -0.05), False)]
)
def test_a_refit_must_not_certainly_lose(against: tuple[float, float], published: bool) -> None:
    assert (judge_refit(rows_with(0.0, 0.05), rows_with(*against)) == []) == published


@pytest.mark.parametrize("rows", [(-0.05, 0.05), (0.05, 0.02)])
def test_a_refit_must_still_gain_against_hybrid(rows: tuple[float, float]) -> None:
    """Wrong judgments harm the procedure of the active ranking in the same folds as much."""
    assert judge_refit(rows_with(*rows), rows_with(0.05, 0.05))


@pytest.mark.parametrize(
    ("new", "coming", "used", "chosen"),
    [
        (0.0, 0.06, False, True),
        (-0.03, 0.06, False, True),
        (-0.05, 0.06, False, False),
        (0.06, 0.01, False, False),
        (0.0, -0.06, True, False),
        (0.0, 0.045, False, False),
        (0.0, 0.045, True, True),
    ],
    ids=[
        "a gain",
        "an uncertain loss of new ones",
        "a certain loss of new ones",
        "no gain of recurring ones",
        "a loss",
        "a gain that is too uncertain to add it",
        "the same gain keeps it",
    ],
)
def test_late_interaction_needs_a_certain_gain(new: float, coming: float, used: bool, chosen: bool) -> None:
    found, said = judge_added(rows_with(new, coming), "Late interaction", used=used)
    assert found == chosen
    assert said.startswith("Late interaction is used: " if chosen else "Late interaction is not used: ")
    assert f"{100 * coming:+.1f} points" in said


@pytest.mark.parametrize("seed", range(4))
def test_shuffled_labels_do_not_pass(seed: int) -> None:
    examples = with_shuffled_labels(judged_queries(60, candidates=20, seed=seed), seed)
    rows = cross_validate(examples, LINEAR)
    assert judge_first(rows)
    assert judge_judgments(rows)


def test_true_labels_pass_and_are_described() -> None:
    def with_good_hybrid(example: Example) -> Example:
        """Moves the answer to one of the first ten places of the hybrid order."""
        [answer] = example.relevant
        ids = [id for id in example.ids if id != answer]
        place = example.ids.index(answer)
        at = int(example.vector[0] * 1000) % 10
        ids.insert(at, answer)
        features = np.insert(np.delete(example.features, place, axis=0), at, example.features[place], axis=0)
        features[:, 3] = np.linspace(1, 0, len(ids))
        return example._replace(ids=ids, features=features)

    examples = [*map(with_good_hybrid, judged_queries(60))]
    rows = cross_validate(examples, LINEAR)
    assert judge_first(rows) == []
    first, both, weights = describe(rows, LINEAR(examples))
    before, after = ((rows[COMING].ranks == 1).sum(axis=0)).tolist()
    assert first == f"A judged document is first for {after} of 60 queries ({before} before)."
    for name in (NEW, COMING):
        scores = f"from {rows[name].before.mean():.3f} to {rows[name].after.mean():.3f} on {name} ("
        assert scores in both
    assert both.count("better)") == 2
    assert weights.startswith("Weights: ")
    assert "cover +" in weights

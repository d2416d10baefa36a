"""Folds, and the comparison of a ranking with the hybrid order."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest

pytest.importorskip("lightgbm", reason="needs the extra train")

from tests.training.ranking.judged import judged_queries
from training.evaluation.significance import of_mean
from training.ranking.cross_validation import (
    COMING,
    NEW,
    Comparison,
    choose,
    cross_validate,
    draw_folds,
    learn,
    pays,
    predict,
)
from training.ranking.fitting import Procedure, fit

PRIOR = {"hybrid": 1.5}
LINEAR = partial(fit, prior=PRIOR, procedure=Procedure(None, trees=False))
REMEMBERING = partial(fit, prior=PRIOR, procedure=Procedure(0.7, trees=False))


@pytest.mark.parametrize("documents", [40, 4000])
def test_no_training_query_has_an_answer_of_a_new_question(documents: int) -> None:
    """With 40 documents, groups are divided and training queries lose answers. With 4,000, none is."""
    examples = judged_queries(120, documents=documents, candidates=20, repeats=2)
    tested: list[int] = []
    for fold in draw_folds(examples, NEW):
        answers = {id for at in fold.test for id in examples[at].relevant}
        assert not answers & {id for each in fold.train for id in each.relevant}
        assert len(fold.train) + len(fold.test) == len(examples)
        tested += fold.test
    assert sorted(tested) == [*range(len(examples))]


def test_answers_recur_in_questions_as_they_come() -> None:
    examples = judged_queries(120, repeats=3)
    for fold in draw_folds(examples, COMING):
        answers = {id for at in fold.test for id in examples[at].relevant}
        assert answers & {id for each in fold.train for id in each.relevant}


def test_a_ranking_that_knows_more_than_the_hybrid_order_gains() -> None:
    examples = judged_queries(100)
    found = cross_validate(examples, LINEAR)[NEW]
    assert len(found.before) == 100
    assert found.interval().low > 0.1
    first = (found.ranks == 1).sum(axis=0)
    assert first[1] > first[0]


def test_memory_helps_where_questions_recur_and_not_for_new_ones() -> None:
    examples = judged_queries(120, repeats=3)
    rows = cross_validate(examples, REMEMBERING)
    coming, new = rows[COMING], rows[NEW]
    without = cross_validate(examples, LINEAR)[COMING]
    assert coming.gain > without.gain + 0.05
    assert new.gain < coming.gain - 0.05


def test_an_unclicked_hit_takes_up_a_rank_as_far_as_it_was_examined() -> None:
    [example] = judged_queries(1, candidates=12)
    scores = np.random.default_rng(2).normal(size=12)
    answer = int(np.argmax(example.gains))
    scores[answer] = np.sort(scores)[-4]  # The fourth or fifth of all.
    rank = int(np.sum(scores > scores[answer])) + 1
    assert example.score(scores) == pytest.approx(1 / np.log2(rank + 1))
    for seen in (1.0, 0.5, 0.0):
        expected = 1 + seen * (rank - 1)
        found = example._replace(seen=np.full(12, seen)).score(scores)
        assert found == pytest.approx(1 / np.log2(expected + 1))
    scores[answer] = -10
    assert example.score(scores) == example._replace(seen=np.ones(12)).score(scores) == 0


def test_the_gain_of_more_judgments_continues_the_learning_curve() -> None:
    said = predict(judged_queries(40, candidates=10), PRIOR)
    *gains, more, low, high = map(float, re.findall(r"[-+]\d+\.\d", said))
    assert 0 < gains[0] < gains[2]
    assert low <= more <= high
    slope, _ = np.polyfit(np.log([20, 30, 40]), gains, 1)
    assert more == pytest.approx(slope * np.log(90 / 40), abs=0.3), "figures are rounded to 0.1"
    assert "50 more" in said
    assert "not certain" in said


def test_queries_that_recur_are_remembered() -> None:
    examples = judged_queries(60, candidates=20, repeats=3)
    chosen = choose(examples, PRIOR)
    assert chosen.threshold is not None
    assert learn(examples, PRIOR) == fit(examples, PRIOR, chosen)


@pytest.mark.parametrize("late", [False, True])
def test_a_rare_recurring_query_does_not_pay_for_a_memory(late: bool) -> None:
    """Its gain may be chance."""
    examples = [*judged_queries(60, candidates=20), *judged_queries(2, candidates=20, repeats=2, seed=1)]
    assert choose(examples, PRIOR, late=late) == Procedure(None, trees=True, late=late)


def test_a_memory_that_likely_loses_on_new_questions_does_not_pay() -> None:
    random = np.random.default_rng(0)
    noise = random.normal(0, 0.1, (2, 100))
    [unclear, gain, loss] = (
        Comparison(
            chance=np.zeros(100),
            before=0.5 + noise[0],
            after=0.5 + noise[0] + change + noise[1] - noise[1].mean(),
            groups=np.arange(100),
            ranks=np.zeros((100, 2), np.int64),
        )
        for change in (0.001, 0.1, -0.1)
    )
    assert pays(gain, unclear)
    assert not pays(unclear, gain)
    assert not pays(gain, loss)


def test_a_query_without_an_answer_is_not_scored() -> None:
    examples = judged_queries(40)
    examples[0] = examples[0]._replace(relevant={}, wrong=frozenset(examples[0].relevant))
    assert len(cross_validate(examples, LINEAR)[COMING].before) == 39


def test_groups_are_drawn_together() -> None:
    """Three copies of each query give the same interval as one."""
    random = np.random.default_rng(0)
    before, after = random.random((2, 50))
    alone = of_mean(before, after, level=0.95)
    copied = [np.repeat(each, 3) for each in (before, after)]
    together = of_mean(*copied, level=0.95, groups=np.repeat(np.arange(50), 3))
    assert together == pytest.approx(alone)
    assert of_mean(*copied, level=0.95).low > together.low

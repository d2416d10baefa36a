"""The figures of a ranked list, by hand and by their definitions."""

import math

import numpy as np
import pytest

from tests.training.evaluation.beir import by_brute_force
from training.evaluation.retrieval import Ranking, judge, mean


def test_a_list_worked_out_by_hand() -> None:
    # Gains 0 3 0 1 at ranks 1 to 4, and one relevant document, of gain 2, that is not in the list.
    found = judge(["x", "a", "y", "b"], {"a": 3, "b": 1, "c": 2})
    dcg = 3 / math.log2(3) + 1 / math.log2(5)
    ideal = 3 + 2 / math.log2(3) + 1 / 2
    assert found.ndcg10 == pytest.approx(dcg / ideal)
    assert (found.recall1, found.recall10, found.recall100) == pytest.approx((0, 2 / 3, 2 / 3))
    assert found.mrr10 == 1 / 2
    assert found.map100 == pytest.approx((1 / 2 + 2 / 4) / 3)


@pytest.mark.parametrize(
    ("rank", "expected"),
    [
        (1, Ranking(1, 1, 1, 1, 1, 1)),
        (2, Ranking(1 / math.log2(3), 0, 1, 1, 1 / 2, 1 / 2)),
        (10, Ranking(1 / math.log2(11), 0, 1, 1, 1 / 10, 1 / 10)),
        (11, Ranking(0, 0, 0, 1, 0, 1 / 11)),
        (100, Ranking(0, 0, 0, 1, 0, 1 / 100)),
        (101, Ranking(0, 0, 0, 0, 0, 0)),
    ],
)
def test_each_figure_looks_as_deep_as_its_name_says(rank: int, expected: Ranking) -> None:
    ranked = [f"other {at}" for at in range(120)]
    ranked[rank - 1] = "the one"
    assert judge(ranked, {"the one": 1}) == pytest.approx(expected)


def test_the_ideal_list_is_cut_at_ten_and_recall_is_not() -> None:
    relevant = {str(at): 1.0 for at in range(20)}
    found = judge([str(at) for at in range(10)], relevant)
    assert found.ndcg10 == pytest.approx(1)
    assert (found.recall1, found.recall10, found.map100) == pytest.approx((1 / 20, 1 / 2, 1 / 2))


def test_random_lists_agree_with_the_definitions() -> None:
    generator = np.random.default_rng(3)
    for _ in range(50):
        ranked = [str(at) for at in generator.permutation(150)]
        judged = generator.choice(200, generator.integers(1, 40), replace=False)
        relevant = {str(at): float(generator.integers(1, 5)) for at in judged}
        assert judge(ranked, relevant)._asdict() == pytest.approx(by_brute_force(ranked, relevant))


def test_every_query_counts_once() -> None:
    assert mean([Ranking(1, 0, 1, 1, 0.5, 0.25), Ranking(0, 1, 1, 0, 0, 0.75)]) == pytest.approx(
        (0.5, 0.5, 1, 0.5, 0.25, 0.5)
    )

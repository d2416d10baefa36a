"""The figures of a ranked list, by hand and by their definitions; nearest neighbours against a full sort."""

import math

import numpy as np
import pytest

from tests.training.evaluation.beir import by_brute_force
from training.evaluation.rankings import Ranking, judge, mean, nearest


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


def test_neighbours_are_those_of_a_full_sort_beyond_one_block() -> None:
    generator = np.random.default_rng(4)
    documents = generator.normal(size=(20_000, 8)).astype(np.float32)
    queries = generator.normal(size=(300, 8)).astype(np.float32)
    found = nearest(queries, documents, 20)
    assert found.shape == (300, 20)
    for query, rows in list(zip(queries, found, strict=True))[::29]:
        lengths = np.linalg.norm(documents.astype(float), axis=1)
        cosine = documents.astype(float) @ query.astype(float) / lengths
        assert rows.tolist() == sorted(range(20_000), key=lambda at: -cosine[at])[:20]


def test_equal_vectors_keep_their_order_wherever_they_lie() -> None:
    generator = np.random.default_rng(5)
    few = generator.normal(size=(7, 33)).astype(np.float32)
    kind = generator.integers(0, 7, 20_001)  # of each document; three blocks, the last of odd length
    found = nearest(few[:3], few[kind], 5000)
    directions = few.astype(float) / np.linalg.norm(few.astype(float), axis=1, keepdims=True)
    for query, rows in enumerate(found):
        best = np.argsort(-(directions @ directions[query]))
        expected = np.concatenate([np.flatnonzero(kind == each) for each in best])[:5000]
        assert np.array_equal(rows, expected)


def test_neighbours_do_not_depend_on_lengths_and_fewer_documents_than_asked_for_are_all_given() -> None:
    documents = np.array([[0, 9], [0.1, 0.1], [3, 0], [0, 0], [-1, 0], [np.inf, 1]], np.float32)
    found = nearest(np.array([[100, 0]], np.float32), documents, 50)
    # Cosines 0, 0.71, 1, no direction (0), -1, no direction (0).
    assert found.tolist() == [[2, 1, 0, 3, 5, 4]]

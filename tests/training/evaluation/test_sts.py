"""Spearman as papers report it, against values worked out by hand."""

import math

import numpy as np
import pytest

from tests.training.evaluation.pairs import TWO_SOURCES, TWO_SOURCES_ALL, encode, pairs_of
from training.evaluation.sts import cosines, pearson, similarity, spearman


def test_a_years_subsets_are_ranked_together_and_not_averaged() -> None:
    found = similarity(pairs_of(TWO_SOURCES), encode)
    assert found.spearman_all == pytest.approx(TWO_SOURCES_ALL)
    assert found.spearman_mean == pytest.approx(0)
    assert found.spearman_wmean == pytest.approx((3 - 2) / 5)
    assert found.pairs == 5
    assert found.undefined == 0


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    # Ranks 1 2.5 2.5 4 against 1 2 3 4: 4.5 / sqrt(4.5 * 5). Ranks in order of arrival would give 1.
    rows = [("", 0.1, 1.0), ("", 0.2, 2.0), ("", 0.2, 3.0), ("", 0.4, 4.0)]
    assert similarity(pairs_of(rows), encode).spearman_all == pytest.approx(4.5 / math.sqrt(22.5))


def test_only_the_order_counts_for_spearman_and_the_distances_for_pearson() -> None:
    x, y = np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 9.0])
    assert spearman(x, y) == pytest.approx(1)
    assert pearson(x, y) == pytest.approx(8 / math.sqrt(2 * 38))


def test_a_vector_without_a_direction_counts_as_cosine_0_and_is_told() -> None:
    found = similarity(pairs_of([("", -0.5, 1.0), ("", "nowhere", 2.0), ("", 0.5, 3.0)]), encode)
    assert found.spearman_all == pytest.approx(1)
    assert found.undefined == 1


def test_a_cosine_does_not_depend_on_the_vectors_lengths() -> None:
    left = np.array([[3, 0], [0, 0], [np.inf, 1], [1, 1]], np.float32)
    right = np.array([[2, 2], [1, 0], [1, 0], [-2, -2]], np.float32)
    found, undefined = cosines(left, right)
    assert found == pytest.approx([math.sqrt(0.5), 0, 0, -1])
    assert undefined == 2


def test_a_model_that_gives_one_vector_for_everything_has_no_spearman() -> None:
    found = similarity(pairs_of(TWO_SOURCES), lambda texts: np.ones((len(texts), 2), np.float32))
    assert math.isnan(found.spearman_all)
    assert math.isnan(found.pearson_all)

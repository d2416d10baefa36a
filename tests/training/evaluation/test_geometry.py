"""Alignment and uniformity, against hand values and against every pair written out."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.training.evaluation.pairs import encode, pairs_of
from training.evaluation.geometry import alignment, geometry, uniformity


def _brute_force_uniformity(vectors: NDArray[np.float32]) -> float:
    x = [row / np.linalg.norm(row) for row in vectors.astype(np.float64)]
    terms = [math.exp(-2 * float(((a - b) ** 2).sum())) for i, a in enumerate(x) for b in x[i + 1 :]]
    return math.log(sum(terms) / len(terms))


def test_uniformity_is_the_log_of_one_mean_over_all_pairs() -> None:
    vectors = np.random.default_rng(0).normal(0.3, 1, (1100, 4)).astype(np.float32)  # three parts of its loop
    assert uniformity(vectors) == pytest.approx(_brute_force_uniformity(vectors), abs=1e-9)


@pytest.mark.parametrize(
    ("vectors", "expected"),
    [
        ([[1, 0], [0, 1]], -4.0),
        ([[1, 0], [-3, 0]], -8.0),
        ([[1, 0], [2, 0], [5, 0]], 0.0),
        ([[1, 0], [0, 1], [-1, 0]], math.log((2 * math.exp(-4) + math.exp(-8)) / 3)),
    ],
)
def test_uniformity_runs_from_minus_8_to_0(vectors: list[list[float]], expected: float) -> None:
    assert uniformity(np.array(vectors, np.float32)) == pytest.approx(expected)


def test_uniformity_of_one_sentence_is_no_number() -> None:
    assert math.isnan(uniformity(np.ones((1, 3), np.float32)))


def test_alignment_is_the_mean_squared_distance_at_length_1() -> None:
    left = np.array([[1, 0], [7, 0], [2, 0]], np.float32)
    right = np.array([[0, 2], [-1, 0], [9, 0]], np.float32)
    assert alignment(left, right) == pytest.approx((2 + 4 + 0) / 3)


def test_alignment_takes_pairs_above_4_only() -> None:
    splits = [pairs_of([("", 0.5, 4.0), ("", 0.0, 4.2)]), pairs_of([("", -1.0, 5.0), ("", 0.9, 0.0)])]
    found = geometry(splits, encode)
    assert found.alignment == pytest.approx((2 + 4) / 2)
    assert found.pairs == 2


def test_a_sentence_that_occurs_often_counts_once() -> None:
    splits = [pairs_of([("", 0.0, 1.0), ("", 0.0, 2.0)]), pairs_of([("", 0.0, 3.0)])]
    found = geometry(splits, encode)
    assert found.sentences == 2
    assert found.uniformity == pytest.approx(-4)
    assert math.isnan(found.alignment)  # no pair is above 4


def test_a_vector_without_a_direction_leaves_no_geometry() -> None:
    found = geometry([pairs_of([("", "nowhere", 5.0), ("", 0.5, 5.0)])], encode)
    assert math.isnan(found.alignment)
    assert math.isnan(found.uniformity)

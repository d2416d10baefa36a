"""The shape of the space, against hand values and against every pair written out."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.training.evaluation.pairs import encode, pairs_of
from training.evaluation.geometry import alignment, geometry, histogram, spread, uniformity


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


def _cosines(x: NDArray[np.float32], y: NDArray[np.float32]) -> list[float]:
    pairs = zip(x.astype(float).tolist(), y.astype(float).tolist(), strict=True)
    return [
        math.fsum(a * b for a, b in zip(p, q, strict=True)) / math.hypot(*p) / math.hypot(*q)
        for p, q in pairs
    ]


@pytest.mark.parametrize(
    ("vectors", "mean_cosine", "top_energy", "effective_rank", "spectrum"),
    [
        ([[1, 0], [0, 7]], 0, 0.5, 2, [1, 1]),
        ([[1, 0], [5, 0], [2, 0]], 1, 1, 1, [1, 0]),
        ([[1, 0], [-3, 0]], -1, 1, 1, [1, 0]),
        ([[1, 0], [2, 0], [0, 1], [-1, 0]], -1 / 6, 0.75, math.exp(0.5623351), [1, math.sqrt(1 / 3)]),
        ([[3, 0, 0, 0, 0], [0, 1, 0, 0, 0]], 0, 0.5, 2, [1, 1]),  # no more values than sentences
    ],
)
def test_spread_worked_out_by_hand(
    vectors: list[list[float]],
    mean_cosine: float,
    top_energy: float,
    effective_rank: float,
    spectrum: list[float],
) -> None:
    found = spread(np.array(vectors, np.float32))
    assert found.mean_cosine == pytest.approx(mean_cosine, abs=1e-12)
    assert found.top_energy == pytest.approx(top_energy)
    assert found.effective_rank == pytest.approx(effective_rank)
    assert found.spectrum == pytest.approx(spectrum, abs=1e-6)


def test_spread_is_that_of_every_pair_and_of_numpys_singular_values() -> None:
    vectors = np.random.default_rng(1).normal(0.4, 1, (60, 7)).astype(np.float32)
    found = spread(vectors)
    first, second = np.triu_indices(60, 1)
    assert found.mean_cosine == pytest.approx(np.mean(_cosines(vectors[first], vectors[second])))
    values = np.linalg.svd(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), compute_uv=False)
    assert found.spectrum == pytest.approx(values / values[0], abs=2e-6)
    shares = [float(value) ** 2 / 60 for value in values]
    assert found.top_energy == pytest.approx(shares[0])
    assert found.effective_rank == pytest.approx(math.prod(share**-share for share in shares), rel=1e-5)


def test_a_cosine_is_counted_under_its_gold_score() -> None:
    cosines = {0.0: -1.0, 0.99: 0.0, 1.0: 0.04, 3.9: 0.06, 4.0: 0.96, 5.0: 1.0}
    left = np.array([[2, 0]] * 6, np.float32)
    right = np.array([[cosine, math.sqrt(1 - cosine**2)] for cosine in cosines.values()], np.float32)
    found = histogram(left, right, list(cosines))
    # A step is 0.05 wide: -1 is in the first, 0 in the twenty-first, 1 in the last.
    counted = {name: {at: count for at, count in enumerate(bins) if count} for name, bins in found.items()}
    assert counted == {"0-1": {0: 1, 20: 1}, "1-2": {20: 1}, "2-3": {}, "3-4": {21: 1}, "4-5": {39: 2}}
    assert {len(bins) for bins in found.values()} == {40}


def test_a_pair_without_a_cosine_is_not_in_the_histogram_and_leaves_no_spread() -> None:
    found = geometry([pairs_of([("", "nowhere", 5.0), ("", 0.5, 2.0)])], encode)
    assert {name: sum(bins) for name, bins in found.histogram.items()} == {
        "0-1": 0,
        "1-2": 0,
        "2-3": 1,
        "3-4": 0,
        "4-5": 0,
    }
    assert found.spectrum == []
    assert math.isnan(found.mean_cosine)
    assert math.isnan(found.top_energy)
    assert math.isnan(found.effective_rank)


def test_spread_counts_a_sentence_once() -> None:
    found = geometry([pairs_of([("", 0.0, 1.0), ("", 0.0, 2.0)]), pairs_of([("", -1.0, 3.0)])], encode)
    # East, north and west: cosines 0, 0 and -1.
    assert found.mean_cosine == pytest.approx(-1 / 3)
    assert found.top_energy == pytest.approx(2 / 3)

"""The file of a learned ranking: its scores, its parts, and refusals of wrong files."""

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from models.search.features import FEATURES
from models.search.ranking import (
    Ranking,
    RerankerWeight,
    Trees,
    remove_activation,
    standardize,
    standardize_late,
)
from models.tokens.late import LATE

RNG = np.random.default_rng(0)
RAW = RNG.normal(size=(6, len(FEATURES)))
HYBRID, MEMORY = FEATURES.index("hybrid"), FEATURES.index("memory_best")
STUMP = {
    "roots": [0],
    "feature": [HYBRID, 0, 0],
    "threshold": [0.0, 0.0, 0.0],
    "left": [1, 1, 2],
    "right": [2, 1, 2],
    "value": [0.0, -1.0, 1.0],
}


def test_features_are_standardized_within_the_query_but_for_the_memory() -> None:
    found = standardize(RAW)
    np.testing.assert_allclose(found[:, :MEMORY].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(found[:, :MEMORY].std(axis=0), 1)
    np.testing.assert_array_equal(found[:, MEMORY:], RAW[:, MEMORY:])


def test_a_feature_that_is_equal_for_all_candidates_decides_nothing() -> None:
    flat = RAW.copy()
    flat[:, HYBRID] = 0.1
    assert not standardize(flat)[:, HYBRID].any()
    assert standardize(RAW[:0]).shape == (0, len(FEATURES))


def test_a_linear_score_is_the_weighted_sum() -> None:
    ranking = Ranking(weights={"hybrid": 1.5, "memory_best": 2.0})
    expected = 1.5 * standardize(RAW)[:, HYBRID] + 2 * RAW[:, MEMORY]
    np.testing.assert_allclose(ranking.score(RAW), expected)


def test_trees_read_raw_and_standardized_features() -> None:
    inputs = np.concatenate([RAW, standardize(RAW)], axis=1)
    np.testing.assert_array_equal(Trees(**STUMP).score(inputs), np.where(RAW[:, HYBRID] <= 0, -1, 1))
    scaled = STUMP | {"feature": [len(FEATURES) + HYBRID, 0, 0]}
    expected = np.where(standardize(RAW)[:, HYBRID] <= 0, -1, 1)
    np.testing.assert_array_equal(Trees(**scaled).score(inputs), expected)


def test_the_parts_of_a_score_add_up_to_it() -> None:
    ranking = Ranking(weights={"dense": 1, "bm25": -2}, trees=Trees(**STUMP))
    parts = ranking.contribute(RAW)
    assert set(parts) == {"dense", "bm25", "trees"}
    np.testing.assert_allclose(sum(parts.values()), ranking.score(RAW))


def test_linear_score_and_trees_decide_alike_and_leave_the_spread_of_the_scores() -> None:
    """The memory is learned on top of the linear score, so this spread decides how much it counts."""
    ranking = Ranking(weights={"dense": 100, "memory_best": 3}, trees=Trees(**STUMP))
    parts = ranking.contribute(RAW)
    assert np.std(parts["trees"]) == pytest.approx(np.std(parts["dense"]))
    assert np.std(parts["trees"] + parts["dense"]) == pytest.approx(100)
    np.testing.assert_allclose(parts["memory_best"], 3 * RAW[:, FEATURES.index("memory_best")])


@pytest.mark.parametrize(
    "changed",
    [
        {"weights": {"unknown": 1}},
        {"weights": {"dense": float("nan")}},
        {"format": 2},
        {"fingerprint": "short"},
        {"memory_threshold": 1.0},
        {"code": "import os"},
        {"trees": STUMP | {"left": [1, 1]}},
        {"trees": STUMP | {"left": [1, 0, 2]}},
        {"trees": STUMP | {"right": [3, 1, 2]}},
        {"trees": STUMP | {"feature": [2 * len(FEATURES) + len(LATE), 0, 0]}},
        {"weights": {"maxsim_other": 1}},
        {"weights": {}, "late": "AAAA"},
    ],
)
def test_a_file_that_cannot_be_evaluated_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Ranking.model_validate({"weights": {"hybrid": 1}} | changed)


def test_late_interaction_is_standardized_over_the_candidates_that_have_it() -> None:
    late = RNG.normal(size=(6, len(LATE)))
    late[[1, 4]] = np.nan
    found = standardize_late(late)
    there = [0, 2, 3, 5]
    np.testing.assert_allclose(found[there].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(found[there].std(axis=0), 1)
    assert not found[[1, 4]].any()
    assert not standardize_late(np.full((3, len(LATE)), np.nan)).any()
    assert not standardize_late(np.full((3, len(LATE)), 0.25)).any()


def test_without_token_vectors_a_ranking_has_the_order_of_the_other_features() -> None:
    ranking = Ranking(weights={"dense": 1, "maxsim": 2, "memory_best": 1})
    alone = Ranking(weights={"dense": 1, "memory_best": 1})
    unknown = np.full((6, len(LATE)), np.nan)
    np.testing.assert_allclose(ranking.score(RAW, unknown), alone.score(RAW))
    np.testing.assert_allclose(ranking.score(RAW), alone.score(RAW))
    late = RNG.normal(size=(6, len(LATE)))
    parts = ranking.contribute(RAW, late)
    np.testing.assert_allclose(sum(parts.values()), ranking.score(RAW, late))
    np.testing.assert_allclose(parts["maxsim"], 2 * standardize_late(late)[:, 0])


def test_the_part_of_a_reranker_has_its_weight_in_deviations_of_the_ranking() -> None:
    ranked, scores = 3 * RNG.normal(size=6), RNG.normal(size=6)
    scores[2] = np.nan
    known = [0, 1, 3, 4, 5]
    found = RerankerWeight(fingerprint="a" * 64, weight=0.5).contribute(ranked, scores)
    assert np.isnan(found[2])
    assert found[known].std() == pytest.approx(0.5 * ranked[known].std())
    assert np.corrcoef(found[known], scores[known])[0, 1] == pytest.approx(1)
    for few in (scores[:0], scores[2:3]):
        np.testing.assert_array_equal(
            RerankerWeight(fingerprint="a" * 64, weight=1).contribute(few, few), few
        )
    [single] = RerankerWeight(fingerprint="a" * 64, weight=1).contribute(ranked[:1], scores[:1])
    assert single == 0


def test_scores_before_a_sigmoid_are_found_again() -> None:
    logits = np.array([-9.0, -1.5, 0.0, 2.0, 8.0, np.nan])
    shares = (1 / (1 + np.exp(-logits))).astype(np.float32)
    np.testing.assert_allclose(remove_activation(shares, "sigmoid"), logits, rtol=1e-3)
    np.testing.assert_array_equal(remove_activation(shares, "identity"), shares.astype(np.float64))
    assert np.isfinite(remove_activation(np.array([0, 1], np.float32), "sigmoid")).all()


@pytest.mark.parametrize(
    "change", [{"weight": -0.1}, {"weight": float("inf")}, {"fingerprint": "x"}, {"more": 1}]
)
def test_a_wrong_weight_of_a_reranker_is_refused(change: dict[str, Any]) -> None:
    given = {"weights": {}, "reranker": {"fingerprint": "a" * 64, "weight": 0.5}}
    assert Ranking(**given).reranker == RerankerWeight(fingerprint="a" * 64, weight=0.5)
    assert Ranking(weights={}).reranker is None, "as in files of earlier releases"
    with pytest.raises(ValidationError):
        Ranking(**given | {"reranker": given["reranker"] | change})

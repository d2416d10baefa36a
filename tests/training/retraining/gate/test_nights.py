"""Simulates candidates of many nights, to count promotions and refusals by luck."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from training.ranking.cross_validation import COMING, NEW
from training.retraining.gate.gains import gains
from training.retraining.gate.rules import Thresholds, compare

NIGHTS = 100
YEARS = 40  # of a hundred nights each
Floats = np.ndarray


def judged(each: Floats) -> dict[str, Any]:
    """Returns scores with these figures of judged queries, for both kinds of questions (NEW, COMING)."""
    figures = {"ndcg10": float(each.mean()), "queries": len(each), "each": each.tolist()}
    return {"own": {NEW: figures, COMING: figures}}


def moved(rng: np.random.Generator, count: int, gain: float = 0.0) -> Floats:
    """Returns differences per query with the mean `gain`: most are 0, and about 30% are large."""
    changed = rng.random(count) < 0.3
    return np.where(changed, rng.normal(gain / 0.3, 0.3, count), 0.0)


@pytest.mark.parametrize(
    ("queries", "candidates"),
    [
        (30, 1),
        (200, 1),
        pytest.param(200, 3, marks=pytest.mark.long),
        pytest.param(200, 4, marks=pytest.mark.long),
    ],
)
def test_at_most_one_candidate_in_a_hundred_nights_is_promoted_by_luck(queries: int, candidates: int) -> None:
    """Queries are the same every night. Candidates start from the active model, so lucky gains could add up.

    `auto` tries up to three candidates a night, or four if the model's vocabulary does not suit the text.
    """
    rng = np.random.default_rng(queries)
    promoted = []
    for _ in range(YEARS):
        active, count = rng.uniform(0, 1, queries), 0
        for look in range(1, candidates * NIGHTS + 1):
            candidate = active + moved(rng, queries)
            [gain] = gains(judged(candidate), judged(active), looks=look)
            if gain.shown:
                active, count = candidate, count + 1
        promoted.append(count)
    assert (
        np.mean(promoted) < 0.6
    )  # 0.19 by the sum of the levels, 0.33 with three candidates, 0.39 with four
    assert np.mean(np.array(promoted) > 1) < 0.1


@pytest.mark.parametrize(
    ("candidates", "expected"), [(1, 0.01), pytest.param(3, 0.023, marks=pytest.mark.long)]
)
def test_with_new_queries_every_night_it_is_one_night_in_a_hundred_for_the_first_candidate(
    candidates: int, expected: float
) -> None:
    """By luck, the k-th candidate of a night is promoted in 1/√k nights of 100, so one of three in 2.3."""
    rng = np.random.default_rng(3)
    shown = 0
    for _ in range(NIGHTS * YEARS):
        active = rng.uniform(0, 1, 100)
        for look in range(1, candidates + 1):
            [gain] = gains(judged(active + moved(rng, 100)), judged(active), looks=look)
            shown += gain.shown
    assert shown / (NIGHTS * YEARS) == pytest.approx(expected, abs=0.006)


def test_the_least_gain_is_seen_in_four_nights_of_five() -> None:
    rng = np.random.default_rng(4)
    active = rng.uniform(0, 1, 200)
    [gain] = gains(judged(active + moved(rng, 200)), judged(active))
    assert gain.least is not None
    seen = []
    for _ in range(400):
        active = rng.uniform(0, 1, 200)
        [found] = gains(judged(active + moved(rng, 200, gain.least)), judged(active))
        seen.append(found.shown)
    assert np.mean(seen) == pytest.approx(0.8, abs=0.1)


@pytest.mark.long
def test_in_three_hundred_nights_search_never_falls_below_the_anchor_by_more_than_the_limit() -> None:
    """Most candidates are worse than the anchor. Each begins at the anchor, so losses do not add up."""
    rng = np.random.default_rng(11)
    least, last = [], []
    for _ in range(20):
        anchor = rng.uniform(0, 1, 200)
        active, truth = anchor, 0.0
        course = []
        for night in range(1, 301):
            true_gain = rng.normal(-0.01, 0.02)
            candidate = anchor + moved(rng, 200, true_gain)
            verdict = compare(judged(candidate), judged(active), require="better", looks=night)
            if verdict.accepted:
                active, truth = candidate, true_gain
            course.append(truth)
        least.append(min(course))
        last.append(truth)
    assert min(least) > -Thresholds().own_fall
    assert np.mean(last) > 0, "and what is good is found now and then"


@pytest.mark.parametrize(("queries", "most"), [(100, 0.3), (2000, 0.06)])
def test_candidates_that_change_nothing_but_luck_are_seldom_refused_for_a_fall(
    queries: int, most: float
) -> None:
    rng = np.random.default_rng(5)
    refused = 0
    for _ in range(300):
        before, after = {}, {}
        for name in ("titles", "neighbours", "known"):
            each = rng.uniform(0, 1, queries)
            before[name] = judged(each)["own"][COMING]
            after[name] = judged(each + moved(rng, queries))["own"][COMING]
        refused += not compare({"own": after}, {"own": before}).accepted
    assert 0.005 < refused / 300 < most


@pytest.mark.parametrize(("queries", "luck", "caught"), [(5, 0.0, 0.22), (12, 0.03, 0.81)])
def test_a_few_judged_queries_refuse_a_large_loss_and_seldom_luck(
    queries: int, luck: float, caught: float
) -> None:
    """A bad candidate loses 0.2 per query on average (deviation 0.3). Other kinds of searches stay equal."""
    rng = np.random.default_rng(9)
    others = {
        name: judged(rng.uniform(0, 1, 300))["own"][COMING] for name in ("titles", "neighbours", "known")
    }
    refused = {0.0: 0, -0.2: 0}
    for loss in refused:
        for _ in range(NIGHTS):
            each = rng.uniform(0.3, 1, queries)
            change = rng.normal(loss, 0.3, queries) if loss else moved(rng, queries)
            before, after = (judged(np.clip(side, 0, 1))["own"][COMING] for side in (each, each + change))
            verdict = compare({"own": {**others, COMING: after}}, {"own": {**others, COMING: before}})
            refused[loss] += not verdict.accepted
    assert refused[0.0] / NIGHTS == pytest.approx(luck, abs=0.05)
    assert refused[-0.2] / NIGHTS == pytest.approx(caught, abs=0.13)


def test_a_real_loss_is_refused() -> None:
    rng = np.random.default_rng(6)
    active = rng.uniform(0, 1, 500)
    refused = [
        not compare(judged(active + moved(rng, 500, -0.03)), judged(active)).accepted for _ in range(50)
    ]
    assert np.mean(refused) > 0.9


def test_the_word_of_one_key_does_not_carry_a_gain() -> None:
    """The key 'spam' judged half of the queries, and the candidate is better on this half only."""
    rng = np.random.default_rng(7)
    keys = ["spam", None] * 80
    active = rng.uniform(0, 0.5, 160)
    pleased = active + np.where([key == "spam" for key in keys], 0.5, 0.0)
    before, after, honest = judged(active), judged(pleased), judged(active + 0.05)
    before["own"][COMING]["keys"] = keys
    verdict = compare(after, before, require="better")
    assert verdict.gains[0].shown
    assert verdict.reasons == (
        "Without the queries that only the key 'spam' judged, judged queries gain nothing.",
    )
    assert compare(honest, before, require="better").accepted


def test_queries_that_share_an_answer_are_one_piece_of_evidence() -> None:
    rng = np.random.default_rng(8)
    pieces = np.repeat(rng.normal(0.03, 0.15, 30), 10)
    active = rng.uniform(0, 1, 300)
    before, after = judged(active), judged(active + pieces)
    [alone] = gains(after, before)
    before["own"][COMING]["groups"] = np.repeat(np.arange(30), 10).tolist()
    [together] = gains(after, before)
    assert together.difference == alone.difference
    assert (together.high - together.low) / (alone.high - alone.low) == pytest.approx(10**0.5, rel=0.1)

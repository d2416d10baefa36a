"""The sequential test: valid at any stopping time, and never decided by one visitor, key or query."""

from math import comb, exp, log

import numpy as np
import pytest

from service.lifecycle.sequential import (
    ALPHA,
    FIRST,
    MAX_DECIDED,
    MIN_ACCEPT,
    MIN_REJECT,
    Outcome,
    Standing,
    decide,
    measure_evidence,
    select,
)

SHARES = [0.505 + 0.01 * at for at in range(50)]
PRIOR = [exp(-(share - 0.5) / 0.06) for share in SHARES]


def slow_evidence(wins: int, losses: int) -> float:
    parts = [
        weight * (2 * share) ** wins * (2 - 2 * share) ** losses
        for share, weight in zip(SHARES, PRIOR, strict=True)
    ]
    return sum(parts) / sum(PRIOR)


def simulate(random: np.random.Generator, share: float, count: int = 2000) -> Standing:
    return decide(np.where(random.random(count) < share, 1, -1).tolist())


def test_the_evidence_is_the_mixture_of_likelihood_ratios() -> None:
    pairs = [(0, 0), (1, 0), (0, 1), (8, 0), (30, 20), (60, 40), (40, 60)]
    wins, losses = (np.array(column) for column in zip(*pairs, strict=True))
    expected = [log(slow_evidence(*pair)) for pair in pairs]
    np.testing.assert_allclose(measure_evidence(wins, losses), expected, atol=1e-9)


def test_the_expected_evidence_of_an_even_match_is_one() -> None:
    for count in (1, 5, 20):
        wins = np.arange(count + 1)
        chances = np.array([comb(count, won) for won in wins]) / 2**count
        assert np.exp(measure_evidence(wins, count - wins)) @ chances == pytest.approx(1)


def test_few_even_matches_are_ever_decided() -> None:
    random = np.random.default_rng(7)
    decisions = [simulate(random, 0.5, 1000).decision for _ in range(400)]
    assert 0 < decisions.count("accepted") <= 400 * ALPHA
    assert 0 < decisions.count("rejected") <= 400 * ALPHA


def test_a_better_candidate_is_accepted_and_a_worse_one_is_rejected_soon() -> None:
    random = np.random.default_rng(8)
    better = [simulate(random, 0.56) for _ in range(100)]
    assert sum(each.decision == "accepted" for each in better) >= 90
    worse = [simulate(random, 0.35) for _ in range(100)]
    assert sum(each.decision == "rejected" and each.decided <= 300 for each in worse) >= 95


def test_a_decision_stays_whatever_follows() -> None:
    sides = [1] * MIN_ACCEPT
    assert decide(sides[:-1]).decision is None
    standing = decide(sides)
    assert (standing.decision, standing.wins, standing.decided) == ("accepted", MIN_ACCEPT, MIN_ACCEPT)
    assert decide([*sides, *[-1] * 1000]) == standing
    lost = decide([-1] * 1000)
    assert (lost.decision, lost.decided, lost.why) == (
        "rejected",
        MIN_REJECT,
        "The active version wins more.",
    )
    even = decide([1, -1] * MAX_DECIDED)
    assert (even.decision, even.decided) == ("rejected", MAX_DECIDED)
    assert decide([]) == Standing()


def outcome(at: int, side: int = 1, /, **changed: str) -> Outcome:
    said = {"collection": "default", "query": f"q{at}", "visitor": f"v{at}", "key": "web"} | changed
    return Outcome(side, **said)


@pytest.mark.parametrize("same", [{"visitor": "v"}, {"visitor": ""}, {"query": "q"}])
def test_one_visitor_key_or_query_decides_nothing(same: dict[str, str]) -> None:
    alone = [outcome(at, **same) for at in range(1000)]
    assert select(alone) == [1] * FIRST
    others = [outcome(2000 + at, -1 if at % 2 else 1) for at in range(400)]
    counted = select([*others, *alone])
    assert len(counted) <= 400 * 1.06
    assert decide(counted).decision is None


def test_a_query_of_a_visitor_counts_once() -> None:
    first, again = outcome(1), outcome(1, -1, key="app")
    other = outcome(1, -1, visitor="v2")
    assert select([first, again, other]) == [1, -1]

"""A gain has to be more than luck, and the gate asks for one when it is told to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from training.retraining.gate.gains import gains
from training.retraining.gate.rules import Thresholds, compare
from training.retraining.gate.verdict import Gain
from training.retraining.gate.words import as_text, report, sentence

RNG = np.random.default_rng(1)
BEFORE = RNG.uniform(0.2, 0.8, 200)
NOISE = RNG.normal(0, 0.2, 200)
NOISE -= NOISE.mean()


def own(each: np.ndarray) -> dict[str, Any]:
    return {"own": {"titles": {"ndcg10": float(each.mean()), "queries": len(each), "each": each.tolist()}}}


def sts(cosine: np.ndarray, spearman: float) -> dict[str, Any]:
    gold = np.arange(200.0)
    return {
        "sts": {"stsb": {"spearman_all": spearman, "pairs": 200}},
        "mean": {"sets": ["stsb"]},
        "samples": {"stsb": (gold, cosine)},
    }


def test_a_small_mean_of_wild_differences_may_be_luck_and_a_steady_one_is_not() -> None:
    """Standard error 0.2 / sqrt(200) = 0.014: 0.01 is within it, 0.04 is not; steady ones have none."""
    [luck] = gains(own(BEFORE + NOISE + 0.01), own(BEFORE))
    assert not luck.shown
    assert luck.difference == pytest.approx(0.01)
    [large] = gains(own(BEFORE + NOISE + 0.04), own(BEFORE))
    assert large.shown
    [steady] = gains(own(BEFORE + 0.01), own(BEFORE))
    assert steady.shown
    assert steady.low == pytest.approx(0.01)


def test_noise_is_not_promoted_where_a_gain_is_asked_for() -> None:
    luck, active = own(BEFORE + NOISE + 0.01), own(BEFORE)
    assert compare(luck, active).accepted
    verdict = compare(luck, active, require="better")
    assert verdict.reasons == ("Nothing became better by more than luck explains.",)
    assert compare(own(BEFORE + 0.01), active, require="better").accepted
    assert as_text(verdict).startswith(
        "Search for a text by its title: 0.505 → 0.515 nDCG@10, candidate minus"
    )
    assert "not certain; about 1,788 queries would settle a gain of this size, you have 200." in as_text(
        verdict
    )


def test_more_searches_make_each_interval_wider() -> None:
    one = own(BEFORE + NOISE + 0.03)["own"]["titles"]
    before = own(BEFORE)["own"]["titles"]
    [alone] = gains({"own": {"titles": one}}, {"own": {"titles": before}})
    both = gains({"own": {"titles": one, "known": one}}, {"own": {"titles": before, "known": before}})
    assert both[0].low < alone.low
    assert both[0].high > alone.high


def test_without_a_search_the_similarity_sets_show_a_gain() -> None:
    rng = np.random.default_rng(2)
    gold = np.arange(200.0)
    worse, better = gold + rng.normal(0, 80, 200), gold + rng.normal(0, 20, 200)
    [gain] = gains(sts(better, 0.9), sts(worse, 0.6))
    assert gain.name == "mean of 1"
    assert gain.difference == pytest.approx(0.3)
    assert gain.shown
    assert not gains(sts(worse, 0.6), sts(worse, 0.6))[0].shown
    assert gains({}, {}) == ()


def test_a_loss_in_one_search_is_refused_whatever_the_other_gains() -> None:
    fell = own(BEFORE - 0.02)["own"]["titles"]
    rose = own(BEFORE + 0.1)["own"]["titles"]
    before = own(BEFORE)["own"]["titles"]
    candidate = {"own": {"judged": rose, "titles": fell}}
    verdict = compare(candidate, {"own": {"judged": before, "titles": before}}, require="better")
    assert [reason.split(":")[0] for reason in verdict.reasons] == ["Search for a text by its title, dense"]


def test_where_queries_are_judged_nothing_else_shows_a_gain() -> None:
    rose = own(BEFORE + 0.1)["own"]["titles"]
    before = own(BEFORE)["own"]["titles"]
    sides = {"own": {"judged": before, "titles": rose}}, {"own": {"judged": before, "titles": before}}
    assert [gain.name for gain in gains(*sides)] == ["own judged"]
    assert compare(*sides, require="better").reasons == ("Nothing became better by more than luck explains.",)


def test_a_few_judged_queries_guard_and_decide_nothing() -> None:
    before, rose = (own(BEFORE + gain)["own"]["titles"] for gain in (0, 0.1))
    few = {"ndcg10": 0.5, "queries": 8, "each": [0.5] * 8}
    more = {"ndcg10": 0.7, "queries": 8, "each": [0.7] * 8}
    less = {"ndcg10": 0.2, "queries": 8, "each": [0.2, 0.3, 0.1, 0.2, 0.3, 0.2, 0.2, 0.1]}
    active = {"own": {"titles": before, "few": few}}
    assert compare({"own": {"titles": before, "few": more}}, active, require="better").reasons == (
        "Nothing became better by more than luck explains.",
    )
    verdict = compare({"own": {"titles": rose, "few": few}}, active, require="better")
    assert verdict.accepted
    assert [gain.name for gain in verdict.gains] == ["own titles"]
    refused = compare({"own": {"titles": rose, "few": less}}, active, require="better")
    assert [reason.split(":")[0] for reason in refused.reasons] == [
        "Search on your few judged queries, dense"
    ]


def test_a_gain_says_what_could_have_been_seen_and_what_would_settle_it() -> None:
    """Differences spread by 0.2 over 200 queries: an error of 0.014, and 2.35 of them to either side."""
    error = NOISE.std(ddof=1) / 200**0.5
    [gain] = gains(own(BEFORE + NOISE + 0.01), own(BEFORE))
    half = 2.345 * error  # Student's quantile at 0.99 with 199 degrees of freedom
    assert (gain.low, gain.high) == pytest.approx((0.01 - half, 0.01 + half), abs=1e-4)
    assert gain.least == pytest.approx(half + 0.8416 * error, abs=1e-4)
    assert gain.enough == pytest.approx(200 * (half / 0.01) ** 2, rel=0.01)
    assert gains(own(BEFORE + NOISE - 0.01), own(BEFORE))[0].enough is None
    later = gains(own(BEFORE + NOISE + 0.01), own(BEFORE), looks=30)[0]
    assert later.low < gain.low, "the thirtieth look at the same queries has to show more"


def test_every_row_names_its_measure() -> None:
    active = own(BEFORE) | {
        "cost": {"texts_per_second": 100.0, "queries_per_second": 300.0, "megabytes": 100.0}
    }
    active["geometry"] = {"uniformity": -3.0, "alignment": 0.2}
    active |= {"sts": {"stsb": {"spearman_all": 0.7}}, "mean": {"sets": ["stsb"]}}
    content = report(compare(active | {"drift": {"neighbours": 0.1}}, active), active, active, {})
    assert {row["title"]: row["measure"] for row in content["rows"]} == {
        "mean of 1": "Spearman",
        "stsb": "Spearman",
        "uniformity": "lower is better",
        "alignment": "lower is better",
        "Search for a text by its title, dense": "nDCG@10",
        "texts per second": "of one thread",
        "queries per second": "of one thread, each alone",
        "megabytes": "",
        "drift from the anchor": "share of the ten nearest",
    }


def test_other_queries_are_not_compared() -> None:
    verdict = compare(own(BEFORE[:100] + 0.1), own(BEFORE), require="better")
    assert "not the same data, 200 queries for the active model and 100 now" in verdict.reasons[0]
    lost = compare({}, own(BEFORE))
    assert "nothing can be compared" in lost.reasons[0]


@pytest.mark.parametrize(
    ("pace", "size", "reasons"),
    [
        (75.0, 125.0, []),
        (74.0, 125.0, ["texts per second"]),
        (75.0, 126.0, ["megabytes"]),
        (None, 1.0, ["texts per second"]),
    ],
)
def test_slower_or_larger_than_allowed_is_refused(
    pace: float | None, size: float, reasons: list[str]
) -> None:
    active = own(BEFORE) | {"cost": {"texts_per_second": 100.0, "megabytes": 100.0}}
    candidate = own(BEFORE) | {"cost": {"texts_per_second": pace, "megabytes": size}}
    verdict = compare(candidate, active, Thresholds(slower=0.25, larger=0.25))
    assert [reason.split(":")[0] for reason in verdict.reasons] == reasons


@pytest.mark.parametrize(
    ("texts", "queries", "fall", "reasons"),
    [
        (180.0, 300.0, 0.015, []),  # a student: every limit is reached, and none passed
        (100.0, 540.0, 0.015, []),  # a pair: its documents are as slow as before
        (179.0, 539.0, 0.0, ["It is not faster by 80%: +79% texts per second and +80% queries per second."]),
        (None, 540.0, 0.0, ["texts per second: the candidate has no value, so it cannot be compared."]),
        (180.0, 200.0, 0.0, ["queries per second: 200.0000 after 300.0000 is a change of -100.0000"]),
        (300.0, 600.0, 0.016, ["Search for a text by its title, dense: "]),
    ],
)
def test_speed_is_bought_with_a_certain_fall_within_the_limits(
    texts: float | None, queries: float, fall: float, reasons: list[str]
) -> None:
    """Every query falls by as much, so the fall is certain; without a gain in pace it is refused."""
    active = own(BEFORE) | {"cost": {"texts_per_second": 100.0, "queries_per_second": 300.0}}
    candidate = own(BEFORE - fall) | {"cost": {"texts_per_second": texts, "queries_per_second": queries}}
    limits = Thresholds(own_fall=0.015 + 1e-9)
    verdict = compare(candidate, active, limits, require="faster")
    assert len(verdict.reasons) == len(reasons), verdict.reasons
    assert all(reason.startswith(said) for reason, said in zip(verdict.reasons, reasons, strict=True))
    assert verdict.accepted is (not reasons)
    if fall:
        assert not compare(candidate, active, limits, require="not worse").accepted
    if not reasons:
        assert "Accepted: faster than the active version" in as_text(verdict)


def test_faster_than_an_unknown_pace_is_refused() -> None:
    verdict = compare(own(BEFORE), own(BEFORE), require="faster")
    assert verdict.reasons == ("It is not faster by 80%: no pace was measured.",)


def test_the_report_has_the_gains_and_none_of_the_samples() -> None:
    active, candidate = own(BEFORE), own(BEFORE + 0.01) | sts(BEFORE, 0.5)
    content = report(compare(candidate, active), candidate, active, {})
    assert content["gains"][0]["name"] == "own titles"
    assert content["gains"][0]["shown"] is True
    assert content["summary"][0].endswith("points: better.")
    assert content["headline"] == "Accepted: better than the active version."
    assert "samples" not in content["candidate"]
    assert "each" not in content["candidate"]["own"]["titles"]
    assert content["candidate"]["own"]["titles"]["queries"] == 200


SENTENCE = (
    "Search on your judged queries: 0.322 → 0.344 nDCG@10, candidate minus active between -0.3 and +4.7 "
    "points: not certain; about 137 judged queries would settle a gain of this size, you have 106. "
    "The least gain that would have shown, in four nights of five, is +3.4 points."
)


@pytest.mark.parametrize(
    ("difference", "half", "enough", "says"),
    [
        (
            0.022,
            0.025,
            137,
            SENTENCE,
        ),
        (0.022, 0.02, 80, "between +0.2 and +4.2 points: better."),
        (-0.022, 0.02, None, "between -4.2 and -0.2 points: worse."),
        (-0.022, 0.03, None, "points: not certain. The least gain"),
    ],
)
def test_the_sentence_says_how_certain_a_gain_is(
    difference: float, half: float, enough: int | None, says: str
) -> None:
    ends = difference - half, difference + half
    gain = Gain("own judged", difference, *ends, 0.322, 0.322 + difference, 106, 0.034, enough)
    assert says in sentence(gain)


def test_search_as_it_is_served_shows_the_gain_and_no_mode_that_is_asked_for_may_fall() -> None:
    each = RNG.uniform(0.3, 0.6, 200)

    def side(dense: np.ndarray, hybrid: np.ndarray, served: np.ndarray) -> dict[str, Any]:
        found = [own(values)["own"]["titles"] for values in (dense, hybrid, served)]
        return {"own": {"judged": found[0] | {"hybrid": found[1], "served": found[2]}}}

    before = side(each, each + 0.1, each)
    better = compare(side(each, each + 0.1, each + 0.1), before, require="better")
    assert better.accepted
    [gain] = better.gains
    assert gain.name == "own judged"
    assert gain.difference == pytest.approx(0.1)
    worse = compare(side(each, each + 0.05, each + 0.05), before, require="better")
    assert [row.name for row in worse.rows if not row.passed] == ["own judged hybrid"]
    assert "Search on your judged queries, hybrid: " in worse.reasons[0]

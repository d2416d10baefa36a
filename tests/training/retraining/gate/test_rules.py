"""The gate: limits, gains and what the report says."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from training.ranking.cross_validation import COMING, NEW
from training.retraining.gate.gains import gains
from training.retraining.gate.rules import Thresholds, compare
from training.retraining.gate.verdict import Gain, Verdict, as_text, report, sentence

LIMITS = Thresholds(mean_fall=0.0625, set_fall=0.125, uniformity_loss=0.25)
ACTIVE = {"sts12": 0.5, "stsb": 0.75}


def _scores(sts: dict[str, float | None], uniformity: float | None = -4.0, **counts: int) -> dict[str, Any]:
    scores: dict[str, Any] = {"sts": {key: {"spearman_all": value} | counts for key, value in sts.items()}}
    scores["mean"] = {"sets": [key for key in sts if key != "korsts"]}
    return scores | {"geometry": {"alignment": 0.25, "uniformity": uniformity}}


def _verdict(candidate: dict[str, float | None], uniformity: float | None = -4.0) -> Verdict:
    return compare(_scores(candidate, uniformity), _scores({**ACTIVE}), LIMITS)


@pytest.mark.parametrize(
    ("candidate", "uniformity", "failed"),
    [
        ({"sts12": 0.5, "stsb": 0.75}, -4.0, []),
        ({"sts12": 0.625, "stsb": 0.875}, -5.0, []),
        # At the limit of one set and of the mean; then one step of 2**-10 beyond it.
        ({"sts12": 0.375, "stsb": 0.75}, -4.0, []),
        ({"sts12": 0.375 - 2**-10, "stsb": 0.875}, -4.0, ["sts12"]),
        ({"sts12": 0.4375, "stsb": 0.6875}, -4.0, []),
        ({"sts12": 0.4375 - 2**-10, "stsb": 0.6875}, -4.0, ["mean of 2"]),
        # A quarter of a uniformity of -4 is 1.
        ({"sts12": 0.5, "stsb": 0.75}, -3.0, []),
        ({"sts12": 0.5, "stsb": 0.75}, -3.0 + 2**-10, ["uniformity"]),
        ({"sts12": 0.875, "stsb": 0.875}, 0.0, ["uniformity"]),
        ({"sts12": 0.25, "stsb": 0.5}, -1.0, ["mean of 2", "sts12", "stsb", "uniformity"]),
        # Figures that are not numbers, or were not measured.
        ({"sts12": math.nan, "stsb": 0.75}, -4.0, ["mean of 2", "sts12"]),
        ({"sts12": None, "stsb": 0.75}, -4.0, ["mean of 2", "sts12"]),
        ({"sts12": math.inf, "stsb": 0.75}, -4.0, ["mean of 2", "sts12"]),
        ({"sts12": 0.5, "stsb": 0.75}, math.nan, ["uniformity"]),
        ({"sts12": 0.5, "stsb": 0.75}, None, ["uniformity"]),
        ({"stsb": 0.875}, -4.0, ["sts12"]),
    ],
)
def test_worse_than_allowed_is_refused_and_equal_is_accepted(
    candidate: dict[str, float | None], uniformity: float | None, failed: list[str]
) -> None:
    verdict = _verdict(candidate, uniformity)
    assert [row.name for row in verdict.rows if not row.passed] == failed
    assert verdict.accepted is (not failed)
    assert [reason.split(":")[0] for reason in verdict.reasons] == failed


def test_every_comparison_is_a_row() -> None:
    rows = {row.name: row for row in _verdict({"sts12": 0.375, "stsb": 0.875}, -3.5).rows}
    assert rows["mean of 2"] == ("mean of 2", 0.625, 0.625, 0.0, -0.0625, True)
    assert rows["sts12"] == ("sts12", 0.5, 0.375, -0.125, -0.125, True)
    assert rows["stsb"] == ("stsb", 0.75, 0.875, 0.125, -0.125, True)
    assert rows["uniformity"] == ("uniformity", -4.0, -3.5, 0.5, 1.0, True)
    assert rows["alignment"] == ("alignment", 0.25, 0.25, 0.0, None, True)


def test_a_figure_of_the_active_model_that_is_no_number_is_refused_too() -> None:
    verdict = compare(_scores({"stsb": 0.5}), _scores({"stsb": math.nan}), LIMITS)
    assert not verdict.accepted
    assert "stsb: the active model has no value, so it cannot be compared." in verdict.reasons


def test_a_set_of_the_candidate_alone_is_named_and_does_not_count() -> None:
    verdict = _verdict({"sts12": 0.5, "stsb": 0.75, "sickr": 0.125})
    assert verdict.accepted
    assert verdict.rows[0].candidate == 0.625  # the mean is over the common sets


@pytest.mark.parametrize("other", [{"korsts": 0.125}, {"korsts": None}, {}])
def test_another_language_is_neither_compared_nor_in_the_mean(other: dict[str, float | None]) -> None:
    active = _scores({**ACTIVE, "korsts": 0.875}, pairs=8)
    verdict = compare(_scores({**ACTIVE, **other}, pairs=8), active, LIMITS)
    assert verdict.accepted
    assert [row.name for row in verdict.rows] == ["mean of 2", "sts12", "stsb", "uniformity", "alignment"]
    assert verdict.rows[0][1:3] == (0.625, 0.625)


@pytest.mark.parametrize("active", [{}, {"sts": {}}, _scores({"sts14": 0.5}), _scores({"korsts": 0.5})])
def test_without_a_common_set_nothing_is_accepted(active: dict[str, Any]) -> None:
    verdict = compare(_scores({"stsb": 0.875}), active)
    assert not verdict.accepted
    assert verdict.rows == ()
    [reason] = verdict.reasons
    assert (
        reason == "The candidate and the active model have no scored set in common: nothing can be compared."
    )


def test_geometry_is_compared_when_the_active_model_has_it() -> None:
    without = {key: value for key, value in _scores({**ACTIVE}).items() if key != "geometry"}
    assert compare(without, without, LIMITS).accepted
    lost = compare(without, _scores({**ACTIVE}), LIMITS)
    assert [reason.split(":")[0] for reason in lost.reasons] == ["uniformity", "alignment"]
    gained = compare(_scores({**ACTIVE}), without, LIMITS)
    assert gained.accepted


@pytest.mark.parametrize(
    ("before", "after", "reasons"),
    [
        ({"pairs": 8, "undefined": 1}, {"pairs": 8, "undefined": 1}, ()),
        ({"pairs": 8}, {"pairs": 7}, ("stsb: not the same data, 8 pairs for the active model and 7 now.",)),
        ({"undefined": 0}, {"undefined": 3}, ("stsb: 3 cosines have no value, 0 with the active model.",)),
        ({"undefined": 3}, {"undefined": 0}, ()),
    ],
)
def test_scores_on_other_data_or_with_more_holes_are_refused(
    before: dict[str, int], after: dict[str, int], reasons: tuple[str, ...]
) -> None:
    verdict = compare(_scores({"stsb": 0.875}, **after), _scores({"stsb": 0.75}, **before), LIMITS)
    assert verdict.reasons == reasons
    assert verdict.accepted is (not reasons)


def test_the_defaults_allow_half_a_point_of_the_mean() -> None:
    active = _scores({"stsb": 0.75, "sts12": 0.75})
    assert compare(active, active).accepted
    assert compare(_scores({"stsb": 0.7460, "sts12": 0.7460}), active).accepted
    assert not compare(_scores({"stsb": 0.7440, "sts12": 0.7440}), active).accepted


@pytest.mark.parametrize("value", [-0.1, 1.5, math.nan])
def test_a_threshold_that_would_let_everything_pass_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="set_fall"):
        Thresholds(set_fall=value)


def test_the_report_holds_both_scores_and_is_json() -> None:
    candidate, active = _scores({"sts12": math.nan, "stsb": 0.875}), _scores({**ACTIVE})
    content = report(compare(candidate, active, LIMITS), candidate, active, {"parent": "v1", "seed": 7})
    plain = json.loads(json.dumps(content, allow_nan=False))
    assert plain == content
    assert plain["accepted"] is False
    assert plain["reasons"][0].startswith("mean of 2: the candidate has no value")
    figures = {"active": 0.75, "candidate": 0.875, "difference": 0.125, "allowed": -0.125}
    names = {"name": "stsb", "title": "stsb", "measure": "Spearman"}
    assert plain["rows"][2] == figures | names | {"passed": True}
    assert plain["candidate"]["sts"]["sts12"]["spearman_all"] is None
    assert plain["active"]["sts"]["stsb"]["spearman_all"] == 0.75
    assert plain["meta"] == {"parent": "v1", "seed": 7}


def test_the_text_says_why() -> None:
    lines = as_text(_verdict({"sts12": 0.25, "stsb": 0.875, "sickr": 0.5})).splitlines()
    why = "- sts12: 0.2500 after 0.5000 is a change of -0.2500, and -0.1250 is allowed."
    assert lines == ["Refused.", why]
    assert as_text(_verdict({**ACTIVE})) == "Accepted: not worse than the active version."


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
    """The standard error is 0.014: a mean gain of 0.01 may be luck, 0.04 is not. For equal gains it is 0."""
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
    said = as_text(verdict)
    assert said.startswith("Search for a text by its title: 0.505 → 0.515 nDCG@10, candidate minus")
    assert "not certain; about 1,788 queries would settle a gain of this size, you have 200." in said


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
    candidate = {"own": {COMING: rose, "titles": fell}}
    verdict = compare(candidate, {"own": {COMING: before, "titles": before}}, require="better")
    assert [reason.split(":")[0] for reason in verdict.reasons] == ["Search for a text by its title"]


def test_where_queries_are_judged_nothing_else_shows_a_gain() -> None:
    rose = own(BEFORE + 0.1)["own"]["titles"]
    before = own(BEFORE)["own"]["titles"]
    sides = {"own": {COMING: before, "titles": rose}}, {"own": {COMING: before, "titles": before}}
    assert [gain.name for gain in gains(*sides)] == [f"own {COMING}"]
    assert compare(*sides, require="better").reasons == ("Nothing became better by more than luck explains.",)


def test_a_few_judged_queries_guard_and_decide_nothing() -> None:
    before, rose = (own(BEFORE + gain)["own"]["titles"] for gain in (0, 0.1))
    few = {"ndcg10": 0.5, "queries": 8, "each": [0.5] * 8}
    more = {"ndcg10": 0.7, "queries": 8, "each": [0.7] * 8}
    less = {"ndcg10": 0.2, "queries": 8, "each": [0.2, 0.3, 0.1, 0.2, 0.3, 0.2, 0.2, 0.1]}
    active = {"own": {"titles": before, COMING: few}}
    unchanged = compare({"own": {"titles": before, COMING: more}}, active, require="better")
    assert unchanged.reasons == ("Nothing became better by more than luck explains.",)
    verdict = compare({"own": {"titles": rose, COMING: few}}, active, require="better")
    assert verdict.accepted
    assert [gain.name for gain in verdict.gains] == ["own titles"]
    refused = compare({"own": {"titles": rose, COMING: less}}, active, require="better")
    [reason] = refused.reasons
    assert reason.startswith("Questions as they come:")


def test_a_gain_says_what_could_have_been_seen_and_what_would_settle_it() -> None:
    """A deviation of 0.2 over 200 queries gives a standard error of 0.014. The interval is ± 2.35 errors."""
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
    cost = {"texts_per_second": 100.0, "queries_per_second": 300.0, "megabytes": 100.0}
    active = own(BEFORE) | {"cost": cost}
    active["geometry"] = {"uniformity": -3.0, "alignment": 0.2}
    active |= {"sts": {"stsb": {"spearman_all": 0.7}}, "mean": {"sets": ["stsb"]}}
    content = report(compare(active | {"drift": {"neighbours": 0.1}}, active), active, active, {})
    assert {row["title"]: row["measure"] for row in content["rows"]} == {
        "mean of 1": "Spearman",
        "stsb": "Spearman",
        "uniformity": "lower is better",
        "alignment": "lower is better",
        "Search for a text by its title": "nDCG@10",
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
        (180.0, 200.0, 0.0, ["queries per second: 200.0 after 300.0 is a change of -100.0"]),
        (300.0, 600.0, 0.016, ["Search for a text by its title: "]),
    ],
)
def test_speed_is_bought_with_a_certain_fall_within_the_limits(
    texts: float | None, queries: float, fall: float, reasons: list[str]
) -> None:
    """Each query loses the same, so the loss is certain. It may be traded for speed up to a limit."""
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
    "Questions as they come: 0.322 → 0.344 nDCG@10, candidate minus active between -0.3 and +4.7 "
    "points: not certain; about 137 judged queries would settle a gain of this size, you have 106. "
    "The least gain that would have shown, in four nights of five, is +3.4 points."
)


@pytest.mark.parametrize(
    ("difference", "half", "enough", "says"),
    [
        (0.022, 0.025, 137, SENTENCE),
        (0.022, 0.02, 80, "between +0.2 and +4.2 points: better."),
        (-0.022, 0.02, None, "between -4.2 and -0.2 points: worse."),
        (-0.022, 0.03, None, "points: not certain. The least gain"),
    ],
)
def test_the_sentence_says_how_certain_a_gain_is(
    difference: float, half: float, enough: int | None, says: str
) -> None:
    ends = difference - half, difference + half
    gain = Gain(f"own {COMING}", difference, *ends, 0.322, 0.322 + difference, 106, 0.034, enough)
    assert says in sentence(gain)


def test_a_loss_on_new_questions_is_refused_whatever_the_others_gain() -> None:
    before, rose, fell = (own(BEFORE + gain)["own"]["titles"] for gain in (0, 0.1, -0.02))
    active = {"own": {NEW: before, COMING: before}}
    verdict = compare({"own": {NEW: fell, COMING: rose}}, active, require="better")
    assert [row.name for row in verdict.rows if not row.passed] == [f"own {NEW}"]
    [gain] = verdict.gains
    assert (gain.name, gain.shown) == (f"own {COMING}", True)
    assert compare({"own": {NEW: before, COMING: rose}}, active, require="better").accepted

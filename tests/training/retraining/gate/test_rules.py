"""The promotion gate: worse is refused with the figure, equal is accepted. Every float here is exact."""

import json
import math
from typing import Any

import pytest

from training.retraining.gate.rules import Thresholds, compare
from training.retraining.gate.verdict import Verdict
from training.retraining.gate.words import as_text, report

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
        # No number, or not measured.
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
    assert verdict.not_compared == ("sickr",)
    assert verdict.rows[0].candidate == 0.625  # the mean is over the common sets


@pytest.mark.parametrize("other", [{"korsts": 0.125}, {"korsts": None}, {}])
def test_another_language_is_neither_compared_nor_in_the_mean(other: dict[str, float | None]) -> None:
    active = _scores({**ACTIVE, "korsts": 0.875}, pairs=8)
    verdict = compare(_scores({**ACTIVE, **other}, pairs=8), active, LIMITS)
    assert (verdict.accepted, verdict.reasons, verdict.not_compared) == (True, (), ())
    assert [row.name for row in verdict.rows] == ["mean of 2", "sts12", "stsb", "uniformity", "alignment"]
    assert verdict.rows[0][1:3] == (0.625, 0.625)


@pytest.mark.parametrize("active", [{}, {"sts": {}}, _scores({"sts14": 0.5}), _scores({"korsts": 0.5})])
def test_without_a_common_set_nothing_is_accepted(active: dict[str, Any]) -> None:
    verdict = compare(_scores({"stsb": 0.875}), active)
    assert not verdict.accepted
    assert verdict.rows == ()
    assert verdict.reasons == (
        "The candidate and the active model have no scored set in common: nothing can be compared.",
    )


def test_geometry_is_compared_when_the_active_model_has_it() -> None:
    without = {key: value for key, value in _scores({**ACTIVE}).items() if key != "geometry"}
    assert compare(without, without, LIMITS).accepted
    lost = compare(without, _scores({**ACTIVE}), LIMITS)
    assert [reason.split(":")[0] for reason in lost.reasons] == ["uniformity", "alignment"]
    gained = compare(_scores({**ACTIVE}), without, LIMITS)
    assert gained.accepted
    assert gained.not_compared == ("geometry",)


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
    assert plain["rows"][2] == {
        "name": "stsb",
        "active": 0.75,
        "candidate": 0.875,
        "difference": 0.125,
        "allowed": -0.125,
        "passed": True,
        "title": "stsb",
        "measure": "Spearman",
    }
    assert plain["candidate"]["sts"]["sts12"]["spearman_all"] is None
    assert plain["active"]["sts"]["stsb"]["spearman_all"] == 0.75
    assert plain["meta"] == {"parent": "v1", "seed": 7}


def test_the_text_shows_every_row_and_why() -> None:
    lines = as_text(_verdict({"sts12": 0.25, "stsb": 0.875, "sickr": 0.5})).splitlines()
    assert lines[:3] == [
        "Refused.",
        "- sts12: 0.2500 after 0.5000 is a change of -0.2500, and -0.1250 is allowed.",
        "",
    ]
    assert lines[5].split() == ["sts12", "0.5000", "0.2500", "-0.2500", "-0.1250", "REFUSED"]
    assert lines[6].split() == ["stsb", "0.7500", "0.8750", "+0.1250", "-0.1250", "passed"]
    assert lines[8].split() == ["alignment", "0.2500", "0.2500", "+0.0000", "any", "passed"]
    assert lines[9:] == [
        "The difference is candidate minus active.",
        "Measured for the candidate only: sickr.",
    ]
    assert as_text(_verdict({**ACTIVE})).splitlines()[0] == "Accepted: not worse than the active version."


def test_the_text_says_when_a_collapse_could_not_be_seen() -> None:
    sts = {"sts12": {"spearman_all": 0.5, "pairs": 10}}
    scores = {"sts": sts, "mean": {"sets": ["sts12"]}}
    text = as_text(compare(scores, scores))
    assert "Geometry was not measured" in text
    assert "Geometry" not in as_text(_verdict({**ACTIVE}))

"""The rules of the gate: compare the scores of a candidate and the active version, and accept or reject.

    scores of both versions on the same data ─▶ compare ─▶ Verdict ─▶ text (verdict.py)

The setting `require` has three values:

    not worse    no figure may fall by more than a limit
    better       in addition, the searches that decide must show a significant gain (gains.py), which must
                 not depend on the queries of a single API key
    faster       for a student: texts or single queries must be encoded faster by `Thresholds.faster`; a fall
                 within the limit is accepted even if it is significant

This module only computes with scores. It opens no model and activates nothing. Drift is measured from the
anchor, the first version of the series of retrainings.

A search over the user's own text counts as worse if the interval of the difference is below zero, or if the
fall exceeds both the limit and a quarter of the interval's width (`_allowed_fall`). The intervals are 95 %
over all searches together. tests/training/retraining/gate/test_nights.py counts how many candidates without
any true difference are rejected: with three searches, one in four if each has up to 300 queries, one in 14
with 1,000 queries, and one in 40 with 2,000.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from models.manifest import Manifest
from training.evaluation.paired import spread
from training.ranking.cross_validation import COMING
from training.retraining.gate.gains import gains, rests_on_one_key
from training.retraining.gate.verdict import EACH, GROUPS, Row, Scores, Verdict, figure, title
from training.retraining.trust import described
from training.validation import Share

Require = Literal["not worse", "better", "faster"]
_PACES = ("texts_per_second", "queries_per_second")
_Figures = Mapping[str, float | None]
_FALL_LEVEL = 0.025  # one-sided level of the intervals of all falls together


class Thresholds(BaseModel):
    """How much worse a candidate may be, as fractions from 0 to 1. A fall equal to the limit is allowed.

    `faster` is not such a limit, but the gain in speed that `require = "faster"` needs.

    The limits were measured on the default model with STS12, STS14, STS16, STS-B and SICK-R.
    tests/training/evaluation/test_default_scores.py repeats the measurement.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    # One standard error of the mean of the five sets, 0.0047 (bootstrap over pairs). Two models that are
    # equally good should differ by less, because both are scored on the same pairs.
    mean_fall: Share = 0.005
    # One set alone moves more: its standard error is 0.008 (SICK-R) to 0.013 (STS16).
    set_fall: Share = 0.02
    # Share of the active model's uniformity that may be lost. All of it is lost if all vectors are equal.
    # Similarity does not show such a loss. After a common vector of length 1 was added to every vector, the
    # mean stayed at 0.772, but uniformity rose from -3.82 to -1.92 (to -3.06 with a length of 0.5).
    uniformity_loss: Share = 0.25
    # nDCG@10 of a search over the team's own text. Chosen by us.
    own_fall: Share = 0.01
    # Share of a text's ten nearest texts that may differ from those by the anchor. Chosen by us. After 60
    # steps on MLQA, it was 0.09 if search had gained 2.4 points, and 0.22 if search had lost 3.8 points.
    drift: Share = 0.5
    # Shares of the active model's texts or queries per second and of its file. Chosen by us:
    # times on a busy machine differ by less, and other architectures by more.
    slower: Share = 0.25
    larger: Share = 0.25
    # Relative gain of speed that `require = "faster"` needs. A student with half the layers gained 0.8.
    faster: Share = 0.8


def compare(
    candidate: Scores,
    active: Scores,
    thresholds: Thresholds | None = None,
    require: Require = "not worse",
    looks: float = 1.0,
) -> Verdict:
    """Compares all scores. Accepts the candidate if each figure stays within its limit.

    A candidate is also rejected in these cases:

    - a figure of the active version is missing in the candidate, or not a finite number in one of the two
    - a set has another number of pairs or queries, so the data differ
    - more cosines are undefined than before
    - `require` is `better`, and there is no significant gain, or a single API key causes it
    - `require` is `faster`, and the candidate is not faster

    Only the English similarity sets are compared.

    Args:
        candidate: Scores of the candidate.
        active: Scores of the active version.
        thresholds: Limits. None means the defaults.
        require: What the candidate must achieve.
        looks: Which test on the same queries this is, from 1.

    """
    limits = thresholds or Thresholds()
    before, after = _in_mean(active), _in_mean(candidate)
    common = [key for key in before if key in after]
    own_before, own_after = (side.get("own") or {} for side in (active, candidate))
    if not common and not (own_before and own_after):
        reason = "The candidate and the active model have no scored set in common: nothing can be compared."
        return Verdict((reason,))
    rows = (
        *_similarity_rows(before, after, common, limits),
        *_shared_rows(active, candidate, limits),
        *_own_rows(own_before, own_after, limits, traded=require == "faster"),
    )
    found = gains(candidate, active, looks)
    reasons = (
        *_mismatches(active.get("sts") or {}, candidate.get("sts") or {}, common, "pairs"),
        *_mismatches(own_before, own_after, [key for key in own_before if key in own_after], "queries"),
        *(_reason(row) for row in rows if not row.passed),
    )
    if require == "better" and not any(gain.shown for gain in found):
        reasons += ("Nothing became better by more than luck explains.",)
    # A gain that titles or known items show does not rest on a key.
    if require == "better" and not any(gain.shown and gain.name != f"own {COMING}" for gain in found):
        reasons += tuple(
            f"Without the queries that only {described(name)} judged, judged queries gain nothing."
            for name in rests_on_one_key(candidate, active)
        )
    if require == "faster":
        reasons += tuple(_no_faster(active.get("cost") or {}, candidate.get("cost") or {}, limits))
    return Verdict(reasons, rows, found, require == "faster")


def changed_use(candidate: Manifest, active: Manifest) -> Iterator[str]:
    """Yields reasons to reject that the scores do not show: a shorter max_length, or other prompts."""
    before, after = active.max_length, candidate.max_length
    if after < before:
        yield f"max_length: texts would be cut at {after} tokens instead of {before}."
    for name in ("search_prompt", "document_prompt"):
        was, now = getattr(active, name), getattr(candidate, name)
        if was != now:
            yield f"{name}: {now!r} instead of {was!r}, and the sets are scored without one."


def _similarity_rows(
    before: _Figures, after: _Figures, common: list[str], limits: Thresholds
) -> Iterator[Row]:
    if common:
        yield _row(f"mean of {len(common)}", _mean(before, common), _mean(after, common), -limits.mean_fall)
    for key, was in before.items():
        yield _row(key, was, after.get(key), -limits.set_fall)


def _own_rows(before: Scores, after: Scores, limits: Thresholds, *, traded: bool) -> Iterator[Row]:
    """Yields the comparisons of searches over the user's own text.

    If `traded` is True, a fall within the limit is accepted even if it is significant.
    """
    for key in before:
        was, now = (_number(side.get(key, {}).get("ndcg10")) for side in (before, after))
        each = before[key].get(EACH, ()), after.get(key, {}).get(EACH, ())
        allowed = limits.own_fall
        if each[0] and len(each[0]) == len(each[1]):
            half = spread(*each, before[key].get(GROUPS)).half(_FALL_LEVEL / len(before))
            allowed = max(half / 2, allowed) if traded else _allowed_fall(half, limits.own_fall)
        yield _row(f"own {key}", was, now, -allowed)


def _allowed_fall(half: float, limit: float) -> float:
    """Returns the largest fall that is allowed.

    A fall of more than `half` has an interval entirely below zero, so it is significant. A smaller fall is
    not allowed either if it exceeds both `limit` and half of `half`.

    Args:
        half: Half the width of the interval.
        limit: The limit in `Thresholds`.

    """
    return min(half, max(limit, half / 2))


def _shared_rows(active: Scores, candidate: Scores, limits: Thresholds) -> Iterator[Row]:
    """Yields the comparisons of geometry, speed, size and drift.

    Most limits are shares of the active figures. Drift has an absolute limit. Alignment has no limit, because
    collapsed vectors improve it.
    """
    shares = {"uniformity": limits.uniformity_loss, "alignment": None}
    shares |= dict.fromkeys(_PACES, -limits.slower) | {"megabytes": limits.larger}
    before, after = ((side.get("geometry") or {}) | (side.get("cost") or {}) for side in (active, candidate))
    for key, share in shares.items():
        if key in before:
            was = _number(before[key])
            allowed = None if share is None else share * abs(was or 0.0)
            lower = key not in _PACES
            yield _row(key.replace("_", " "), was, _number(after.get(key)), allowed, lower_is_better=lower)
    if drift := candidate.get("drift"):
        now = _number(drift["neighbours"])
        yield _row("drift from the anchor", 0.0, now, limits.drift, lower_is_better=True)


def _no_faster(before: Scores, after: Scores, limits: Thresholds) -> Iterator[str]:
    """Yields the reason if the candidate is too slow."""
    paces = [(pace, _number(before.get(pace)), _number(after.get(pace))) for pace in _PACES]
    gained = {pace.replace("_", " "): now / was - 1 for pace, was, now in paces if was and now is not None}
    if all(gain < limits.faster for gain in gained.values()):
        found = " and ".join(f"{gain:+.0%} {pace}" for pace, gain in gained.items()) or "no pace was measured"
        yield f"It is not faster by {limits.faster:.0%}: {found}."


def _row(
    name: str,
    active: float | None,
    candidate: float | None,
    allowed: float | None,
    *,
    lower_is_better: bool = False,
) -> Row:
    if active is None or candidate is None:
        return Row(name, active, candidate, None, allowed, False)
    difference = candidate - active
    within = allowed is None or (difference <= allowed if lower_is_better else difference >= allowed)
    return Row(name, active, candidate, difference, allowed, within)


def _reason(row: Row) -> str:
    if row.difference is None:
        sides = (("active model", row.active), ("candidate", row.candidate))
        without = " and the ".join(side for side, value in sides if value is None)
        return f"{title(row.name)}: the {without} has no value, so it cannot be compared."
    return (
        f"{title(row.name)}: {figure(row.candidate)} after {figure(row.active)} is a change of "
        f"{figure(row.difference, '+')}, and {figure(row.allowed, '+')} is allowed."
    )


def _mismatches(before: Scores, after: Scores, common: list[str], what: str) -> Iterator[str]:
    for key in common:
        many = before[key].get(what), after[key].get(what)
        if None not in many and many[0] != many[1]:
            yield f"{key}: not the same data, {many[0]} {what} for the active model and {many[1]} now."
        undefined = before[key].get("undefined", 0), after[key].get("undefined", 0)
        if undefined[1] > undefined[0]:
            yield f"{key}: {undefined[1]} cosines have no value, {undefined[0]} with the active model."


def _in_mean(scores: Scores) -> _Figures:
    """Returns Spearman's correlation on each set that is in the mean."""
    sts, mean = scores.get("sts") or {}, scores.get("mean") or {}
    return {key: _number(sts[key].get("spearman_all")) for key in mean.get("sets", ()) if key in sts}


def _mean(sts: _Figures, keys: list[str]) -> float | None:
    each = [value for key in keys if (value := sts[key]) is not None]
    return sum(each) / len(each) if len(each) == len(keys) else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

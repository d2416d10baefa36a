"""Types for the verdict of the gate and for the comparisons in it. words.py formats a verdict as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

Scores = Mapping[str, Any]  # as evaluation.suites.score returns them
# Needed for the comparison only, and left out of reports.
SAMPLES, RANKINGS = "samples", "rankings"
EACH, HITS, GROUPS, KEYS, NAMES = "each", "hits", "groups", "keys", "names"
_COMPARED_ONLY = {SAMPLES, RANKINGS, EACH, HITS, GROUPS, KEYS, NAMES}
JUDGED = "judged"  # the search by judged queries, whose scores are called NEW and COMING


class Row(NamedTuple):
    """The comparison of one figure between the active version and the candidate."""

    name: str
    active: float | None  # None: not measured, or not a number
    candidate: float | None
    difference: float | None  # candidate minus active
    allowed: float | None  # the worst difference that passes; None: any number passes
    passed: bool


class Gain(NamedTuple):
    """A possible gain of the candidate, with the interval of the difference."""

    name: str
    difference: float  # candidate minus active
    low: float  # lower end of the interval; paired.py has its level
    high: float
    active: float
    candidate: float
    queries: int | None  # number of queries; like the next two fields, None for similarity sets
    least: float | None  # the least true gain that would have shown, in four nights of five
    enough: int | None  # queries that would show a gain of this size; None without a gain

    @property
    def shown(self) -> bool:
        return self.low > 0


class Verdict(NamedTuple):
    reasons: tuple[str, ...]  # reasons to refuse the candidate; empty if it is accepted
    rows: tuple[Row, ...] = ()
    gains: tuple[Gain, ...] = ()  # empty: no measurement can show a gain
    traded: bool = False  # True if falls within the limits are accepted for more speed

    @property
    def accepted(self) -> bool:
        return not self.reasons


def without_samples(scores: Scores) -> dict[str, Any]:
    """Returns scores without the values of single queries and pairs, and without rankings."""
    return {
        key: without_samples(value) if isinstance(value, Mapping) else value
        for key, value in scores.items()
        if key not in _COMPARED_ONLY
    }

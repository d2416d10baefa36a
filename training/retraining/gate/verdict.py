"""Types for the verdict of the gate and for the comparisons in it, and the verdict as text and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from training.ranking.cross_validation import COMING, NEW

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


_TITLES = {
    f"own {NEW}": "New questions",
    f"own {COMING}": "Questions as they come",
    "own titles": "Search for a text by its title",
    "own known": "Search for a document by its rare words",
}
_UNITS = {
    "texts per second": "of one thread",
    "queries per second": "of one thread, each alone",
    "megabytes": "",
    "uniformity": "lower is better",
    "alignment": "lower is better",
    "drift from the anchor": "share of the ten nearest",
}
NDCG, SPEARMAN = "nDCG@10", "Spearman"


def title(name: str) -> str:
    """Returns the displayed name of a measured search, set or cost."""
    return _TITLES.get(name, name.removeprefix("own "))


def measure(name: str) -> str:
    """Returns the unit of a figure by the figure's name, or an empty string if the name says the unit."""
    if name.startswith("own "):
        return NDCG
    return _UNITS.get(name, SPEARMAN)


def sentence(gain: Gain) -> str:
    """Describes a gain in one sentence: before, after, the interval, and the queries needed for certainty."""
    said = (
        f"{title(gain.name)}: {gain.active:.3f} → {gain.candidate:.3f} {measure(gain.name)}, "
        f"candidate minus active between {_points(gain.low)} and {_points(gain.high)} points: "
    )
    if gain.shown:
        return f"{said}better."
    if gain.high < 0:
        return f"{said}worse."
    said += "not certain"
    if gain.enough is not None:
        what = "judged queries" if gain.name == f"own {COMING}" else "queries"
        said += f"; about {gain.enough:,} {what} would settle a gain of this size, you have {gain.queries:,}"
    if gain.least is not None and math.isfinite(gain.least):
        least = _points(gain.least)
        said += f". The least gain that would have shown, in four nights of five, is {least} points"
    return f"{said}."


def headline(verdict: Verdict) -> str:
    if not verdict.accepted:
        return "Refused."
    if verdict.traded:
        return "Accepted: faster than the active version, and no worse than the limits allow."
    better = any(gain.shown for gain in verdict.gains)
    return f"Accepted: {'better' if better else 'not worse'} than the active version."


def as_text(verdict: Verdict) -> str:
    """Formats a verdict for the terminal, without a final newline."""
    reasons = (f"- {each}" for each in verdict.reasons)
    return "\n".join([*map(sentence, verdict.gains), headline(verdict), *reasons])


def report(verdict: Verdict, candidate: Scores, active: Scores, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the verdict and all scores as JSON values.

    Args:
        verdict: The verdict of the gate.
        candidate: Scores of the candidate.
        active: Scores of the active version.
        meta: Further fields: the models, the time and the training.

    """
    content = {
        "accepted": verdict.accepted,
        "headline": headline(verdict),
        "summary": [sentence(gain) for gain in verdict.gains],
        "reasons": verdict.reasons,
        "rows": [
            row._asdict() | {"title": title(row.name), "measure": measure(row.name)} for row in verdict.rows
        ],
        "gains": [
            gain._asdict() | {"title": title(gain.name), "shown": gain.shown} for gain in verdict.gains
        ],
        "meta": meta,
        "candidate": without_samples(candidate),
        "active": without_samples(active),
    }
    # JSON has lists instead of tuples, and null instead of NaN.
    plain: dict[str, Any] = json.loads(json.dumps(content), parse_constant=lambda _: None)
    return plain


def _points(value: float) -> str:
    """Formats a figure from 0 to 1 in points, which are hundredths."""
    return f"{100 * value:+.1f}"


def figure(value: float | None, sign: str = "") -> str:
    return "none" if value is None else f"{value:{sign}.{4 if abs(value) < 10 else 1}f}"

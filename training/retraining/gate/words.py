"""Format the verdict of the gate for the terminal, for JSON and for the report page."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from training.ranking.cross_validation import COMING, NEW
from training.retraining.gate.verdict import Gain, Scores, Verdict, without_samples

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
    if gain.enough is not None and gain.queries is not None:
        what = "judged queries" if gain.name == f"own {COMING}" else "queries"
        said += f"; about {gain.enough:,} {what} would settle a gain of this size, you have {gain.queries:,}"
    if gain.least is not None and math.isfinite(gain.least):
        said += (
            f". The least gain that would have shown, in four nights of five, is {_points(gain.least)} points"
        )
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

"""The verdict of the promotion gate, and its words: for the terminal and for the report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

Scores = Mapping[str, Any]  # as evaluation.suites.score gives them, and what fit.py adds
# What only a comparison needs: long, and not in a report.
SAMPLES, EACH, HITS, GROUPS, KEYS = "samples", "each", "hits", "groups", "keys"
JUDGED = "judged"  # the search by labelled queries: it decides where there is one


def measures(own: Scores) -> dict[str, Scores]:
    """Figures of the searches that depend on the model, by name: `titles` is dense, `titles hybrid` both."""
    found: dict[str, Scores] = {}
    for name, figures in own.items():
        found[name] = figures
        if "hybrid" in figures:
            found[f"{name} hybrid"] = figures["hybrid"]
    return found


class Row(NamedTuple):
    """A comparison of one figure."""

    name: str
    active: float | None  # None: not measured, or no number
    candidate: float | None
    difference: float | None  # candidate minus active
    allowed: float | None  # the worst difference that passes; None: any number passes
    passed: bool


class Gain(NamedTuple):
    """A figure that the candidate may be better at, and how far that may be luck."""

    name: str
    difference: float  # candidate minus active
    low: float  # of the interval: paired.py says at which level
    high: float
    active: float
    candidate: float
    queries: int | None  # that it is over; None for the similarity sets, with the two below
    least: float | None  # the least true gain that would have shown, in four nights of five
    enough: int | None  # queries with which a gain of this size would show; None also where there is no gain

    @property
    def shown(self) -> bool:
        return self.low > 0


class Verdict(NamedTuple):
    accepted: bool
    reasons: tuple[str, ...]  # why it was refused; empty when it was accepted
    rows: tuple[Row, ...]
    not_compared: tuple[str, ...]  # what was measured for the candidate only
    gains: tuple[Gain, ...] = ()  # empty: nothing was measured that a gain can be shown on

    def besides(self, reasons: tuple[str, ...]) -> Verdict:
        """Refused for these as well, when there are any."""
        return self._replace(accepted=self.accepted and not reasons, reasons=(*self.reasons, *reasons))


def report(verdict: Verdict, candidate: Scores, active: Scores, meta: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict with all that it rests on, ready for JSON. `meta` says which models, when, trained how."""
    content = {
        "accepted": verdict.accepted,
        "reasons": verdict.reasons,
        "rows": [row._asdict() for row in verdict.rows],
        "not_compared": verdict.not_compared,
        "gains": [gain._asdict() | {"shown": gain.shown} for gain in verdict.gains],
        "meta": meta,
        "candidate": _without_samples(candidate),
        "active": _without_samples(active),
    }
    plain: dict[str, Any] = _plain(content)
    return plain


def as_text(verdict: Verdict) -> str:
    """For the terminal. Ends without a newline."""
    lines = (
        [f"{'':12}{'active':>10}{'candidate':>11}{'difference':>12}{'allowed':>10}"] if verdict.rows else []
    )
    for row in verdict.rows:
        cells = f"{figure(row.active):>10}{figure(row.candidate):>11}{figure(row.difference, '+'):>12}"
        allowed = "any" if row.allowed is None else figure(row.allowed, "+")
        lines += [f"{row.name:12}{cells}{allowed:>10}  {'passed' if row.passed else 'REFUSED'}"]
    if verdict.not_compared:
        lines += [f"Measured for the candidate only: {', '.join(verdict.not_compared)}."]
    if verdict.rows and all(row.name != "uniformity" for row in verdict.rows):
        lines += ["Geometry was not measured, because STS-B is not there: a collapse would pass unseen."]
    for gain in verdict.gains:
        word = "better" if gain.shown else "may be luck"
        lines += [
            f"{gain.name}: {gain.difference:+.4f}, between {gain.low:+.4f} and {gain.high:+.4f}: {word}"
        ]
    lines += ["Accepted: not worse." if verdict.accepted else "Refused:"]
    return "\n".join([*lines, *(f"- {reason}" for reason in verdict.reasons)])


def figure(value: float | None, sign: str = "") -> str:
    return "none" if value is None else f"{value:{sign}.4f}"


def _without_samples(scores: Scores) -> dict[str, Any]:
    kept = {key: value for key, value in scores.items() if key != SAMPLES}
    return kept | ({"own": _means(kept["own"])} if kept.get("own") else {})


def _means(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Without what there is for each query, at any depth."""
    return {
        key: _means(value) if isinstance(value, Mapping) else value
        for key, value in figures.items()
        if key not in {EACH, HITS, GROUPS, KEYS}
    }


def _plain(value: Any) -> Any:
    """Lists for tuples and None for what is no number, which JSON cannot hold."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""Types for the verdict of the gate and for the comparisons in it. words.py formats a verdict as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

Scores = Mapping[str, Any]  # as evaluation.suites.score gives them, and what fit.py adds
# What only a comparison needs: long, and not in a report.
SAMPLES, EACH, HITS, GROUPS, KEYS = "samples", "each", "hits", "groups", "keys"
JUDGED = "judged"  # the search by labelled queries: it decides where there is one
TOO_FEW_JUDGED = "few"  # the same of fewer queries than can show a gain: it guards, and decides nothing
LABELLED = (JUDGED, TOO_FEW_JUDGED)  # one of them at most
CLICKED = "clicked"  # the same by clicks alone, where the search itself is judged: they know what was shown
HYBRID = "hybrid"
SERVED = "served"  # as a query that names no mode is answered; where the sides differ in that


def measures(own: Scores) -> dict[str, Scores]:
    """Returns the figures of each search that depends on the model, by name and mode.

    `titles` is dense search and `titles hybrid` is hybrid search.
    """
    found: dict[str, Scores] = {}
    for name, figures in own.items():
        found[name] = figures
        found |= {f"{name} {mode}": figures[mode] for mode in (HYBRID, SERVED) if mode in figures}
    return found


class Row(NamedTuple):
    """The comparison of one figure between the active version and the candidate."""

    name: str
    active: float | None  # None: not measured, or no number
    candidate: float | None
    difference: float | None  # candidate minus active
    allowed: float | None  # the worst difference that passes; None: any number passes
    passed: bool


class Gain(NamedTuple):
    """A possible gain of the candidate, with the interval of the difference."""

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
    traded: bool = False  # speed was asked for, and falls within the limits were its price

    def besides(self, reasons: tuple[str, ...]) -> Verdict:
        """Returns the verdict with further reasons to reject the candidate, if `reasons` is not empty."""
        return self._replace(accepted=self.accepted and not reasons, reasons=(*self.reasons, *reasons))


def without_samples(scores: Scores) -> dict[str, Any]:
    kept = {key: value for key, value in scores.items() if key != SAMPLES}
    return kept | ({"own": _means(kept["own"])} if kept.get("own") else {})


def _means(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Removes the values of single queries from nested scores."""
    return {
        key: _means(value) if isinstance(value, Mapping) else value
        for key, value in figures.items()
        if key not in {EACH, HITS, GROUPS, KEYS}
    }

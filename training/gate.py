"""The promotion gate: may a candidate replace the active model, going by the scores of both?

    scores of both (evaluation.suites.score, on the same data) ─▶ compare ─▶ Verdict ─▶ report, as_text

"Not worse" is enough: equal scores are accepted. Functions of numbers only: no model is opened and nothing is
promoted here. A candidate is compared with the active model and no older one, so a chain of promotions may
lose a little at each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from models.manifest import Manifest

Scores = Mapping[str, Any]  # as evaluation.suites.score gives them


@dataclass(frozen=True)
class Thresholds:
    """How much worse a candidate may be; the limit itself is allowed. All are fractions, from 0 to 1.

    Measured on the default model with STS12, STS14, STS16, STS-B and SICK-R: tests/training/evaluation/
    test_default_scores.py measures it again.
    """

    # One standard error of the mean of the five sets, 0.0047 (bootstrap over pairs). Two models that are
    # equally good should differ by less: they are scored on the same pairs, whose luck they share.
    mean_fall: float = 0.005
    # One set alone moves more: its standard error is 0.008 (SICK-R) to 0.013 (STS16).
    set_fall: float = 0.02
    # Share of the active model's uniformity that may be lost; all of it is lost when every vector is equal.
    # Similarity does not see that: with one common direction added to every vector, as long as they are,
    # the mean stayed at 0.772 while uniformity rose from -3.82 to -1.92, and to -3.06 with half as long.
    uniformity_loss: float = 0.25

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value <= 1:
                raise ValueError(f"{name} must be between 0 and 1, not {value}.")


class Row(NamedTuple):
    """One comparison."""

    name: str
    active: float | None  # None: not measured, or no number
    candidate: float | None
    difference: float | None  # candidate minus active
    allowed: float | None  # the worst difference that passes; None: any number passes
    passed: bool


class Verdict(NamedTuple):
    accepted: bool
    reasons: tuple[str, ...]  # why it was refused; empty when it was accepted
    rows: tuple[Row, ...]
    not_compared: tuple[str, ...]  # what was measured for the candidate only

    def besides(self, reasons: tuple[str, ...]) -> Verdict:
        """Refused for these as well, when there are any."""
        return self._replace(accepted=self.accepted and not reasons, reasons=(*self.reasons, *reasons))


def compare(candidate: Scores, active: Scores, thresholds: Thresholds | None = None) -> Verdict:
    """Accepted when no figure is worse than allowed, and every figure of the active model was compared.

    Only the sets that a side's mean is over are compared, the English ones: KorSTS and JSTS are not.
    Refused besides: a figure that is no number on either side; one that only the active model has; a set
    with another number of pairs, so not the same data; more cosines without a value than before.
    """
    limits = thresholds or Thresholds()
    before, after = _in_mean(active), _in_mean(candidate)
    common = [key for key in before if key in after]
    extra = tuple(key for key in after if key not in before)
    if candidate.get("geometry") and not active.get("geometry"):
        extra += ("geometry",)
    if not common:
        reason = "The candidate and the active model have no scored set in common: nothing can be compared."
        return Verdict(False, (reason,), (), extra)
    rows = (
        _row(f"mean of {len(common)}", _mean(before, common), _mean(after, common), -limits.mean_fall),
        *(_row(key, _spearman(before, key), _spearman(after, key), -limits.set_fall) for key in before),
        *_geometry_rows(active.get("geometry") or {}, candidate.get("geometry") or {}, limits),
    )
    reasons = (*_mismatches(before, after, common), *(_reason(row) for row in rows if not row.passed))
    return Verdict(not reasons, reasons, rows, extra)


def changed_use(candidate: Manifest, active: Manifest) -> tuple[str, ...]:
    """What the scores cannot see, because the sets are short and are scored without prompts."""
    reasons = []
    if candidate.max_length < active.max_length:
        reasons.append(
            f"max_length: texts would be cut at {candidate.max_length} tokens instead of {active.max_length}."
        )
    for name in ("search_prompt", "document_prompt"):
        before, after = getattr(active, name), getattr(candidate, name)
        if before != after:
            reasons.append(f"{name}: {after!r} instead of {before!r}, and the sets are scored without one.")
    return tuple(reasons)


def report(verdict: Verdict, candidate: Scores, active: Scores, meta: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict with all that it rests on, ready for JSON. `meta` says which models, when, trained how."""
    content = {
        "accepted": verdict.accepted,
        "reasons": verdict.reasons,
        "rows": [row._asdict() for row in verdict.rows],
        "not_compared": verdict.not_compared,
        "meta": meta,
        "candidate": candidate,
        "active": active,
    }
    plain: dict[str, Any] = _plain(content)
    return plain


def as_text(verdict: Verdict) -> str:
    """For the terminal. Ends without a newline."""
    lines = (
        [f"{'':12}{'active':>10}{'candidate':>11}{'difference':>12}{'allowed':>10}"] if verdict.rows else []
    )
    for row in verdict.rows:
        cells = f"{_text(row.active):>10}{_text(row.candidate):>11}{_text(row.difference, '+'):>12}"
        allowed = "any" if row.allowed is None else _text(row.allowed, "+")
        lines += [f"{row.name:12}{cells}{allowed:>10}  {'passed' if row.passed else 'REFUSED'}"]
    if verdict.not_compared:
        lines += [f"Measured for the candidate only: {', '.join(verdict.not_compared)}."]
    if verdict.rows and all(row.name != "uniformity" for row in verdict.rows):
        lines += ["Geometry was not measured, because STS-B is not there: a collapse would pass unseen."]
    lines += ["Accepted: not worse." if verdict.accepted else "Refused:"]
    return "\n".join([*lines, *(f"- {reason}" for reason in verdict.reasons)])


def _geometry_rows(before: Scores, after: Scores, limits: Thresholds) -> Iterator[Row]:
    """Alignment has no limit: a collapse improves it (0.25 becomes 0.12 with that common direction)."""
    if not before:
        return
    uniformity = _number(before.get("uniformity"))
    allowed = limits.uniformity_loss * abs(uniformity or 0.0)
    yield _row("uniformity", uniformity, _number(after.get("uniformity")), allowed, lower_is_better=True)
    yield _row("alignment", _number(before.get("alignment")), _number(after.get("alignment")), None)


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
        return f"{row.name}: the {without} has no value, so it cannot be compared."
    return (
        f"{row.name}: {_text(row.candidate)} after {_text(row.active)} is a change of "
        f"{_text(row.difference, '+')}, and {_text(row.allowed, '+')} is allowed."
    )


def _mismatches(before: Scores, after: Scores, common: list[str]) -> Iterator[str]:
    for key in common:
        pairs = before[key].get("pairs"), after[key].get("pairs")
        if None not in pairs and pairs[0] != pairs[1]:
            yield f"{key}: not the same data, {pairs[0]} pairs for the active model and {pairs[1]} now."
        undefined = before[key].get("undefined", 0), after[key].get("undefined", 0)
        if undefined[1] > undefined[0]:
            yield f"{key}: {undefined[1]} cosines have no value, {undefined[0]} with the active model."


def _in_mean(scores: Scores) -> Scores:
    sts, mean = scores.get("sts") or {}, scores.get("mean") or {}
    return {key: sts[key] for key in mean.get("sets", ()) if key in sts}


def _mean(sts: Scores, keys: list[str]) -> float | None:
    each = [value for key in keys if (value := _spearman(sts, key)) is not None]
    return sum(each) / len(each) if len(each) == len(keys) else None


def _spearman(sts: Scores, key: str) -> float | None:
    return _number(sts.get(key, {}).get("spearman_all"))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _text(value: float | None, sign: str = "") -> str:
    return "none" if value is None else f"{value:{sign}.4f}"


def _plain(value: Any) -> Any:
    """Lists for tuples and None for what is no number, which JSON cannot hold."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

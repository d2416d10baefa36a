"""The rows of recipes.py as text: what each candidate is worth, and the gate against that."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from training.evaluation.bootstrap import of_mean

SEEN = "seen, "  # before a mode: queries whose answers were learned from
_SIDES = ("before", "after")
_MODES = ("dense", "hybrid", "served")  # that decide what a candidate is worth


def summary(row: dict[str, Any]) -> str:
    """A candidate in one line."""
    moved = ", ".join(f"{mode} {_moved(row, mode)}" for mode in _MODES)
    said = f"{row['verdict']}; {moved}. {row.get('reason', '')}"
    return f"{row['set']}, {row['recipe']}, seed {row['seed']}: {said}"


def tables(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Every candidate: base, candidate, difference in each mode; then the gate against the truth."""
    modes = [*_MODES[:2], "lexical", "served", f"{SEEN}dense", f"{SEEN}hybrid"]
    yield f"| set | recipe | seed | minutes | verdict | STS | {' | '.join(modes)} |"
    yield "|---" * (6 + len(modes)) + "|"
    for row in rows:
        sides = [
            " ".join([*(f"{100 * np.mean(row[side][mode]):.1f}" for side in _SIDES), _moved(row, mode)])
            for mode in modes
        ]
        minutes = f"{row['minutes']:.1f}" if "minutes" in row else ""
        sts = f"{100 * row['sts']:.1f}" if "sts" in row else ""
        cells = [row["set"], row["recipe"], str(row["seed"]), minutes, row["verdict"], sts, *sides]
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield "| in truth | accepted | refused or nothing to learn |\n|---|---|---|"
    found = Counter((_truth_of(row), row["verdict"] == "accepted") for row in rows)
    for truth in ("better", "no different", "worse"):
        yield f"| {truth} | {found[truth, True]} | {found[truth, False]} |"


def _interval(row: dict[str, Any], mode: str) -> tuple[float, float]:
    return of_mean(row["before"][mode], row["after"][mode], level=0.95)


def _moved(row: dict[str, Any], mode: str) -> str:
    """The difference in points, and its interval."""
    low, high = _interval(row, mode)
    difference = np.mean(row["after"][mode]) - np.mean(row["before"][mode])
    return f"{100 * difference:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def _truth_of(row: dict[str, Any]) -> str:
    """Worse where a mode's interval is below zero; better where one is above zero, and none below."""
    intervals = [_interval(row, mode) for mode in _MODES]
    if any(high < 0 for _, high in intervals):
        return "worse"
    return "better" if any(low > 0 for low, _ in intervals) else "no different"

"""The rows of recipes.py as text: what each candidate is worth, and the gate against that."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.tables import table
from models.engines.form import FP32
from training.evaluation.bootstrap import of_mean

SEEN = "seen, "  # before a mode: queries whose answers were learned from
NOT_ASKED = "not asked"  # a verdict: the gate was off
TRUTHS = ("better", "no different", "worse")
_SIDES = ("before", "after")
_MODES = ("dense", "hybrid", "served")  # that decide what a candidate is worth


def summary(row: dict[str, Any]) -> str:
    """A candidate in one line."""
    moved = ", ".join(f"{mode} {_moved(row, mode)}" for mode in _MODES)
    said = f"{row['verdict']}; {moved}. {row.get('reason', '')}"
    return f"{row['set']}, {row['recipe']}, seed {row['seed']}: {said}"


def tables(rows: Sequence[dict[str, Any]]) -> str:
    """Base, candidate and difference in each mode, in the mean of the seeds; the mean of the sets; the gate
    against the truth.
    """
    modes = [*_MODES[:2], "lexical", "served", f"{SEEN}dense", f"{SEEN}hybrid"]
    cells = []
    for group in _groups(rows):
        row = _mean(group)
        sides = [
            " ".join([*(f"{100 * np.mean(row[side][mode]):.1f}" for side in _SIDES), _moved(row, mode)])
            for mode in modes
        ]
        verdicts = ", ".join(f"{count} {word}" for word, count in Counter(_each(group, "verdict")).items())
        minutes, sts = np.mean(_each(group, "minutes") or [np.nan]), ""
        if "sts_before" in row and "sts" in row:
            sts = f"{100 * row['sts_before']:.1f} {100 * np.mean(_each(group, 'sts')):.1f}"
        what = [row["set"], row["recipe"], *(str(row.get(key, "")) for key in ("steps", "share"))]
        seeds = " ".join(f"{_difference(row, 'dense'):+.1f}" for row in group)
        kept = " ".join(map(str, _each(group, "kept")))
        cells.append([*what, kept, seeds, f"{minutes:.1f}", verdicts, sts, *sides])
    columns = ["set", "recipe", "steps", "share", "kept", "seeds, dense", "minutes", "verdict", "STS"]
    asked = [row for row in rows if not row["ungated"]]
    found = Counter((_truth_of(row), row["verdict"] == "accepted") for row in asked)
    judged = [[truth, found[truth, True], found[truth, False]] for truth in TRUTHS]
    against = table(["in truth", "accepted", "refused or nothing to learn"], judged)
    return f"{table([*columns, *modes], cells)}\n\n{_of_sets(rows, modes)}\n\n{against}"


def _of_sets(rows: Sequence[dict[str, Any]], modes: Sequence[str]) -> str:
    """The mean of the sets that a candidate was tried on, each set once."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for group in _groups(rows):
        key = *(group[0].get(name) for name in ("recipe", "steps", "share", "noise")), group[0]["verdict"]
        found.setdefault(key, []).append(_mean(group))
    cells = [
        [
            *key[:3],
            len(of_sets),
            *(f"{np.mean([_difference(row, mode) for row in of_sets]):+.2f}" for mode in modes),
        ]
        for key, of_sets in found.items()
        if len({row["set"] for row in of_sets}) == len(of_sets) > 1
    ]
    return table(["recipe", "steps", "share", "sets", *modes], cells)


def _groups(rows: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The rows that differ in nothing but the seed."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        key = (
            *(row.get(name) for name in ("set", "recipe", "steps", "share", "noise")),
            row["ungated"],
            row.get("form", str(FP32)),
        )
        found.setdefault(key, []).append(row)
    return [*found.values()]


def _mean(group: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One row: each query's figure is the mean over the seeds."""
    modes = group[0]["after"]
    return group[0] | {
        side: {mode: np.mean([row[side][mode] for row in group], axis=0) for mode in modes} for side in _SIDES
    }


def _each(group: Sequence[dict[str, Any]], key: str) -> list[Any]:
    return [row[key] for row in group if key in row]


def _interval(row: dict[str, Any], mode: str) -> tuple[float, float]:
    return of_mean(row["before"][mode], row["after"][mode], level=0.95)


def _moved(row: dict[str, Any], mode: str) -> str:
    """The difference in points, and its interval."""
    low, high = _interval(row, mode)
    return f"{_difference(row, mode):+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def _difference(row: dict[str, Any], mode: str) -> float:
    """In points."""
    return 100 * float(np.mean(row["after"][mode]) - np.mean(row["before"][mode]))


def _truth_of(row: dict[str, Any]) -> str:
    """Worse where a mode's interval is below zero; better where one is above zero, and none below."""
    intervals = [_interval(row, mode) for mode in _MODES]
    if any(high < 0 for _, high in intervals):
        return "worse"
    return "better" if any(low > 0 for low, _ in intervals) else "no different"

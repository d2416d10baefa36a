"""The rows of recipes.py as text: what each candidate is worth, and the gate against that."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.places import grouped
from benchmarks.tables import table
from models.engines.form import FP32
from training.evaluation.bootstrap import of_mean

SEEN = "seen, "  # before a mode: queries of the half that the retraining had
TRUTHS = ("better", "no different", "worse")
_SIDES = ("before", "after")
_MODES = ("dense", "hybrid", "served")  # that decide what a candidate is worth


def summary(row: dict[str, Any]) -> str:
    """A candidate in one line."""
    moved = ", ".join(f"{mode} {_moved(row, mode)}" for mode in _MODES)
    said = f"{row['verdict']}; {moved}. {row.get('reason', '')}"
    return f"{row['set']}, {row['recipe']}, seed {row['seed']}: {said}"


def tables(rows: Sequence[dict[str, Any]]) -> str:
    """Where each set begins; the gains of each candidate in the mean of the seeds; of the sets; the gate.

    Bold is a gain or a loss whose interval is on one side of zero.
    """
    asked = [row for row in rows if not row["ungated"]]
    served = ["served"] if asked else []  # without a gate the search is not learned, and dense is served
    modes = ["dense", "hybrid", *served, f"{SEEN}dense", f"{SEEN}hybrid"]
    columns = ["set", "recipe", "steps", "share", *modes, "seeds, dense", "kept", "STS", "minutes", "verdict"]
    cells = []
    for group in _groups(rows):
        row = _mean(group)
        seeds = " ".join(f"{_difference(one, 'dense'):+.1f}" for one in group)
        kept = " ".join(f"{share:g}" for share in _each(group, "kept"))
        sts, minutes = (np.mean(_each(group, key) or [np.nan]) for key in ("sts", "minutes"))
        verdicts = ", ".join(f"{count} {word}" for word, count in Counter(_each(group, "verdict")).items())
        what = [row[key] for key in columns[:4]]
        about = [seeds, kept, f"{100 * sts:.1f}", f"{minutes:.1f}", verdicts]
        cells.append([*what, *(_bold(row, mode) for mode in modes), *about])
    found = [_bases(rows), table(columns, cells), _of_sets(rows, modes)]
    if asked:
        counted = Counter((_truth_of(row), row["verdict"] == "accepted") for row in asked)
        judged = [[truth, counted[truth, True], counted[truth, False]] for truth in TRUTHS]
        found.append(table(["in truth", "accepted", "refused or nothing to learn"], judged))
    return "\n\n".join(found)


def _bases(rows: Sequence[dict[str, Any]]) -> str:
    """The scores before, of each set and noise; seen queries are those of the largest share."""
    modes = ["dense", "lexical", "hybrid", f"{SEEN}dense", f"{SEEN}lexical", f"{SEEN}hybrid"]
    first: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: -row["share"]):
        first.setdefault((row["set"], row["noise"], row["form"]), row)
    cells = []
    for row in first.values():
        before = row["before"]
        scores = [f"{100 * np.mean(before[mode]):.1f}" for mode in modes]
        counts = [len(before["dense"]), len(before[f"{SEEN}dense"])]
        cells.append([row["set"], row["noise"] or "", *counts, *scores, f"{100 * row['sts_before']:.1f}"])
    return table(["set", "noise", "queries", "seen", *modes, "STS"], cells)


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
            *(_moved_of_sets(of_sets, mode) for mode in modes),
        ]
        for key, of_sets in found.items()
        if len({row["set"] for row in of_sets}) == len(of_sets) > 1
    ]
    return table(["recipe", "steps", "share", "sets", *modes], cells)


def _moved_of_sets(rows: Sequence[dict[str, Any]], mode: str) -> str:
    """The mean of the differences, and half its interval: sets are independent, so theirs add in squares."""
    widths = [np.ptp(_interval(row, mode)) / 2 for row in rows]
    mean = np.mean([_difference(row, mode) for row in rows])
    return f"{mean:+.2f} ± {100 * np.sqrt(np.sum(np.square(widths))) / len(rows):.2f}"


def _groups(rows: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The rows that differ in nothing but the seed."""
    names = ("set", "recipe", "steps", "share", "noise", "ungated")
    groups = grouped(rows, lambda row: (*map(row.get, names), row.get("form", str(FP32))))
    return [*groups.values()]


def _mean(group: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One row: each query's figure is the mean over the seeds."""
    modes = group[0]["after"]
    return group[0] | {
        side: {mode: np.mean([row[side][mode] for row in group], axis=0) for mode in modes} for side in _SIDES
    }


def _each(group: Sequence[dict[str, Any]], key: str) -> list[Any]:
    return [row[key] for row in group if row.get(key) is not None]


def _interval(row: dict[str, Any], mode: str) -> tuple[float, float]:
    return of_mean(row["before"][mode], row["after"][mode], level=0.95)


def _moved(row: dict[str, Any], mode: str) -> str:
    """The difference in points, and its interval."""
    low, high = _interval(row, mode)
    return f"{_difference(row, mode):+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def _bold(row: dict[str, Any], mode: str) -> str:
    low, high = _interval(row, mode)
    return f"**{_moved(row, mode)}**" if low > 0 or high < 0 else _moved(row, mode)


def _difference(row: dict[str, Any], mode: str) -> float:
    """In points."""
    return 100 * float(np.mean(row["after"][mode]) - np.mean(row["before"][mode]))


def _truth_of(row: dict[str, Any]) -> str:
    """Worse where a mode's interval is below zero; better where one is above zero, and none below."""
    intervals = [_interval(row, mode) for mode in _MODES]
    if any(high < 0 for _, high in intervals):
        return "worse"
    return "better" if any(low > 0 for low, _ in intervals) else "no different"

"""The scores as a CSV file: a row for each figure, for a spreadsheet or a data frame."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from models.files.fsync import replace_text

HEADER = ("model", "version", "suite", "set", "figure", "value")
_SUITES = ("sts", "geometry", "retrieval", "transfer", "clustering", "mean", "transfer_mean")


def write_csv(file: Path, scores: Mapping[str, Any]) -> None:
    """`scores` as `evaluate --json` writes them: fractions; nothing for a figure that is no number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    for suite in _SUITES:
        for place, value in _numbers(scores.get(suite) or {}):
            *of, figure = place
            writer.writerow((scores["model"], scores["version"] or "", suite, " ".join(of), figure, value))
    replace_text(file, text.getvalue())


def _numbers(node: Mapping[str, Any], place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each number with its keys; lists, such as a spectrum, are in the JSON alone."""
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, (*place, key))
        elif value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
            yield (*place, key), "" if value is None else value

"""`simile evaluate`: score a model, and write a table, JSON or CSV."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from models.files.fsync import replace_text
from models.progress import step_to_stderr
from training.arguments import add_data, target
from training.evaluation.data import data_folder
from training.evaluation.report.table import table
from training.evaluation.scorable import open_scorable
from training.evaluation.suites import DEFAULT, SUITES, check_suites, score

_STDOUT = "-"
_CSV_HEADER = ("model", "version", "suite", "set", "figure", "value")
_CSV_SUITES = ("sts", "geometry", "retrieval", "transfer", "clustering", "mean", "transfer_mean")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "evaluate",
        help="score a model: similarity (STS), geometry, search and transfer",
        description="Score a model on the public sets that --data holds; absent ones are named.",
    )
    command.add_argument(
        "model", metavar="MODEL", help="`default`, a published version, a folder or a server's URL"
    )
    command.add_argument(
        "--precision",
        choices=("fp32", "bf16", "int8", "auto"),
        help="as SIMILE_PRECISION (default: fp32; a server keeps its own)",
    )
    add_data(command)
    command.add_argument(
        "--suite",
        metavar="NAMES",
        default=",".join(DEFAULT),
        help=f"which of {', '.join(SUITES)}, with commas between them (default: %(default)s, a minute or two "
        "on two processors); transfer takes about three minutes, retrieval as many for 7,500 abstracts",
    )
    command.add_argument(
        "--json",
        metavar="FILE",
        help="write the figures as fractions, for `compare`; - prints them, and the table goes to stderr",
    )
    command.add_argument("--csv", metavar="FILE", help="write a row for each figure, as fractions")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Evaluates a model and returns the exit status. Checks all arguments before the model is opened."""
    suites = check_suites(options.suite.split(","))
    data = data_folder(options.data)
    file = target(options.json) if options.json and options.json != _STDOUT else None
    rows = target(options.csv) if options.csv else None
    with open_scorable(options.model, os.environ, step_to_stderr, options.precision) as scorable:
        about = {
            "model": options.model,
            **{key: getattr(scorable, key) for key in ("version", "fingerprint", "form")},
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "data": str(data),
        }
        scores = about | score(scorable.encode, data, suites, step_to_stderr, scorable)
    text = json.dumps(scores, indent=2, allow_nan=False) + "\n"
    out = sys.stderr if options.json == _STDOUT else sys.stdout
    version = scores["version"] or "not published in the models folder"
    space = f"fingerprint {(scores['fingerprint'] or 'unknown')[:8]}; {scores['form'] or 'unknown form'}"
    out.write(f"{scores['model']}  (version: {version}; {space})\n\n{table(scores)}\n")
    out.flush()  # the figures are seen even if the file cannot be written
    if options.json == _STDOUT:
        sys.stdout.write(text)
    elif file:
        replace_text(file, text)
    if rows:
        _write_csv(rows, scores)
    return 0


def _write_csv(file: Path, scores: Mapping[str, Any]) -> None:
    """Writes one row per figure, with fractions as in the JSON. A figure that is None has an empty value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV_HEADER)
    for suite in _CSV_SUITES:
        for place, value in _numbers(scores.get(suite) or {}):
            *of, figure = place
            writer.writerow((scores["model"], scores["version"] or "", suite, " ".join(of), figure, value))
    replace_text(file, text.getvalue())


def _numbers(node: Mapping[str, Any], place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields each number of nested scores with the path of its keys. Skips lists."""
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, (*place, key))
        elif value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
            yield (*place, key), "" if value is None else value

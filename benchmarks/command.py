"""Functions that all benchmark commands share: options, scratch folder, progress and the final report.

A benchmark works in a temporary folder of the checkout. The report prints a table and a line for each
`Verdict`, and writes the figures to benchmarks/results/NAME.json.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import machine
from training.errors import TrainingError

PROJECT = Path(__file__).parent.parent
SCRATCH = PROJECT / ".benchmarks"  # on the disk of the checkout
RESULTS = PROJECT / "benchmarks" / "results"


class BenchError(Exception):
    """The measurement is invalid because a server or a program failed. The message gives the reason."""


def progress(message: str) -> None:
    """Print a progress message to stderr."""
    print(f"bench: {message} …", file=sys.stderr, flush=True)


def build_parser(
    name: str, doc: str, *, corpus: bool = False, quick: bool = False
) -> argparse.ArgumentParser:
    """Return the parser of `python -m benchmarks.NAME`, with the options that several commands share."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=doc.split("\n", 1)[0])
    if corpus:
        parser.add_argument("--corpus", type=Path, required=True, help="in a format of `simile train`")
    if quick:
        parser.add_argument(
            "--quick", action="store_true", help="small and short: a first impression, not a figure"
        )
    return parser


@contextmanager
def scratch_folder(*failures: type[Exception]) -> Iterator[Path]:
    """Yield a temporary folder. BenchError, TrainingError and `failures` end the program with a message."""
    expected: tuple[type[Exception], ...] = (BenchError, TrainingError, *failures)
    SCRATCH.mkdir(exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
            yield Path(folder)
    except expected as error:
        sys.exit(f"The benchmark failed: {error}")


def append_row(file: Path, row: Mapping[str, Any]) -> None:
    """Append a row to a file as a line of JSON."""
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(row) + "\n")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A measured figure and the bound that the project promises for it.

    Attributes:
        subject: The figure's name and unit.
        value: The measured figure.
        bound: The promise: an upper bound, or a lower one if `at_least`.
        at_least: True if larger figures are better.
        contended: True if other processes disturbed every repeat, so the figure is unreliable.

    """

    subject: str
    value: float
    bound: float
    at_least: bool = False
    contended: bool = False

    @property
    def passed(self) -> bool:
        """True if the figure is within its bound. NaN fails."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def line(self) -> str:
        """Return the verdict as a line for the terminal."""
        sign = ">=" if self.at_least else "<="
        note = "  (contended: measure again on a quiet machine)" if self.contended else ""
        outcome = "kept  " if self.passed else "MISSED"
        return f"{outcome}  {self.subject}: {self.value:.3g} {sign} {self.bound:g}{note}"


def format_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table. Floats are rounded to about three digits, other values are unchanged."""
    lines = [columns, ["---"] * len(columns), *([_format_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _format_cell(value: object) -> str:
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def report(name: str, figures: Mapping[str, Any], text: Sequence[str], verdicts: Sequence[Verdict]) -> None:
    """Print the paragraphs `text`, the machine and the verdicts; write the figures to results/NAME.json."""
    SCRATCH.mkdir(exist_ok=True)
    date, described = datetime.now(UTC).isoformat(timespec="seconds"), machine.describe(SCRATCH)
    summary = f"{machine.summarize(date, described)}."
    paragraphs = [*text, summary, "\n".join(verdict.line() for verdict in verdicts)]
    print("\n\n".join(filter(None, paragraphs)))
    judged = [asdict(verdict) | {"passed": verdict.passed} for verdict in verdicts]
    file = RESULTS / f"{name}.json"
    file.parent.mkdir(exist_ok=True)
    content = {"date": date, "machine": described, **figures, "verdicts": judged}
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    print(f"\nAll figures are in {file}.", file=sys.stderr)

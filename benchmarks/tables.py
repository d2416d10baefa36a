"""The report of a single benchmark: Markdown tables, the machine, verdicts; and the same as JSON."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from benchmarks import machine
from benchmarks.places import RESULTS, SCRATCH


@dataclass(frozen=True, slots=True)
class Verdict:
    """A figure against its floor, or its ceiling."""

    what: str
    value: float
    bound: float
    at_least: bool = False
    contended: bool = False  # no clean repeat: the figure says little

    @property
    def kept(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def line(self) -> str:
        sign = ">=" if self.at_least else "<="
        note = "  (contended: measure again on a quiet machine)" if self.contended else ""
        word = "kept  " if self.kept else "MISSED"
        return f"{word}  {self.what}: {self.value:.3g} {sign} {self.bound:g}{note}"


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Numbers with as many digits as they have weight; everything else as it is."""
    lines = [columns, ["---"] * len(columns), *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def of_machine(date: str, described: dict[str, Any]) -> str:
    """`machine.describe` in words."""
    versions = ", ".join(f"{name} {number}" for name, number in described["packages"].items())
    return (
        f"{date[:10]}, {described['processors']} processors of {described['cpu']}, "
        f"{described['memory_gb']} GB, {described['system']}, one fsync {described['sync_ms']} ms; "
        f"Python {described['python']}, {versions}"
    )


def conclude(name: str, result: dict[str, Any], text: Sequence[str], verdicts: Sequence[Verdict]) -> None:
    """Print the report with its verdicts, and write the figures to results/NAME.json."""
    date, described = datetime.now(UTC).isoformat(timespec="seconds"), machine.describe(SCRATCH)
    said = [*text, f"{of_machine(date, described)}.", "\n".join(verdict.line() for verdict in verdicts)]
    print("\n\n".join(said))
    judged = [asdict(verdict) | {"kept": verdict.kept} for verdict in verdicts]
    file = RESULTS.with_name(f"{name}.json")
    file.parent.mkdir(exist_ok=True)
    file.write_text(
        json.dumps({"date": date, "machine": described} | result | {"verdicts": judged}, indent=2) + "\n"
    )
    print(f"\nAll of it is in {file}.", file=sys.stderr)

"""The gate's report for people: VERSION/report/report.md with its pictures, made of what report.json says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.evaluation.report.markdown import escape, listed, picture, table, write
from training.evaluation.report.one import pictures, shown
from training.retraining.gate.verdict import figure

if TYPE_CHECKING:
    from training.evaluation.report.plots import Picture

_GAINS = "gains.svg"


def write_page(folder: Path, content: Mapping[str, Any]) -> Path:
    """content: as verdict.report gives it. Where the page is; raise OSError."""
    folder.mkdir(exist_ok=True)
    sides = {name: [content[name]] for name in ("active", "candidate")}
    drawn = pictures(sides, ())
    if content["gains"]:
        from training.evaluation.report.plots import intervals  # noqa: PLC0415  matplotlib

        drawn[_GAINS] = intervals(content["gains"])
    return write(folder, [*_sections(content, drawn), *shown(drawn)], drawn)


def _sections(content: Mapping[str, Any], drawn: Mapping[str, Picture]) -> Iterator[str]:
    meta = content["meta"]
    yield f"# {escape(meta['candidate']['version'])}"
    word = "accepted" if content["accepted"] else "refused"
    yield (
        f"**{word.capitalize()}** against {escape(meta['active']['version'])}, {meta['date']}. "
        f"Recipe {escape(meta['recipe'])} from {escape(meta['base'])} on {meta['texts']:,} rows; "
        f"asked for: {escape(meta['require'])}."
    )
    if content["reasons"]:
        yield listed(content["reasons"])
    if content["rows"]:
        rows = [
            (
                row["name"],
                figure(row["active"]),
                figure(row["candidate"]),
                figure(row["difference"], "+"),
                "any" if row["allowed"] is None else figure(row["allowed"], "+"),
                "passed" if row["passed"] else "refused",
            )
            for row in content["rows"]
        ]
        yield table(("figure", "active", "candidate", "difference", "allowed", ""), rows, words=(0, 5))
    if _GAINS in drawn:
        yield f"{picture(_GAINS, drawn[_GAINS])}\n\nA gain is shown when its line is above 0."
    if content.get("overlap"):
        yield "## Hits in common"
        shares = [(name, f"{share:.3f}") for name, share in content["overlap"].items()]
        yield table(("search over held-out text", "overlap@10"), shares)
        yield "The mean share of documents that both models have among their first ten."
    if "documents" in meta:
        counts = [(name.replace("_", " "), f"{count:,}") for name, count in meta["documents"].items()]
        yield "## Documents"
        yield table(("", "documents or queries"), counts)
    if warnings := meta.get("corpus_report", {}).get("warnings"):
        yield listed(warnings)
    yield "## Geometry of STS-B" if content["candidate"].get("geometry") else ""

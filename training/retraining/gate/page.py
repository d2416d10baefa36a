"""The gate's report for people: VERSION/report/report.md with its pictures, made of what report.json says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from training.evaluation.report.markdown import Picture, escape, listed, picture, table, write
from training.evaluation.report.one import pictures, shown
from training.evaluation.report.svg import Box, Panel, axes, dot, label, page, stroke, ticks, words
from training.retraining.gate.verdict import figure

_ROW, _TOP, _LEFT, _RIGHT, _EDGE = 34.0, 44.0, 190.0, 744.0, 54.0  # pixels
_GAINS = "gains.svg"


def write_page(folder: Path, content: Mapping[str, Any]) -> Path:
    """content: as verdict.report gives it. Where the page is; raise OSError."""
    folder.mkdir(exist_ok=True)
    sides = {name: [content[name]] for name in ("active", "candidate")}
    drawn = pictures(sides, ())
    gains = content["gains"]
    if gains:
        drawn[_GAINS] = Picture("Gains with their intervals", intervals(gains))
    return write(folder, [*_sections(content, gains), *shown(drawn)], drawn)


def intervals(gains: Sequence[Mapping[str, Any]]) -> str:
    """A line for each gain from the low end of its interval to the high one, and zero between them."""
    values = [float(gain[end]) for gain in gains for end in ("low", "high")]
    reach = max(0.001, *map(abs, values)) * 1.1
    bottom = _TOP + _ROW * len(gains)
    panel = Panel(Box(_LEFT, _TOP, _RIGHT, bottom), (-reach, reach), (0.0, float(len(gains))))
    body = [axes(panel, ticks(-reach, reach), [], ("candidate less active", ""))]
    zero = panel.place((0, 0))[0]
    body += [stroke([(zero, _TOP), (zero, bottom)], "lead")]
    for row, gain in enumerate(gains):
        height = len(gains) - row - 0.5
        low, middle, high = (panel.place((gain[end], height)) for end in ("low", "difference", "high"))
        body += [stroke([low, high], "axis"), dot(middle, 5, "note")]
        body += [label((_LEFT - 12, middle[1] + 4), gain["name"], "small", "end")]
        body += [words((high[0] + 6, high[1] + 4), "better" if gain["shown"] else "", "small")]
    said = "; ".join(
        f"{gain['name']}: {gain['difference']:+.4f}, from {gain['low']:+.4f} to {gain['high']:+.4f}"
        for gain in gains
    )
    return page("Gains with their intervals", f"{said}.", (_RIGHT + 16, bottom + _EDGE), body)


def _sections(content: Mapping[str, Any], gains: Sequence[Mapping[str, Any]]) -> Iterator[str]:
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
    if gains:
        yield f"{picture(_GAINS, 'Gains with their intervals')}\n\nA gain is shown when its line is above 0."
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

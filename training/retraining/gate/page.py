"""Write the gate's report.json as readable pages, into the folder VERSION/report/.

report.md      Markdown, with the picture of the gains as a separate file
report.html    the same report as a single file that contains the picture
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from models.files.fsync import replace_text
from training.evaluation.report.markdown import escape, listed, table, write
from training.evaluation.report.table import GEOMETRY, plain
from training.retraining.gate.verdict import figure

_GAINS, _HTML = "gains.svg", "report.html"
_STYLE = (
    "body{font:16px/1.5 sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse}td,th{padding:.2rem .6rem;border-bottom:1px solid #ccc}"
    "table{display:block;overflow-x:auto}td span,td[style*=right]{white-space:nowrap}"
    "svg{max-width:100%;height:auto}"
)
_CELL = re.compile(r"(<td[^>]*>)(.*?)</td>", re.DOTALL)
_NEXT_HIT = re.compile(r"; (?=\d+\. )")
_HYPHENATED = re.compile(r"[^\s<>&;,-]{1,20}-[^\s<>&;,]{1,40}")  # such as T-1162, which must stay on a line


def write_page(folder: Path, content: Mapping[str, Any]) -> Path:
    """Writes report.md, report.html and the picture of the gains. Returns the path of report.md.

    Args:
        folder: Folder to write to.
        content: The report, from verdict.report.

    Raises:
        OSError: A file cannot be written.

    """
    folder.mkdir(exist_ok=True)
    page = write(folder, _sections(content))
    html = MarkdownIt("commonmark", {"html": False}).enable("table").render(page.read_text(encoding="utf-8"))
    html = _CELL.sub(_lay_out, html)
    if content["gains"]:
        from training.evaluation.report.plots import intervals  # noqa: PLC0415  matplotlib

        drawn = intervals(content["gains"]).svg()
        replace_text(folder / _GAINS, drawn)
        html = re.sub(rf'<img src="{_GAINS}"[^>]*>', lambda _: drawn[drawn.index("<svg") :], html)
    head = f"<meta charset=utf-8>\n<title>Retraining</title>\n<style>{_STYLE}</style>"
    replace_text(folder / _HTML, f"<!doctype html>\n{head}\n{html}")
    return page


def _lay_out(cell: re.Match[str]) -> str:
    """Returns a cell of a table of the HTML page with each hit on a line, and ids that do not break."""
    begin, content = cell.groups()
    lines = _NEXT_HIT.sub("<br>", _HYPHENATED.sub(r"<span>\g<0></span>", content))
    return f"{begin}{lines}</td>"


def describe_verdict(content: Mapping[str, Any]) -> Iterator[str]:
    """Yields Markdown for the gains, the verdict and its reasons."""
    meta = content["meta"]
    yield from map(escape, content["summary"])
    yield (
        f"**{escape(content['headline'])}** Compared with {escape(meta['active']['version'])}, "
        f"{meta['date']}. "
        f"Recipe {escape(meta['recipe'])} from {escape(meta['base'])} on {meta['texts']:,} rows; "
        f"asked for: {escape(meta['require'])}. Look {meta['looks']:g} at these queries."
    )
    if content["reasons"]:
        yield listed(content["reasons"])


def list_figures(content: Mapping[str, Any], sides: tuple[str, str] = ("active", "candidate")) -> str:
    """Returns a Markdown table of all compared figures with their limits. `sides` name the two versions."""
    rows = [
        (
            row["title"],
            row["measure"],
            figure(row["active"]),
            figure(row["candidate"]),
            figure(row["difference"], "+"),
            "any" if row["allowed"] is None else figure(row["allowed"], "+"),
            "passed" if row["passed"] else "refused",
        )
        for row in content["rows"]
    ]
    header = ("", "measure", *sides, "difference", "allowed", "")
    return table(header, rows, words=(0, 1, 6))


def _sections(content: Mapping[str, Any]) -> Iterator[str]:
    meta = content["meta"]
    yield f"# {escape(meta['candidate']['version'])}"
    yield from describe_verdict(content)
    yield from _changed(content.get("changed", {}))
    if content["rows"]:
        yield f"## Every figure\n\n{list_figures(content)}"
    if content["gains"]:
        yield f"![Gains with their intervals]({_GAINS})\n\nA gain is shown when its line is above 0."
    if "documents" in meta:
        counts = [(name.replace("_", " "), f"{count:,}") for name, count in meta["documents"].items()]
        yield "## Documents"
        yield table(("", "documents or queries"), counts)
    if warnings := meta.get("corpus_report", {}).get("warnings"):
        yield listed(warnings)
    sides = [content[name].get("geometry") or {} for name in ("active", "candidate")]
    if sides[1]:
        yield "## Geometry of STS-B"
        measured = [
            (key.replace("_", " "), *(plain(side.get(key), decimals) for side in sides))
            for key, decimals in GEOMETRY.items()
        ]
        yield table(("", "active", "candidate"), measured)


def _changed(content: Mapping[str, Any]) -> Iterator[str]:
    """Yields Markdown for the queries that gained and lost most, with the first hits before and after."""
    sides = content.get("sides") or ("active", "candidate")
    if content.get("gained") or content.get("lost"):
        yield "The rank in these tables is that of the first right hit."
    for word in ("gained", "lost"):
        if rows := content.get(word):
            yield f"## Queries that {word} most"
            yield table(
                ("query", "rank", "points", "right", *sides),
                [
                    (
                        row["query"],
                        " → ".join("none" if rank is None else str(rank) for rank in row["ranks"]),
                        f"{100 * row['difference']:+.0f}",
                        ", ".join(row["relevant"]),
                        _hits(row["active"]),
                        _hits(row["candidate"]),
                    )
                    for row in rows
                ],
                words=(0, 3, 4, 5),
            )


def _hits(found: Sequence[Mapping[str, Any]]) -> str:
    return "; ".join(f"{hit['rank']}. {hit['id']}: {hit['text']}" for hit in found)

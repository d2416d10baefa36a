"""The page of a report: a line for each hit, ids that do not break, figures as long as they need to be."""

import re
from pathlib import Path

import pytest

from training.retraining.gate.page import write_page
from training.retraining.gate.verdict import figure

META = {
    "candidate": {"version": "c"},
    "active": {"version": "a"},
    "date": "2026-11-28",
    "recipe": "triples",
    "base": "b",
    "texts": 1,
    "require": "gain",
    "looks": 1.0,
}


def test_hits_have_a_line_each_and_ids_stay_whole(tmp_path: Path) -> None:
    hits = [{"rank": rank, "id": f"T-116{rank}", "text": f"two; {rank} of <them>"} for rank in (1, 2, 3)]
    row = {"query": "a b-c", "ranks": [9, 1], "difference": 0.5, "relevant": ["T-1162", "k_1"]}
    changed = {"gained": [{**row, "active": hits, "candidate": hits}], "lost": []}
    content = {"meta": META, "summary": [], "headline": "Accepted.", "reasons": [], "changed": changed}
    page = write_page(tmp_path, {**content, "rows": [], "gains": [], "candidate": {}, "active": {}})
    assert "1. T-1161: two; 1 of \\<them\\>; 2. T-1162: two" in page.read_text()
    html = (tmp_path / "report.html").read_text()
    query, rank, _, right, active, _ = re.findall(r"<td[^>]*>(.*?)</td>", html, re.DOTALL)
    assert query == "a <span>b-c</span>"
    assert '<td style="text-align:right">9 → 1</td>' in html
    assert rank == "9 → 1"
    assert right == "<span>T-1162</span>, k_1"
    lines = active.split("<br>")
    assert lines == [f"{at}. <span>T-116{at}:</span> two; {at} of &lt;them&gt;" for at in (1, 2, 3)]


@pytest.mark.parametrize(
    ("value", "sign", "text"),
    [
        (414.4, "", "414.4"),
        (-103.6, "+", "-103.6"),
        (86.5, "+", "+86.5"),
        (0.3712, "", "0.3712"),
        (0.1, "+", "+0.1000"),
        (-2.5, "", "-2.5000"),
        (None, "", "none"),
    ],
)
def test_a_large_figure_has_one_decimal(value: float | None, sign: str, text: str) -> None:
    assert figure(value, sign) == text

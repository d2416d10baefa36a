"""The report, its promises, its picture and its place in the page, from runs whose figures are known."""

from xml.etree import ElementTree as ET

import pytest

pytest.importorskip("matplotlib", reason="needs the extra train")
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from benchmarks import floors, report
from benchmarks.contestant import Measured
from benchmarks.page import BEGIN, END, PAGE, put, section
from benchmarks.picture import bars
from benchmarks.turns import Cell
from tests.benchmarks.runs import BUSY, rates, results
from training.evaluation.report.plots import LIGHT

RUN: dict[Cell, list[Measured | None]] = {
    ("GEMM fp32, NumPy", "products"): rates(200),
    ("raw fp32", "sentences"): rates(1000, cpu_ms=1.5),
    ("raw fp32", "mix"): rates(600),
    ("raw, a text a call", "single calls"): rates(200, p50_ms=4, p99_ms=5),
    ("raw, the threads of a lone text", "single calls"): rates(300, p50_ms=3, p99_ms=4),
    ("Simile fp32", "64 x 1"): rates(800, p50_ms=80, p99_ms=150, client_us=30),
    ("Simile fp32", "4 x 32"): rates(900, p50_ms=140, p99_ms=160, client_us=60),
    ("Simile fp32", "1 x 1"): rates(180, p50_ms=5, p99_ms=7, client_us=50),
    ("Simile fp32", "mix, 32 x 1"): rates(400, p50_ms=60, p99_ms=150, longest_p99_ms=240, client_us=30),
    ("Simile fp32, asked before", "64 x 1"): rates(8000),
    ("infinity, ONNX", "64 x 1"): rates(500, p50_ms=128, p99_ms=256, client_us=40),
    ("infinity, ONNX", "mix, 32 x 1"): rates(50, p50_ms=600, p99_ms=900, client_us=40),
    ("sentence-transformers, torch", "sentences"): rates(400, foreign=BUSY),
}


def judged() -> dict[str, tuple[float, bool, bool]]:
    return {
        verdict.what: (round(verdict.value, 3), verdict.kept, verdict.contended)
        for verdict in floors.verdicts(results(RUN))
    }


def rows(text: str) -> dict[str, list[str]]:
    """Each row of each table by its first cell; the last one of a name."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return {line[0].strip(): [cell.strip() for cell in line[1:]] for line in lines}


def test_each_promise_is_judged_by_its_own_bound() -> None:
    assert judged() == {
        "Simile fp32, 64 x 1, over infinity, ONNX": (1.6, False, False),
        "Simile fp32, mix, 32 x 1, over infinity, ONNX": (8.0, True, False),
        "Simile fp32, 64 x 1, over sentence-transformers, torch": (2.0, True, True),
        "Simile fp32, 64 x 1, over raw fp32": (0.8, True, False),
        "Simile fp32, 4 x 32, over raw fp32": (0.9, True, False),
        "Simile fp32, mix, 32 x 1, over raw fp32": (0.667, False, False),
        "Simile fp32, 64 x 1, p99 over p50": (1.875, True, False),
        "Simile fp32, mix, 32 x 1, p99 of the longest tenth over the median of all": (4.0, False, False),
        "Simile fp32, 1 x 1, p50 beyond the raw call's, ms": (1.0, True, False),
        "Simile fp32, 1 x 1, p50 beyond the raw call's by the threads of a lone text, ms": (
            2.0,
            False,
            False,
        ),
        "second start to ready, seconds (median)": (1.0, True, False),
        "one document more beside 50000, ms beyond embedding it (median)": (2.0, True, False),
    }


def test_memory_is_judged_where_it_was_measured() -> None:
    grown = {"few": 2000, "many": 100_000, "before_mb": 300.0, "after_mb": 360.0}
    found = floors.verdicts(results(RUN, memory={"Simile fp32": grown}))
    [memory] = [verdict for verdict in found if "RSS" in verdict.what]
    assert memory.value == pytest.approx(1.2)
    assert not memory.kept


def test_the_tables_hold_what_was_measured_and_its_ratios() -> None:
    found = rows(report.text(results(RUN)))
    assert found["**Simile fp32**"] == ["", "800", "900", "", "180", "", "400", "1.00000", "1.00000"]
    assert "| raw fp32 | 1,000 |  |  |  |  | 600 |  |  |  |" in report.text(results(RUN))
    assert found["Simile fp32 over raw fp32"] == [
        "0.80 (0.80 to 0.80), floor 0.78",
        "0.90 (0.90 to 0.90), floor 0.85",
        "0.67 (0.67 to 0.67), floor 0.8",
    ]
    assert found["Simile fp32, asked before, over Simile fp32"] == ["10.00 (10.00 to 10.00)", "", ""]
    assert found["Simile fp32 over infinity, ONNX"][0] == "1.60 (1.60 to 1.60), floor 1.85"
    assert found["Simile fp32 over sentence-transformers, torch"][0] == "2.00 (2.00 to 2.00) (c), floor 1.7"
    assert "| raw fp32 | 1.50 (1.50 to 1.50) | 1.50 (1.50 to 1.50) |  |" in report.text(results(RUN))
    assert found["infinity, ONNX"][0] == "128 / 256"


def test_a_form_is_compared_with_the_raw_engine_in_its_own_precision() -> None:
    bf16: dict[Cell, list[Measured | None]] = {
        ("Simile bf16", "64 x 1"): rates(1400),
        ("raw bf16", "sentences"): rates(2000),
    }
    found = rows(report.text(results(RUN | bf16)))
    assert found["Simile bf16 over raw bf16"][0] == "0.70 (0.70 to 0.70), floor 0.65"
    assert found["Simile bf16 over infinity, ONNX"][0] == "2.80 (2.80 to 2.80), floor 2.9"
    assert {"Simile bf16 over raw fp32", "Simile fp32 over raw bf16"}.isdisjoint(found)


def test_a_peak_says_what_share_of_it_the_raw_engine_has() -> None:
    # 1,000 sentences of 17 tokens of 21.2 MFLOP each.
    assert "The raw engine on sentences: 360 GFLOP/s, 180% of the fp32 peak." in report.text(results(RUN))


def test_who_is_missing_is_named_with_the_reason() -> None:
    text = report.text(results(RUN, missing={"fastembed": "not installed"}))
    assert text.endswith("Not measured: fastembed: not installed")


def test_the_picture_is_whole_and_its_bars_are_as_long_as_the_figures() -> None:
    drawn = bars(results(RUN))
    panels = [
        [
            (LIGHT.index(to_hex(bar.get_facecolor())), bar.get_width())
            for bar in axes.patches
            if isinstance(bar, Rectangle)
        ]
        for axes in drawn.figure.axes
    ]
    # From the bottom, so that the fastest is on top; each panel has its own scale.
    assert panels[0] == [(3, 400), (1, 500), (0, 800), (7, 1000)]
    assert panels[-1] == [(1, 50), (0, 400), (7, 600)]
    assert len({axes.get_xlim() for axes in drawn.figure.axes}) > 1
    assert [text.get_text() for text in drawn.figure.axes[0].texts] == ["400 (c)", "500", "800", "1,000"]
    assert "raw fp32 1000, Simile fp32 800, infinity, ONNX 500" in drawn.description
    svg = drawn.svg()
    ET.fromstring(svg)
    assert "asked before" not in svg


def test_a_run_is_put_between_the_marks_of_the_page_and_nowhere_else() -> None:
    page = PAGE.read_text(encoding="utf-8")
    said = section(results(RUN))
    once = put(page, said)
    assert put(once, said) == once
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    assert once.startswith(before + BEGIN)
    assert once.endswith(END + after)
    assert "| Simile fp32, 64 x 1, over infinity, ONNX | 1.6 | ≥ 1.85 | **missed** |" in once
    with pytest.raises(ValueError, match="not there"):
        put(page.replace(END, ""), said)

"""The report and the verdicts of `make bench`, made from given figures."""

from math import nan
from typing import Any

import pytest

from benchmarks.__main__ import judge, main_table
from benchmarks.command import Verdict
from benchmarks.rounds import Cell, Measured, Results
from tests.benchmarks.runs import BUSY, rates

RUN: dict[Cell, list[Measured | None]] = {
    ("raw fp32", "at once"): rates(1000, cpu_ms=1.5),
    ("raw fp32", "mix, at once"): rates(600),
    ("Simile fp32", "64 x 1"): rates(800, cpu_ms=2.25, p50_ms=80, p99_ms=150),
    ("Simile fp32", "4 x 32"): rates(900, p50_ms=140, p99_ms=160),
    ("Simile fp32", "1 x 1"): rates(180, p50_ms=5, p99_ms=7),
    ("Simile fp32", "mix, 32 x 1"): rates(400, p50_ms=60, p99_ms=150),
    ("infinity, ONNX", "64 x 1"): rates(500, p50_ms=128, p99_ms=256),
    ("infinity, ONNX", "mix, 32 x 1"): rates(50, p50_ms=600, p99_ms=900),
    ("sentence-transformers, torch", "at once"): rates(400, foreign=BUSY),
}


def figures() -> dict[str, Any]:
    """Return the figures of a run that are not measured in rounds: memory, cosines and starts."""
    return {
        "about": {"Simile fp32": {"memory_mb": {"now": 300.0}}},
        "cosines": {"Simile fp32": {"mean": 1.0, "least": 0.9999999}},
        "starts": {"median": 1.0, "contended": False},
    }


def rows(run: dict[Cell, list[Measured | None]]) -> dict[str, list[str]]:
    """Return the rows of the main table: {first cell: the other cells}."""
    lines = [line.strip("|").split("|") for line in main_table(Results(run), figures()).splitlines()]
    return {line[0].strip(): [cell.strip() for cell in line[1:]] for line in lines}


def test_each_promise_is_judged_by_its_own_bound() -> None:
    verdicts = judge(Results(RUN), figures())
    assert {one.subject: (round(one.value, 3), one.passed, one.contended) for one in verdicts} == {
        "Simile fp32, 64 x 1, over infinity, ONNX": (1.6, False, False),
        "Simile fp32, mix, 32 x 1, over infinity, ONNX": (8.0, True, False),
        "Simile fp32, 64 x 1, over sentence-transformers, torch": (2.0, True, True),
        "Simile fp32, 64 x 1, over raw fp32": (0.8, True, False),
        "Simile fp32, 4 x 32, over raw fp32": (0.9, True, False),
        "Simile fp32, mix, 32 x 1, over raw fp32": (0.667, False, False),
        "Simile fp32, 64 x 1, p99 over p50": (1.875, True, False),
        "second start to ready, seconds (median)": (1.0, True, False),
    }


def test_a_precision_is_compared_with_the_raw_engine_in_its_own_precision() -> None:
    bf16: dict[Cell, list[Measured | None]] = {
        ("Simile bf16", "64 x 1"): rates(1400),
        ("raw bf16", "at once"): rates(2000),
    }
    verdicts = judge(Results(RUN | bf16), figures())
    found = {one.subject: (one.value, one.bound) for one in verdicts if "bf16" in one.subject}
    assert found == {
        "Simile bf16, 64 x 1, over raw bf16": (0.7, 0.65),
        "Simile bf16, 64 x 1, over infinity, ONNX": (2.8, 2.9),
    }


def test_the_table_has_the_figures_of_each_contestant() -> None:
    found = rows(RUN)
    assert found["Simile fp32"] == [
        *("", "800 (80.0 / 150)", "900 (140 / 160)", "", "180 (5.0 / 7.0)", "", "400 (60.0 / 150)"),
        *("2.25", "1.00000", "300"),
    ]
    assert found["raw fp32"] == ["1,000", "", "", "", "", "600", "", "1.50", "", ""]
    assert found["infinity, ONNX"][1] == "500 (128 / 256)"
    assert found["sentence-transformers, torch"][0] == "400 (c)"


@pytest.mark.parametrize(
    ("value", "at_least", "passed"),
    [(1.0, True, True), (0.9, True, False), (1.0, False, True), (1.1, False, False), (nan, False, False)],
)
def test_a_bound_belongs_to_the_promise(value: float, at_least: bool, passed: bool) -> None:
    assert Verdict("a figure", value, 1.0, at_least).passed is passed


def test_the_verdict_of_a_contended_figure_says_so() -> None:
    assert "contended" in Verdict("a figure", 1.0, 1.0, contended=True).line()
    assert "contended" not in Verdict("a figure", 1.0, 1.0).line()

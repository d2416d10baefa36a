"""The figure of the gain by the number of judged queries."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

pytest.importorskip("lightgbm", reason="needs the extra train")

from benchmarks.ranking import draw
from training.ranking.cross_validation import COMING, NEW


def test_the_figure_shows_the_gains_on_new_questions_of_each_set() -> None:
    rows = [
        ["cranfield", 225, "41.4", 0, NEW, "+0.2", "-0.1", "+0.4"],
        ["cranfield", 225, "41.4", 100, NEW, "+1.1", "+0.1", "+2.0"],
        ["cranfield", 225, "41.4", 100, COMING, "+9.9", "+9.0", "+9.9"],
        ["cranfield", 225, "41.4", "all", NEW, "+1.4", "+0.4", "+2.3"],
        ["mlqa_en", 1148, "89.3", "all", NEW, "+0.3", "-0.2", "+0.9"],
    ]
    root = ET.fromstring(draw(rows))
    said = root.findtext("{http://www.w3.org/2000/svg}desc")
    assert said == "cranfield: +1.1 with 100, +1.4 with 225; mlqa_en: +0.3 with 1,148."

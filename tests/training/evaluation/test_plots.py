"""Plots: what they draw, and the SVG that they become."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from training.evaluation.report import plots
from training.evaluation.report.plots import (
    DARK,
    LIGHT,
    ON_DARK,
    Gains,
    Picture,
    _look,
    gains_by_queries,
    intervals,
)

SVG = "{http://www.w3.org/2000/svg}"
Place = tuple[float, float]


def places(line: Line2D) -> list[Place]:
    return [(float(x), float(y)) for x, y in np.asarray(line.get_xydata())]


def ticks(axes: Axes, name: str) -> list[str]:
    """Returns the labels of the major ticks in the visible range of axis `name` (x or y)."""
    low, high = sorted(getattr(axes, f"get_{name}lim")())
    axis = getattr(axes, f"{name}axis")
    shown = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
    return [label.get_text() for at, label in shown if low <= at <= high]


def names(picture: Picture) -> list[str]:
    return [text.get_text() for text in picture.figure.legends[0].get_texts()]


def test_gains_are_intervals_beside_zero_and_those_that_are_shown_are_told() -> None:
    gains = [
        {"name": "own titles", "difference": 0.01, "low": -0.01, "high": 0.02, "shown": False},
        {"name": "own judged", "difference": 0.03, "low": 0.01, "high": 0.05, "shown": True},
    ]
    drawn = intervals(gains)
    [axes] = drawn.figure.axes
    zero, *rest = map(places, axes.lines)
    assert [x for x, _ in zero] == [0, 0]
    assert rest == [[(-0.01, 0), (0.02, 0)], [(0.01, 0)], [(0.01, 1), (0.05, 1)], [(0.03, 1)]]
    assert ticks(axes, "y") == ["own titles", "own judged"]
    assert [(text.get_text(), text.get_position()) for text in axes.texts] == [("better", (6, -3))]
    assert drawn.description.startswith("own titles: +0.0100, from -0.0100 to +0.0200; own judged: ")


def test_gains_by_queries_are_points_with_intervals_over_a_logarithmic_axis() -> None:
    first = [(50.0, 0.5, -0.1, 1.1), (225.0, 1.4, 0.4, 2.3)]
    drawn = gains_by_queries([Gains("a", first), Gains("b", [(50.0, 0.2, -0.6, 1.0)])], "Gains")
    [axes] = drawn.figure.axes
    zero, *rest = map(places, axes.lines)
    assert [y for _, y in zero] == [0, 0]
    assert [[y for _, y in line] for line in rest] == [[0.5, 1.4], [0.2]]
    assert [[x for x, _ in line] for line in rest] == [
        pytest.approx([49.25, 221.625]),
        pytest.approx([50.75]),
    ]
    spans = [
        np.asarray(path.vertices)[:, 1].tolist() for each in axes.collections for path in each.get_paths()
    ]
    assert spans == [[-0.1, 1.1], [0.4, 2.3], [-0.6, 1.0]]
    assert (axes.get_xscale(), ticks(axes, "x")) == ("log", ["50", "225"])
    assert names(drawn) == ["a", "b"]
    assert drawn.description == "a: +0.5 with 50, +1.4 with 225; b: +0.2 with 50."


def gain(name: str) -> dict[str, object]:
    return {"name": name, "difference": 0.01, "low": -0.01, "high": 0.02, "shown": False}


@pytest.mark.parametrize(
    "name",
    ["a < b & c", "tab\tand \x07", "half \udcff of one", 'it\'s "quoted"', "]]>", "_a", "$a$", "中文"],
)
def test_any_name_of_a_file_is_well_formed(name: str) -> None:
    shown = re.sub(r"[\t\x07\udcff]", "\ufffd", name)
    for drawn in (
        intervals([gain(name)]),
        gains_by_queries([Gains(name, [(50.0, 0.5, -0.1, 1.1)])], "Gains"),
    ):
        root = ET.fromstring(drawn.svg().encode())  # as it is written to a file
        assert shown in [text.text for text in root.iter(f"{SVG}text")]


def test_a_long_name_is_cut_and_is_whole_in_the_description() -> None:
    name = "all-the-letters-of-a-long-name-of-a-model"
    drawn = gains_by_queries([Gains(name, [(50.0, 0.5, -0.1, 1.1)])], "Gains")
    assert names(drawn) == ["all-the-letters-of-a-long-n…"]
    assert name in (ET.fromstring(drawn.svg()).findtext(f"{SVG}desc") or "")


def test_who_hears_the_page_is_told_what_a_picture_shows() -> None:
    root = ET.fromstring(intervals([gain("own titles")]).svg())
    assert root.get("role") == "img"
    named = {each.get("id"): each.text for each in root if each.get("id")}
    title, said = (named[name] for name in root.get("aria-labelledby", "").split())
    assert title == "Gains with their intervals"
    assert said == "own titles: +0.0100, from -0.0100 to +0.0200."


def test_the_same_figures_are_the_same_file_in_every_process() -> None:
    code = (
        "from training.evaluation.report.plots import *\n"
        "print(gains_by_queries([Gains('a', [(50.0, 0.5, -0.1, 1.1)])], 'Gains').svg(), end='')"
    )
    once = gains_by_queries([Gains("a", [(50.0, 0.5, -0.1, 1.1)])], "Gains").svg()
    again = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert once == again


def test_every_color_is_read_on_its_background_and_has_its_shade_on_a_dark_one() -> None:
    svg = gains_by_queries([Gains("a", [(50.0, 0.5, -0.1, 1.1)])], "Gains").svg()
    style = svg.partition("<style>")[2].partition("</style>")[0]
    body = svg.partition("</style>")[2]
    used = set(re.findall(r"(?:fill|stroke): (#\w{6})", body))
    assert {LIGHT[0], "#ffffff"} < used <= set(ON_DARK)
    for light, dark in ON_DARK.items():
        assert f'[style*="fill: {light}"] {{ fill: {dark} !important; }}' in style
        assert f'[style*="stroke: {light}"] {{ stroke: {dark} !important; }}' in style
    text, note = re.findall(r"text-anchor: \w+; fill: (#\w{6})", body)[0], "#5b636c"
    for shade in (text, note, *LIGHT):
        assert _contrast(shade, "#ffffff") >= 4.5, shade  # WCAG's AA for text
    for shade in (ON_DARK[text], ON_DARK[note], *DARK):
        assert _contrast(shade, ON_DARK["#ffffff"]) >= 4.5, shade


def _contrast(one: str, other: str) -> float:
    """Returns the contrast ratio of two colors, as WCAG 2 defines it."""
    light, dark = sorted(map(_luminance, (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(shade: str) -> float:
    parts = [int(shade[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_sixteen_models_differ_in_color_or_dashes() -> None:
    looks = [_look(number) for number in range(16)]
    assert len({(look["color"], look["linestyle"]) for look in looks}) == 16
    assert all(one["linestyle"] != other["linestyle"] for one, other in pairwise(looks[:8]))


def test_matplotlib_is_imported_by_pictures_alone() -> None:
    code = "import sys, training.__main__ as m; m.parser(); sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert plots.__name__ in sys.modules

"""Pictures: what lies where on their axes, and the files that are made of them."""

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
from matplotlib.patches import StepPatch

from training.evaluation.geometry import uniformity
from training.evaluation.report import plots
from training.evaluation.report.plots import (
    DARK,
    EVEN,
    LIGHT,
    ON_DARK,
    Curve,
    Gains,
    Mark,
    Picture,
    _look,
    cosines,
    gains_by_queries,
    intervals,
    plane,
    spectra,
)

SVG = "{http://www.w3.org/2000/svg}"
Place = tuple[float, float]


def lines(picture: Picture, color: int) -> list[Line2D]:
    [axes] = picture.figure.axes
    return [line for line in axes.lines if line.get_color() == LIGHT[color]]


def places(line: Line2D) -> list[Place]:
    return [(float(x), float(y)) for x, y in np.asarray(line.get_xydata())]


def ticks(axes: Axes, name: str) -> list[str]:
    """The numbers that are seen on an axis."""
    low, high = sorted(getattr(axes, f"get_{name}lim")())
    axis = getattr(axes, f"{name}axis")
    shown = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
    return [label.get_text() for at, label in shown if low <= at <= high]


def names(picture: Picture) -> list[str]:
    return [text.get_text() for text in picture.figure.legends[0].get_texts()]


def test_a_model_lies_on_the_plane_where_its_figures_say_and_its_seeds_around_it() -> None:
    drawn = plane([Mark("a", [(-2.5, 0.25)]), Mark("b", [(-1.0, 0.5), (-2.0, 0.0), (-3.0, 0.7)])])
    [one] = lines(drawn, 0)
    assert places(one) == [(-2.5, 0.25)]
    seeds, mean = lines(drawn, 1)
    assert places(seeds) == [(-1.0, 0.5), (-2.0, 0.0), (-3.0, 0.7)]
    assert places(mean) == [pytest.approx((-2.0, 0.4))]
    assert names(drawn) == ["a", "b"]
    said = "a: uniformity -2.500, alignment 0.250; b: uniformity -2.000, alignment 0.400."
    assert drawn.description == said


def test_the_planes_landmarks_are_what_vectors_of_that_kind_have() -> None:
    [axes] = plane([Mark("a", [(-2.5, 0.25)])]).figure.axes
    even = np.random.default_rng(0).normal(size=(600, 4096)).astype(np.float32)
    assert pytest.approx(uniformity(even), abs=0.01) == EVEN
    assert places(axes.lines[0]) == [(EVEN, 0), (EVEN, 1)]
    assert places(axes.lines[1]) == [(0, 0)]
    assert [text.get_text() for text in axes.texts] == ["spread evenly, many dimensions", "all equal"]


@pytest.mark.parametrize("spectrum", [[1.0, 0.5, 0.3, 0.15], [1.0, 0.5, 0.05, 2e-6], [1.0, 0.02]])
def test_a_spectrum_lies_on_a_logarithmic_axis(spectrum: list[float]) -> None:
    drawn = spectra([Curve("a", list(enumerate(spectrum, 1)))])
    [line] = lines(drawn, 0)
    assert places(line) == list(enumerate(spectrum, 1))
    assert drawn.figure.axes[0].get_yscale() == "log"


def test_the_axes_of_a_spectrum_are_whole_numbers_and_powers_of_ten() -> None:
    drawn = spectra([Curve("a", [(1.0, 1.0), (384.0, 0.0005)])])
    [axes] = drawn.figure.axes
    drawn.svg()
    assert ticks(axes, "y") == ["0.001", "0.01", "0.1", "1"]
    assert all(text.isdigit() for text in ticks(axes, "x"))
    assert axes.get_xlabel() == "direction, from the largest"
    assert axes.get_ylabel() == "singular value, by the largest (log)"


def test_files_of_one_name_share_its_color_and_are_named_once() -> None:
    drawn = spectra([Curve(name, [(1.0, 1.0), (2.0, 0.5)]) for name in ("a", "b", "a")])
    assert [len(lines(drawn, number)) for number in (0, 1, 2)] == [2, 1, 0]
    assert names(drawn) == ["a", "b"]


def outlines(axes: Axes) -> list[tuple[list[float], list[float]]]:
    found = [patch.get_data() for patch in axes.patches if isinstance(patch, StepPatch)]
    return [(list(map(float, values)), list(map(float, edges))) for values, edges, _ in found]


def test_a_histogram_shows_the_share_of_its_own_bin() -> None:
    drawn = cosines({"a": {"0-1": [3, 1, 0, 0], "4-5": [0, 0, 0, 50]}})
    high, low = drawn.figure.axes  # the highest bin is on top
    edges = [-1, -0.5, 0, 0.5, 1]
    filled, outline = outlines(low)
    assert filled == outline == ([75, 25, 0, 0], edges)
    assert outlines(high)[0] == ([0, 0, 0, 100], edges)
    assert high.get_ylim() == low.get_ylim()
    assert [axes.get_title("left") for axes in (high, low)] == ["gold score 4-5", "gold score 0-1"]
    # Middles of the steps: -0.75 -0.25 0.25 0.75.
    assert drawn.description == "a: mean cosine by gold score 0-1 at -0.62, 4-5 at 0.75."


def test_a_bin_without_pairs_is_flat_and_said() -> None:
    drawn = cosines({"a": {"0-1": [0, 0], "4-5": [1, 1]}, "b": {"4-5": [1, 0]}})
    assert [values for values, _ in outlines(drawn.figure.axes[-1])] == [[0, 0], [0]]
    assert "0-1 without pairs" in drawn.description
    assert names(drawn) == ["a", "b"]
    cosines({"a": {"0-1": [0, 0]}}).svg()


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


@pytest.mark.parametrize(
    "name",
    ["a < b & c", "tab\tand \x07", "half \udcff of one", 'it\'s "quoted"', "]]>", "_a", "$a$", "中文"],
)
def test_any_name_of_a_file_is_well_formed(name: str) -> None:
    curve = Curve(name, [(1.0, 1.0), (2.0, 0.5)])
    shown = re.sub(r"[\t\x07\udcff]", "\ufffd", name)
    histogram = {"0-1": [1, 2]}
    for drawn in (
        plane([Mark(name, [(-2.0, 0.25)])]),
        spectra([curve]),
        cosines({name: histogram, "b": histogram}),
    ):
        root = ET.fromstring(drawn.svg().encode())  # as it is written to a file
        assert shown in [text.text for text in root.iter(f"{SVG}text")]


def test_a_long_name_is_cut_and_is_whole_in_the_description() -> None:
    name = "all-the-letters-of-a-long-name-of-a-model"
    drawn = plane([Mark(name, [(-2.0, 0.25)])])
    assert names(drawn) == ["all-the-letters-of-a-long-n…"]
    assert name in (ET.fromstring(drawn.svg()).findtext(f"{SVG}desc") or "")


def test_who_hears_the_page_is_told_what_a_picture_shows() -> None:
    drawn = spectra([Curve("a", [(1.0, 1.0), (2.0, 0.4), (3.0, 0.125)])])
    root = ET.fromstring(drawn.svg())
    assert root.get("role") == "img"
    named = {each.get("id"): each.text for each in root if each.get("id")}
    title, said = (named[name] for name in root.get("aria-labelledby", "").split())
    assert title == "Spectrum of the sentences of STS-B"
    assert said == "a: below a half from direction 2 on, the last of 3 is 0.125."


def test_the_same_figures_are_the_same_file_in_every_process() -> None:
    code = (
        "from training.evaluation.report.plots import *\n"
        "print(plane([Mark('a', [(-2.5, 0.25), (-2.0, 0.3)])]).svg(), end='')"
    )
    once = plane([Mark("a", [(-2.5, 0.25), (-2.0, 0.3)])]).svg()
    again = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert once == again


def test_every_color_is_read_on_its_background_and_has_its_shade_on_a_dark_one() -> None:
    svg = plane([Mark("a", [(-2.0, 0.25)])]).svg()
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
    """As WCAG 2 defines it."""
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

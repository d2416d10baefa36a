"""Pictures, read back: by an axis's ticks, a dot's place on the page is the figure that it stands for."""

import math
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from training.evaluation.geometry import uniformity
from training.evaluation.report.plots import Curve, Mark, cosines, dev_scores, plane, spectra
from training.evaluation.report.svg import DARK, LIGHT, PAPER, apart, colour, dashes, ticks

SVG = "{http://www.w3.org/2000/svg}"
Place = tuple[float, float]


def _all(svg: str, tag: str, kind: str = "") -> list[ET.Element]:
    found = ET.fromstring(svg).iter(f"{SVG}{tag}")
    return [each for each in found if set(kind.split()) <= set(each.get("class", "").split())]


def _places(line: ET.Element) -> list[Place]:
    points = [point.split(",") for point in line.get("points", "").split()]
    return [(float(x), float(y)) for x, y in points]


def _reader(svg: str, *, log: bool = False) -> Callable[[Place], Place]:
    """From pixels to data, going by nothing but the first two numbers on each axis."""
    numbers = [each for each in _all(svg, "text", "small") if re.fullmatch(r"[-\d.e]+", each.text or "")]
    across = [
        (float(each.get("x", 0)), float(each.text or 0)) for each in numbers if _anchor(each) == "middle"
    ]
    up = [(float(each.get("y", 0)) - 4, float(each.text or 0)) for each in numbers if _anchor(each) == "end"]
    up = [(pixel, math.log10(value)) for pixel, value in up] if log else up

    def read(at: Place) -> Place:
        x, y = (_between(ends, pixel) for ends, pixel in zip((across, up), at, strict=True))
        return x, 10**y if log else y

    return read


def _anchor(text: ET.Element) -> str:
    return text.get("text-anchor", "")


def _between(ends: Sequence[Place], pixel: float) -> float:
    (p, low), (q, high) = ends[0], ends[-1]
    return low + (pixel - p) / (q - p) * (high - low)


def _dots(svg: str, kind: str) -> list[Place]:
    return [(float(c.get("cx", 0)), float(c.get("cy", 0))) for c in _all(svg, "circle", kind)]


def test_a_model_lies_on_the_plane_where_its_figures_say_and_its_seeds_around_it() -> None:
    svg = plane([Mark("a", [(-2.5, 0.25)]), Mark("b", [(-1.0, 0.5), (-2.0, 0.0), (-3.0, 0.7)])])
    read = _reader(svg)
    assert [read(at) for at in _dots(svg, "f0")] == [pytest.approx((-2.5, 0.25), abs=0.005)]
    *seeds, mean = [read(at) for at in _dots(svg, "f1")]
    assert mean == pytest.approx((-2.0, 0.4), abs=0.005)
    assert seeds == [pytest.approx(at, abs=0.005) for at in ((-1.0, 0.5), (-2.0, 0.0), (-3.0, 0.7))]
    assert "a: uniformity -2.500, alignment 0.250; b: uniformity -2.000, alignment 0.400." in svg


def test_the_planes_landmarks_are_what_vectors_of_that_kind_have() -> None:
    svg = plane([Mark("a", [(-2.5, 0.25)])])
    read = _reader(svg)
    even = np.random.default_rng(0).normal(size=(600, 4096)).astype(np.float32)
    [lead] = _all(svg, "polyline", "lead")
    assert [read(at)[0] for at in _places(lead)] == pytest.approx([uniformity(even)] * 2, abs=0.01)
    assert [read(at) for at in _dots(svg, "note")] == [pytest.approx((0, 0), abs=0.005)]


@pytest.mark.parametrize("spectrum", [[1.0, 0.5, 0.3, 0.15], [1.0, 0.5, 0.05, 2e-6], [1.0, 0.02]])
def test_a_spectrum_is_read_back_from_its_logarithmic_axis(spectrum: list[float]) -> None:
    svg = spectra([Curve("a", list(enumerate(spectrum, 1)))])
    read = _reader(svg, log=True)
    [line] = _all(svg, "polyline", "c0")
    places, values = zip(*map(read, _places(line)), strict=True)
    assert places == pytest.approx(range(1, len(spectrum) + 1), abs=0.01)
    assert values == pytest.approx(spectrum, rel=0.01)


def test_the_axes_of_a_spectrum_are_numbered_from_1_and_by_powers_of_ten() -> None:
    svg = spectra([Curve("a", [(1.0, 1.0), (384.0, 0.005)])])
    assert [text.text for text in _all(svg, "text", "small")] == [
        *("1", "0.1", "0.01", "0.001"),
        *("1", "100", "200", "300"),
    ]
    names = [text.text for text in _all(svg, "text") if not text.get("class")]
    assert names == ["direction, from the largest", "singular value, by the largest (log)"]


def test_dev_scores_are_lines_over_the_steps_with_a_ring_at_the_best() -> None:
    falling = [(125.0, 80.0), (250.0, 82.5), (500.0, 81.25)]
    svg = dev_scores([Curve("a", falling, falling[1]), Curve("b", [(250.0, 79.0)])])
    read = _reader(svg)
    [line] = _all(svg, "polyline", "c0")
    assert list(map(read, _places(line))) == [pytest.approx(at, abs=0.6) for at in falling]
    assert [read(at)[1] for at in _places(line)] == pytest.approx([80, 82.5, 81.25], abs=0.01)
    [ring] = _dots(svg, "c0")
    assert read(ring) == pytest.approx((250, 82.5), abs=0.6)
    [alone] = _dots(svg, "f1")  # a line of one point would not be seen
    assert read(alone) == pytest.approx((250, 79.0), abs=0.6)
    assert "a: 81.25 at step 500, the best 82.50 at step 250; b: 79.00 at step 250." in svg


def test_one_score_is_drawn_although_it_spans_no_range() -> None:
    svg = dev_scores([Curve("a", [(0.0, 83.2)], (0.0, 83.2))])
    assert _reader(svg)(_dots(svg, "c0")[0]) == pytest.approx((0, 83.2), abs=0.01)


def test_a_histogram_shows_the_share_of_its_own_bin() -> None:
    counts = {"0-1": [3, 1, 0, 0], "4-5": [0, 0, 0, 50]}
    svg = cosines({"a": counts})
    high, low = (_places(line) for line in _all(svg, "polyline", "c0"))  # the highest bin is on top
    numbers = _all(svg, "text", "small")
    bottom, top = [float(text.get("y", 0)) - 4 for text in numbers if _anchor(text) == "end"][-2:]
    across = [(float(t.get("x", 0)), float(t.text or 0)) for t in numbers if _anchor(t) == "middle"]
    shares = [(bottom - at[1]) / (bottom - top) for at in low]
    assert shares == pytest.approx([0, 0.75, 0.75, 0.25, 0.25, 0, 0, 0, 0, 0], abs=0.002)
    assert [_between(across, at[0]) for at in low] == pytest.approx(
        [-1, -1, -0.5, -0.5, 0, 0, 0.5, 0.5, 1, 1], abs=0.002
    )
    assert max(at[1] for at in high) - min(at[1] for at in high) == pytest.approx(bottom - top, abs=0.2)
    # Middles of the steps: -0.75 -0.25 0.25 0.75.
    assert "a: mean cosine by gold score 0-1 at -0.62, 4-5 at 0.75." in svg


def test_a_bin_without_pairs_is_flat_and_said() -> None:
    svg = cosines({"a": {"0-1": [0, 0], "4-5": [1, 1]}})
    empty = _places(_all(svg, "polyline", "c0")[-1])
    assert len({y for _, y in empty}) == 1
    assert "0-1 without pairs" in svg
    cosines({"a": {"0-1": [0, 0]}})


def test_names_on_the_plane_cover_neither_each_other_nor_a_dot() -> None:
    names = [f"a model of seed {at}" for at in range(9)]
    marks = [Mark(name, [(-2.0 + 0.01 * (at % 3), 0.25)]) for at, name in enumerate(names)]
    svg = plane([*marks, Mark("at the right edge of it", [(0.1, 0.1)])])
    boxes = []
    for text in (each for each in _all(svg, "text") if each.get("class", "").startswith("f")):
        x, y, wide = float(text.get("x", 0)), float(text.get("y", 0)), 6.0 * len(text.text or "")
        left = x - wide if _anchor(text) == "end" else x
        boxes += [(left, y - 9, left + wide, y)]
    boxes += [(x - 5, y - 5, x + 5, y + 5) for x, y in _dots(svg, "f9")]
    assert len(boxes) == 10
    for at, (left, top, right, bottom) in enumerate(boxes):
        assert right <= 760
        for other in boxes[:at]:
            assert right <= other[0] or left >= other[2] or bottom <= other[1] or top >= other[3]
    assert (
        len(_all(svg, "polyline", "lead")) > 3
    )  # beside the one of the landmark: names that are not beside their dots are led to


@pytest.mark.parametrize(
    "name", ["a < b & c", "tab\tand \x07", "half \udcff of one", 'it\'s "quoted"', "]]>"]
)
def test_any_name_of_a_file_is_well_formed(name: str) -> None:
    mark, curve = Mark(name, [(-2.0, 0.25)]), Curve(name, [(1.0, 1.0), (2.0, 0.5)])
    shown = re.sub(r"[\t\x07\udcff]", "\ufffd", name)
    histogram = {"0-1": [1, 2]}
    for svg in (
        plane([mark]),
        spectra([curve]),
        dev_scores([curve]),
        cosines({name: histogram, "b": histogram}),
    ):
        root = ET.fromstring(svg.encode())  # as it is written to a file
        assert shown in [text.text for text in root.iter(f"{SVG}text")]


def test_a_long_name_is_cut_and_is_whole_in_its_tooltip_and_the_description() -> None:
    name = "all-the-letters-of-a-long-name-of-a-model"
    svg = plane([Mark(name, [(-2.0, 0.25)])])
    [text] = [each for each in _all(svg, "text") if each.find(f"{SVG}title") is not None]
    assert text.findtext(f"{SVG}title") == name
    assert "".join(text.itertext()) == name + "all-the-letters-of-a-long-n…"
    assert name in (ET.fromstring(svg).findtext(f"{SVG}desc") or "")


def test_who_hears_the_page_is_told_what_a_picture_shows() -> None:
    root = ET.fromstring(spectra([Curve("a", [(1.0, 1.0), (2.0, 0.4), (3.0, 0.125)])]))
    assert root.get("role") == "img"
    named = {each.get("id"): each.text for each in root if each.get("id")}
    assert [named[name] for name in root.get("aria-labelledby", "").split()] == [
        "Spectrum of the sentences of STS-B",
        "a: below a half from direction 2 on, the last of 3 is 0.125.",
    ]


@pytest.mark.parametrize(("scheme", "palette"), [("light", LIGHT), ("dark", DARK)])
def test_every_colour_is_read_on_its_background(scheme: str, palette: tuple[str, ...]) -> None:
    svg = plane([Mark("a", [(-2.0, 0.25)])])
    styles = svg.split("@media (prefers-color-scheme: dark) {")
    style = styles[0 if scheme == "light" else 1]
    assert f".paper {{ fill: {PAPER[scheme]}; }}" in style
    [text] = re.findall(r"^text \{ fill: (#\w{6}); \}$", style, re.MULTILINE)
    [note] = re.findall(r"\.note \{ fill: (#\w{6}); \}", style)
    for shade in (text, note, *palette):
        assert _contrast(shade, PAPER[scheme]) >= 4.5, shade  # WCAG's AA for text
    assert re.findall(r"\.f\d \{ fill: (#\w{6}); \}", style) == list(palette)


def _contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""
    light, dark = sorted(map(_luminance, (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(shade: str) -> float:
    parts = [int(shade[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_sixteen_models_differ_in_colour_or_dashes() -> None:
    assert len({(colour(number), dashes(number)) for number in range(16)}) == 16
    assert all(dashes(a) != dashes(b) for a, b in pairwise(range(8)))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (-4.3, 0.2, [-4, -3, -2, -1, 0]),
        (0, 384, [0, 100, 200, 300]),
        (81.1, 81.3, [81.1, 81.15, 81.2, 81.25, 81.3]),
        (0, 6, [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == expected


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ([50, 10], [50, 10]),
        ([50, 50, 50], [50, 60, 70]),
        ([95, 99], [90, 100]),
        ([0, 100, 98], [5, 100, 90]),
        ([90] * 12, [5 + 10 * at for at in range(12)]),  # no room for all
    ],
)
def test_labels_are_moved_apart_and_no_further(wanted: list[float], expected: list[float]) -> None:
    assert apart(wanted, 5, 100, gap=10) == expected

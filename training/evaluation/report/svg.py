"""SVG as text: a page with its title and description, panels with axes, lines, and labels that keep apart.

A picture brings its own background and colours for light and for dark, so it is read on any page. Pixels
count from the upper left; a coordinate is written to a tenth of one.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

# Each with a contrast of 4.5 or more against its background, so a label may have its line's colour.
LIGHT = ("#1f5fbf", "#a8400a", "#1d6e36", "#7a3fc4", "#a82a72", "#6a5700", "#0a6877", "#4f575f")
DARK = ("#7fb4f8", "#f29a63", "#6cc98a", "#c3a3f5", "#f08fc2", "#d8be4c", "#58cbd8", "#b9c1c9")
PAPER = {"light": "#ffffff", "dark": "#15191f"}
_INK = {"light": ("#1c2026", "#5b636c", "#dde1e6"), "dark": ("#e4e8ec", "#9aa3ad", "#353c45")}
_DASHES = ("", "7 3", "2 3", "9 3 2 3")  # beside the colour, for who cannot tell the colours apart
_LONGEST = 28  # letters of a label; the whole name is its tooltip
LINE_HEIGHT = 15.0
Place = tuple[float, float]


class Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


class Panel(NamedTuple):
    """Where data lie on the page. `x` and `y` are (lowest, highest) of the data, y upwards."""

    box: Box
    x: tuple[float, float]
    y: tuple[float, float]
    log: bool = False  # y

    def place(self, at: Place) -> Place:
        low, high = map(self._scale, self.y)
        right = (at[0] - self.x[0]) / (self.x[1] - self.x[0])
        up = (self._scale(at[1]) - low) / (high - low)
        box = self.box
        return box.left + right * (box.right - box.left), box.bottom - up * (box.bottom - box.top)

    def _scale(self, y: float) -> float:
        return math.log10(y) if self.log else y


def page(title: str, description: str, size: tuple[float, float], body: Iterable[str]) -> str:
    width, height = size
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-labelledby="title description">'
    )
    lines = (
        head,
        f'<title id="title">{clean(title)}</title>',
        f'<desc id="description">{clean(description)}</desc>',
        f"<style>\n{_style()}\n</style>",
        '<rect class="paper" width="100%" height="100%"/>',
        f'<text class="title" x="16" y="24">{clean(title)}</text>',
        *body,
        "</svg>",
    )
    return "\n".join(lines) + "\n"


def clean(text: str) -> str:
    """As XML can hold it: without control characters and halves of characters, which a name may have."""
    return escape("".join(letter if letter.isprintable() else "\ufffd" for letter in text))


def axes(panel: Panel, x: Sequence[float], y: Sequence[float], names: tuple[str, str] = ("", "")) -> str:
    """Ticks at `x` and `y` with their values, lines across at those of y, and what is measured."""
    box, parts = panel.box, []
    for value in y:
        at = panel.place((panel.x[0], value))[1]
        parts += [stroke([(box.left, at), (box.right, at)], "grid")]
        parts += [words((box.left - 7, at + 4), f"{value:g}", "small", "end")]
    for value in x:
        at = panel.place((value, panel.y[0]))[0]
        parts += [stroke([(at, box.bottom), (at, box.bottom + 5)], "axis")]
        parts += [words((at, box.bottom + 18), f"{value:g}", "small", "middle")]
    corners = [(box.left, box.top), (box.left, box.bottom), (box.right, box.bottom)]
    parts += [stroke(corners, "axis")]
    across, up = names
    if across:
        parts += [words(((box.left + box.right) / 2, box.bottom + 36), across, "", "middle")]
    if up:
        parts += [upward((box.top + box.bottom) / 2, up)]
    return "\n".join(parts)


def stroke(places: Iterable[Place], kind: str, more: str = "") -> str:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline class="{kind}" points="{points}"{more}/>'


def words(at: Place, text: str, kind: str, anchor: str = "start", more: str = "") -> str:
    x, y = at
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{clean(text)}</text>'


def upward(y: float, text: str) -> str:
    """An axis's name at the left edge, its middle at `y`."""
    return words((20, y), text, "", "middle", f' transform="rotate(-90 20 {y:.1f})"')


def label(at: Place, name: str, kind: str, anchor: str = "start") -> str:
    """A name that may be too long for the page: cut, with the whole of it as a tooltip."""
    shown = shortened(name)
    if shown == name:
        return words(at, name, kind, anchor)
    whole = f"<title>{clean(name)}</title>"
    return words(at, shown, kind, anchor).replace(">", f">{whole}", 1)


def dot(at: Place, radius: float, kind: str) -> str:
    return f'<circle class="{kind}" cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{radius:g}"/>'


def shortened(name: str) -> str:
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"


def text_width(text: str) -> float:
    """About, at 12 pixels: no font is at hand. Letters of China, Japan and Korea are twice as wide."""
    return sum(12.0 if unicodedata.east_asian_width(letter) in "WF" else 6.8 for letter in text)


def colour(number: int) -> str:
    """The class of the line of the model with this number, from 0."""
    return f"line c{number % len(LIGHT)}"


def ink(number: int) -> str:
    """The class of that model's dots and labels."""
    return f"f{number % len(LIGHT)}"


def dashes(number: int) -> str:
    pattern = _DASHES[(number + number // len(LIGHT)) % len(_DASHES)]  # another where the colours begin again
    return f' stroke-dasharray="{pattern}"' if pattern else ""


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round values from `low` to `high`: steps of 1, 2 or 5 times a power of ten, at most `most` steps."""
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(unit * power for unit in (1, 2, 5, 10) if (high - low) / (unit * power) <= most * (1 + 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) + 0.0 for number in range(first, last + 1)]


def apart(wanted: Sequence[float], low: float, high: float, gap: float = LINE_HEIGHT) -> list[float]:
    """Heights near those wanted, in their order, at least `gap` from each other, from `low` to `high`.

    Where there is no room for all, they go beyond `high`.
    """
    order = sorted(range(len(wanted)), key=lambda at: wanted[at])
    found = [0.0] * len(wanted)
    floor = low
    for at in order:
        found[at] = max(wanted[at], floor)
        floor = found[at] + gap
    ceiling = max(high, low + gap * (len(wanted) - 1))
    for at in reversed(order):
        found[at] = min(found[at], ceiling)
        ceiling = found[at] - gap
    return found


def _style() -> str:
    return "\n".join(
        (
            "text { font: 12px system-ui, sans-serif; }",
            "text.title { font-size: 15px; font-weight: 600; }",
            "text.small { font-size: 11px; }",
            "polyline { fill: none; }",
            ".line { stroke-width: 1.8; stroke-linejoin: round; }",
            ".faint { opacity: 0.45; }",
            ".lead { stroke-width: 0.8; stroke-dasharray: 1 2; }",
            *_colours("light", LIGHT),
            "@media (prefers-color-scheme: dark) {",
            *_colours("dark", DARK),
            "}",
        )
    )


def _colours(scheme: str, palette: Sequence[str]) -> Iterator[str]:
    text, axis, grid = _INK[scheme]
    yield f".paper {{ fill: {PAPER[scheme]}; }}"
    yield f"text {{ fill: {text}; }}"
    yield f".axis, .lead {{ stroke: {axis}; }}"
    yield f".note {{ fill: {axis}; }}"
    yield f".grid {{ stroke: {grid}; }}"
    for number, value in enumerate(palette):
        yield f".c{number} {{ stroke: {value}; }} .f{number} {{ fill: {value}; }}"

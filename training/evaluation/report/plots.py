"""Draw the pictures of reports with matplotlib: gains with their intervals.

Each picture has a text description for readers who do not see it. The number of a curve, from 0, sets the
color and the dashes of its line. Importing matplotlib takes a second, so other modules import this module
only where they draw a picture.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

# Each has a contrast of at least 4.5 on its background, on light and on dark pages.
LIGHT = ("#1f5fbf", "#a8400a", "#1d6e36", "#7a3fc4", "#a82a72", "#6a5700", "#0a6877", "#4f575f")
DARK = ("#7fb4f8", "#f29a63", "#6cc98a", "#c3a3f5", "#f08fc2", "#d8be4c", "#58cbd8", "#b9c1c9")
_PAPER, _INK, _NOTE, _GRID = "#ffffff", "#1c2026", "#5b636c", "#dde1e6"
ON_DARK = dict(zip(LIGHT, DARK, strict=True)) | {
    _PAPER: "#15191f",
    _INK: "#e4e8ec",
    _NOTE: "#9aa3ad",
    _GRID: "#353c45",
}
_DASHES = ("-", (0, (5, 2)), (0, (1.5, 2)), (0, (7, 2, 1.5, 2)))  # for readers who cannot tell the colors
_MARKERS = "os^D"
_LONGEST = 28  # letters of a name in a picture; the description has the whole name
mpl.rcParams.update(
    {
        "svg.fonttype": "none",  # keeps text as text
        "svg.hashsalt": "simile",  # equal pictures are equal files
        "text.parse_math": False,  # names may have dollar signs
        "text.color": _INK,
        "axes.labelcolor": _INK,
        "axes.axisbelow": True,
        "axes.edgecolor": _NOTE,
        "axes.facecolor": "none",
        "axes.formatter.useoffset": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.spines.right": False,
        "axes.spines.top": False,
        "figure.facecolor": _PAPER,
        "font.sans-serif": ["DejaVu Sans"],  # part of matplotlib
        "font.size": 9,
        "grid.color": _GRID,
        "legend.frameon": False,
        "xtick.color": _NOTE,
        "xtick.labelcolor": _INK,
        "ytick.color": _NOTE,
        "ytick.labelcolor": _INK,
    }
)


class Picture(NamedTuple):
    figure: Figure
    description: str

    def svg(self) -> str:
        """Returns the picture as SVG text, with a background and with colors for light and dark pages."""
        drawn = io.StringIO()
        with warnings.catch_warnings():  # about letters without a glyph; the reader's font has them
            warnings.simplefilter("ignore", UserWarning)
            self.figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
        opening, _, body = drawn.getvalue().partition("<svg ")[2].partition(">")
        return (
            f'<svg role="img" aria-labelledby="title description" {opening}>\n'
            f'<title id="title">{escape(clean(self.figure.get_suptitle()))}</title>\n'
            f'<desc id="description">{escape(clean(self.description))}</desc>\n'
            f"<style>\n@media (prefers-color-scheme: dark) {{\n{_dark_rules()}\n}}\n</style>{body}"
        )


def titled(title: str, height: float = 4.4) -> Figure:
    """Returns a figure with a title and no axes. `height` is in inches."""
    figure = Figure((7.6, height), layout="constrained")
    figure.suptitle(title, x=0.02, ha="left", weight="bold")
    return figure


def clean(text: str) -> str:
    """Replaces control characters and lone surrogates, which XML cannot hold."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def shortened(name: str) -> str:
    name = clean(name)
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"


def intervals(gains: Sequence[Mapping[str, Any]]) -> Picture:
    """Draws each gain with its interval as a horizontal line, and a line at zero."""
    figure = titled("Gains with their intervals", 1 + 0.5 * len(gains))
    axes = figure.add_subplot(xlabel="candidate minus active")
    axes.axvline(0, color=_NOTE, linewidth=0.8, linestyle=":")
    for row, gain in enumerate(gains):
        axes.plot((gain["low"], gain["high"]), (row, row), color=_NOTE)
        axes.plot(gain["difference"], row, "o", color=_INK)
        if gain["shown"]:
            axes.annotate("better", (gain["high"], row), (6, -3), textcoords="offset points")
    axes.set_yticks(range(len(gains)), [shortened(gain["name"]) for gain in gains])
    axes.set_ylim(len(gains) - 0.5, -0.5)
    said = (
        f"{gain['name']}: {gain['difference']:+.4f}, from {gain['low']:+.4f} to {gain['high']:+.4f}"
        for gain in gains
    )
    return Picture(figure, _sentence(said))


class Gains(NamedTuple):
    """The gains of a collection.

    Attributes:
        name: Name of the collection.
        points: One (judged queries, gain, low, high) for each number of judged queries, ascending. Gains, and
            the ends of their intervals, are in points of nDCG@10.
    """

    name: str
    points: Sequence[tuple[float, float, float, float]]


def gains_by_queries(curves: Sequence[Gains], title: str) -> Picture:
    """Draws gains with their intervals over the number of judged queries, and a line at zero."""
    figure = titled(title)
    axes = figure.add_subplot(xlabel="judged queries (log)", ylabel="gain in nDCG@10, points", xscale="log")
    axes.axhline(0, color=_NOTE, linewidth=0.8, linestyle=":")
    shown: dict[str, Artist] = {}
    for number, (name, points) in enumerate(curves):
        look = _look(number)
        counts, gains, lows, highs = zip(*points, strict=True)
        # Lines at the same number would cover each other.
        places = [count * (1 + 0.03 * (number - (len(curves) - 1) / 2)) for count in counts]
        axes.vlines(places, lows, highs, color=look["color"], alpha=0.45)
        [shown[name]] = axes.plot(places, gains, marker=_MARKERS[number % len(_MARKERS)], **look)
    ticks = sorted({count for _, points in curves for count, *_ in points})
    axes.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks], rotation=45)
    axes.xaxis.set_minor_locator(NullLocator())
    figure.legend([*shown.values()], [*map(shortened, shown)], loc="outside right upper")
    said = (
        f"{name}: " + ", ".join(f"{gain:+.1f} with {count:,.0f}" for count, gain, _, _ in points)
        for name, points in curves
    )
    return Picture(figure, _sentence(said))


def _look(number: int) -> dict[str, Any]:
    """Returns the line style of curve `number`. Curves of the same color have different dashes."""
    pattern = _DASHES[(number + number // len(LIGHT)) % len(_DASHES)]
    return {"color": LIGHT[number % len(LIGHT)], "linestyle": pattern}


def _sentence(said: Iterable[str]) -> str:
    return "; ".join(said) + "."


def _dark_rules() -> str:
    """Returns CSS rules that replace every color by its shade for dark pages."""
    return "\n".join(
        f'[style*="{part}: {light}"] {{ {part}: {dark} !important; }}'
        for light, dark in ON_DARK.items()
        for part in ("fill", "stroke")
    )

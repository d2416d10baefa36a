"""The picture of a run: texts a second of everybody under three loads, as bars."""

from typing import NamedTuple

from matplotlib.patches import Patch

from benchmarks.floors import BULK, LONG, MANY, MIX_AT_ONCE, SENTENCES_AT_ONCE
from benchmarks.forms import CACHED
from benchmarks.results import Results, Spread
from training.evaluation.report.plots import LIGHT, Picture, titled

OURS, PEER, LIBRARY, RAW = 0, 1, 3, 7  # colours, by the palette's numbers
PANELS = (
    (MANY, SENTENCES_AT_ONCE, "64 clients, a sentence each"),
    (BULK, SENTENCES_AT_ONCE, "4 clients, 32 sentences each"),
    (LONG, MIX_AT_ONCE, "32 clients, a text of 8 to 256 tokens each"),
)
LEGEND = (
    (OURS, "Simile, over HTTP"),
    (PEER, "another server, over HTTP"),
    (LIBRARY, "a library in its process, all texts at once"),
    (RAW, "the raw engine, all texts at once"),
)


class Bar(NamedTuple):
    name: str
    found: Spread
    colour: int


def bars(results: Results) -> Picture:
    """A panel for each load, bars from zero, the fastest first; each panel has its own scale."""
    panels = {
        title: sorted(rows, key=lambda bar: bar.found.median)
        for load, at_once, title in PANELS
        if (rows := _rows(results, load, at_once))
    }
    sizes = [len(rows) for rows in panels.values()]
    figure = titled("Texts a second, in one run", 1 + 0.45 * len(sizes) + 0.25 * sum(sizes))
    places = figure.subplots(len(sizes), squeeze=False, height_ratios=[1 + size for size in sizes])[:, 0]
    for axes, (title, rows) in zip(places, panels.items(), strict=True):
        axes.set_title(title, loc="left", fontsize="medium")
        drawn = axes.barh(
            [bar.name for bar in rows],
            [bar.found.median for bar in rows],
            color=[LIGHT[bar.colour] for bar in rows],
        )
        marks = ["" if bar.found.clean else " (c)" for bar in rows]
        labels = [f"{bar.found.median:,.0f}{mark}" for bar, mark in zip(rows, marks, strict=True)]
        axes.bar_label(drawn, labels, padding=4)
        axes.margins(x=0.1)
        axes.set_xticks([])
        axes.grid(visible=False)
    patches = [Patch(color=LIGHT[colour], label=said) for colour, said in LEGEND]
    figure.legend(handles=patches, loc="outside lower left", ncols=2)
    told = (
        f"{title}: " + ", ".join(f"{bar.name} {bar.found.median:.0f}" for bar in reversed(rows))
        for title, rows in panels.items()
    )
    return Picture(figure, "Texts a second. " + "; ".join(told) + ".")


def _rows(results: Results, load: str, at_once: str) -> list[Bar]:
    found = []
    for name in results.names:
        if name == CACHED:  # beside its bar no other would be seen
            continue
        if over_http := results.spread((name, load)):
            found.append(Bar(name, over_http, OURS if name.startswith("Simile") else PEER))
        elif alone := results.spread((name, at_once)):
            found.append(Bar(name, alone, RAW if name.startswith("raw") else LIBRARY))
    return found

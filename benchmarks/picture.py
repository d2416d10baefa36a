"""The picture of a run: texts a second of everybody under three loads, as bars in SVG."""

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.floors import BULK, LONG, MANY, MIX_AT_ONCE, SENTENCES_AT_ONCE
from benchmarks.forms import CACHED
from benchmarks.report import JUDGED
from benchmarks.results import Results, Spread
from training.evaluation.report.svg import ink, page, stroke, words

OURS, PEER, LIBRARY, RAW = 0, 1, 3, 7  # colours, by the palette's numbers
PANELS = (
    (MANY, SENTENCES_AT_ONCE, "64 clients, a sentence each"),
    (BULK, SENTENCES_AT_ONCE, "4 clients, 32 sentences each"),
    (LONG, MIX_AT_ONCE, "32 clients, a text of 8 to 256 tokens each"),
)
WIDTH = 760.0
LEFT, RIGHT, TOP, EDGE = 268.0, 690.0, 44.0, 16.0
ROW, THICK, HEAD, GAP = 21.0, 13.0, 22.0, 14.0
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


def bars(results: Results) -> str:
    """One panel a load, bars from zero, the fastest first; each panel has its own scale."""
    body: list[str] = []
    told: list[str] = []
    top = TOP
    for load, at_once, title in PANELS:
        rows = sorted(_rows(results, load, at_once), key=lambda bar: -bar.found.median)
        if not rows:
            continue
        body += _panel(rows, title, top)
        told += [f"{title}: " + ", ".join(f"{bar.name} {bar.found.median:.0f}" for bar in rows)]
        top += HEAD + ROW * len(rows) + GAP
    for at, (colour, said) in enumerate(LEGEND):
        left, above = EDGE + at % 2 * 340, top + at // 2 * 18
        body += [_bar(left, above, 12, colour), words((left + 18, above + 11), said, "small")]
    description = "Texts a second. " + "; ".join(told) + "."
    return page("Texts a second, in one run", description, (WIDTH, top + 36 + EDGE), body)


def _rows(results: Results, load: str, at_once: str) -> list[Bar]:
    found = []
    for name in results.names:
        if name.endswith(JUDGED) or name == CACHED:  # beside its bar no other would be seen
            continue
        if over_http := results.spread((name, load)):
            found.append(Bar(name, over_http, OURS if name.startswith("Simile") else PEER))
        elif alone := results.spread((name, at_once)):
            found.append(Bar(name, alone, RAW if name.startswith("raw") else LIBRARY))
    return found


def _panel(rows: Sequence[Bar], title: str, top: float) -> list[str]:
    most = max(bar.found.median for bar in rows)
    parts = [words((EDGE, top + 12), title, "")]
    for at, bar in enumerate(rows):
        above = top + HEAD + ROW * at
        long = (RIGHT - LEFT) * bar.found.median / most
        parts += [words((LEFT - 8, above + THICK - 2), bar.name, "", "end")]
        parts += [_bar(LEFT, above, long, bar.colour)]
        mark = "" if bar.found.clean else " (c)"
        parts += [words((LEFT + long + 6, above + THICK - 2), f"{bar.found.median:,.0f}{mark}", "small")]
    below = top + HEAD + ROW * len(rows) - ROW + THICK + 3
    return [*parts, stroke([(LEFT, top + HEAD - 3), (LEFT, below)], "axis")]


def _bar(left: float, top: float, long: float, colour: int) -> str:
    return (
        f'<rect class="{ink(colour)}" x="{left:.1f}" y="{top:.1f}" width="{max(long, 1):.1f}" '
        f'height="{THICK:g}"/>'
    )

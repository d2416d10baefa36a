"""The pictures of a report, as SVG: the plane of alignment and uniformity, spectra, cosines, dev scores.

Each function gives the text of one file, whose description says in words what the picture shows. A model has
a number, from 0, which is its colour; files of several seeds are given under one name and share it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from training.evaluation.report.svg import (
    LINE_HEIGHT,
    Box,
    Panel,
    Place,
    apart,
    axes,
    colour,
    dashes,
    dot,
    ink,
    label,
    page,
    shortened,
    stroke,
    text_width,
    ticks,
    upward,
    words,
)

_WIDTH, _HEIGHT = 760.0, 440.0
_LEFT, _TOP, _BOTTOM, _EDGE = 74.0, 44.0, 54.0, 16.0  # margins
# Uniformity of vectors that are spread evenly over a sphere of many dimensions: cosines go to 0, and the log
# of the mean of exp(4 cos - 4) to -4. Of all distributions the even one has the least (Wang & Isola 2020).
_EVEN = -4.0
_RADIUS = 5.0


class Mark(NamedTuple):
    """One model on the plane."""

    name: str
    seeds: Sequence[Place]  # (uniformity, alignment) of each

    @property
    def at(self) -> Place:
        x, y = zip(*self.seeds, strict=True)
        return sum(x) / len(x), sum(y) / len(y)


class Curve(NamedTuple):
    name: str
    points: Sequence[Place]  # by x, one at least
    best: Place | None = None  # marked


def plane(marks: Sequence[Mark]) -> str:
    """Uniformity across, alignment up. A mark is the mean of its seeds, which are small dots beside it."""
    places = list(chain.from_iterable(mark.seeds for mark in marks))
    x = min(_EVEN - 0.3, *(at[0] - 0.2 for at in places)), 0.2
    y = 0.0, max(0.5, *(1.15 * at[1] for at in places))
    panel = Panel(Box(_LEFT, _TOP, _WIDTH - _EDGE, _HEIGHT - _BOTTOM), x, y)
    names = "uniformity, lower is more evenly spread", "alignment, lower is nearer"
    body = [axes(panel, ticks(*x), ticks(*y), names)]
    even = panel.place((_EVEN, 0))[0]
    body += [stroke([(even, panel.box.top), (even, panel.box.bottom)], "lead")]
    body += [words((even + 5, panel.box.top + 10), "spread evenly, many dimensions", "small note")]
    equal = panel.place((0, 0))
    body += [dot(equal, _RADIUS, "note"), words((equal[0], equal[1] - 10), "all equal", "small note", "end")]
    dots = [panel.place(mark.at) for mark in marks]
    wide = text_width("spread evenly, many dimensions")
    taken = [
        *(Box(x - _RADIUS, y - _RADIUS, x + _RADIUS, y + _RADIUS) for x, y in (*dots, equal)),
        Box(even, panel.box.top, even + wide, panel.box.top + LINE_HEIGHT),
        Box(equal[0] - 60, equal[1] - 22, equal[0], equal[1]),
    ]
    for number, (mark, at) in enumerate(zip(marks, dots, strict=True)):
        if len(mark.seeds) > 1:
            body += [dot(panel.place(seed), _RADIUS / 2, f"{ink(number)} faint") for seed in mark.seeds]
        body += [dot(at, _RADIUS, ink(number)), *_name(mark.name, number, at, panel.box, taken)]
    said = "; ".join(
        f"{mark.name}: uniformity {mark.at[0]:.3f}, alignment {mark.at[1]:.3f}" for mark in marks
    )
    return page("Alignment and uniformity on STS-B", f"{said}.", (_WIDTH, _HEIGHT), body)


def spectra(curves: Sequence[Curve]) -> str:
    """Points are (place from 1, value by the largest), without zeros, which have no place on a log axis."""
    values = [value for curve in curves for _, value in curve.points]
    low = 10.0 ** min(math.floor(math.log10(min(values))), -1)
    decades = round(-math.log10(low))
    y = [10.0**-power for power in range(decades + 1)]
    if decades < 3:
        y += [part * power for power in y[1:] for part in (2, 5)]
    x = 1.0, max(2.0, *(curve.points[-1][0] for curve in curves))
    names = "direction, from the largest", "singular value, by the largest (log)"
    body = _lines(curves, (x, [1, *ticks(0, x[1])[1:]]), ((low, 1.0), y), names, log=True)
    said = "; ".join(f"{curve.name}: {_falls(curve.points)}" for curve in curves)
    return page("Spectrum of the sentences of STS-B", f"{said}.", (_WIDTH, _HEIGHT), body)


def dev_scores(curves: Sequence[Curve]) -> str:
    """Points are (step, Spearman times 100); the best step has a ring."""
    values = [value for curve in curves for _, value in curve.points]
    middle, half = (min(values) + max(values)) / 2, max(0.55 * (max(values) - min(values)), 0.5)
    y = middle - half, middle + half
    x = 0.0, max(1.0, *(curve.points[-1][0] for curve in curves))
    body = _lines(curves, (x, ticks(*x)), (y, ticks(*y)), ("step", "STS-B dev, Spearman times 100"))
    said = "; ".join(
        f"{curve.name}: {curve.points[-1][1]:.2f} at step {curve.points[-1][0]:g}"
        + (f", the best {curve.best[1]:.2f} at step {curve.best[0]:g}" if curve.best else "")
        for curve in curves
    )
    return page("STS-B dev over the training", f"{said}.", (_WIDTH, _HEIGHT), body)


def cosines(models: Mapping[str, Mapping[str, Sequence[int]]]) -> str:
    """Of each model, pairs by gold score in equal steps of the cosine from -1 to 1, as shares of their bin.

    A small picture for each bin, one below the other, so that the shift from one to the next is seen.
    """
    bins = list(dict.fromkeys(chain.from_iterable(models.values())))
    shares = {
        name: {grade: _shares(histogram.get(grade, ())) for grade in bins}
        for name, histogram in models.items()
    }
    most = max((value for each in shares.values() for share in each.values() for value in share), default=0)
    step = ticks(0, max(most, 0.01), 3)[1]
    top = step * math.ceil(most / step - 1e-9) or step
    right, high = _WIDTH - (_EDGE if len(models) == 1 else _room(models)), 74.0
    body: list[str] = []
    for row, grade in enumerate(reversed(bins)):
        above = _TOP + row * (high + 18)
        panel = Panel(Box(_LEFT, above, right, above + high), (-1, 1), (0, 100 * top))
        last = row == len(bins) - 1
        across = ("cosine of the pair", "") if last else ("", "")
        body += [axes(panel, [-1, -0.5, 0, 0.5, 1] if last else [], [0, 100 * top], across)]
        body += [words((_LEFT + 8, above + 12), f"gold score {grade}", "note")]
        for number, each in enumerate(shares.values()):
            outline = [panel.place(at) for at in _steps(each[grade])]
            if len(models) == 1:
                points = " ".join(f"{x:.1f},{y:.1f}" for x, y in outline)
                body += [f'<polygon class="{ink(number)} faint" points="{points}"/>']
            body += [stroke(outline, colour(number), dashes(number))]
    height = _TOP + len(bins) * (high + 18) + 30
    body += [upward(height / 2, "% of the bin")]
    for number, name in enumerate(models if len(models) > 1 else ()):
        y = _TOP + 12 + number * LINE_HEIGHT
        body += [stroke([(right + 12, y - 4), (right + 36, y - 4)], colour(number), dashes(number))]
        body += [label((right + 42, y), name, ink(number))]
    said = "; ".join(f"{name}: {_middles(each)}" for name, each in shares.items())
    return page("Cosines of STS-B's pairs by gold score", f"{said}.", (_WIDTH, height), body)


def _lines(
    curves: Sequence[Curve],
    x: tuple[tuple[float, float], Sequence[float]],
    y: tuple[tuple[float, float], Sequence[float]],
    names: tuple[str, str],
    *,
    log: bool = False,
) -> list[str]:
    """Curves over axes given as (range, ticks), each with its name to the right of where it ends."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(curve.name for curve in curves))}
    right = _WIDTH - _room(numbers)
    panel = Panel(Box(_LEFT, _TOP, right, _HEIGHT - _BOTTOM), x[0], y[0], log=log)
    body = [axes(panel, x[1], y[1], names)]
    for curve in curves:
        number = numbers[curve.name]
        points = [panel.place(at) for at in curve.points]
        body += [stroke(points, colour(number), dashes(number))]
        if len(points) == 1:
            body += [dot(points[0], 3, ink(number))]
        if curve.best:
            ring = dot(panel.place(curve.best), _RADIUS, colour(number))
            body += [ring.replace("/>", ' fill="none"/>')]
    ends = {curve.name: panel.place(curve.points[-1]) for curve in curves}
    heights = apart([at[1] for at in ends.values()], _TOP + 4, panel.box.bottom)
    for (name, end), height in zip(ends.items(), heights, strict=True):
        body += [stroke([end, (right + 10, height)], "lead")]
        body += [label((right + 13, height + 4), name, ink(numbers[name]))]
    return body


def _name(name: str, number: int, at: Place, inside: Box, taken: list[Box]) -> Iterator[str]:
    """Beside its dot, on the first side and height where nothing is yet; with a thin line when it is far."""
    wide, (x, y) = text_width(shortened(name)), at
    for turn in range(2 * len(taken) + 2):
        down = math.ceil(turn / 2) * (LINE_HEIGHT if turn % 2 else -LINE_HEIGHT)
        for side, anchor in ((1, "start"), (-1, "end")):
            edge = x + side * (_RADIUS + 4)
            left, right = sorted((edge, edge + side * wide))
            box = Box(left, y + down - 9, right, y + down + 5)
            beyond = box.left < inside.left or box.right > inside.right
            beyond = beyond or box.top < inside.top or box.bottom > inside.bottom
            if not beyond and not any(box.meets(other) for other in taken):
                taken.append(box)
                if turn:
                    yield stroke([at, (edge, y + down)], "lead")
                yield label((edge, y + down + 4), name, ink(number), anchor)
                return
    yield label((x + _RADIUS + 4, y + 4), name, ink(number))


def _room(names: Sequence[str] | Mapping[str, object]) -> float:
    """What the longest name takes to the right of a panel."""
    return max(text_width(shortened(name)) for name in names) + 50


def _falls(points: Sequence[Place]) -> str:
    """How soon a spectrum is below a half of its largest value, and where it ends."""
    half = next((place for place, value in points if value < 0.5), None)
    last = f"the last of {points[-1][0]:g} is {points[-1][1]:.3g}"
    return last if half is None else f"below a half from direction {half:g} on, {last}"


def _shares(counts: Sequence[int]) -> list[float]:
    total = sum(counts)
    return [count / total if total else 0.0 for count in counts]


def _steps(shares: Sequence[float]) -> list[Place]:
    """The outline of a histogram over -1 to 1, in percent, from the axis and back to it."""
    wide = 2 / len(shares) if shares else 0.0
    outline = [(-1.0, 0.0)]
    for at, share in enumerate(shares):
        outline += [(-1 + at * wide, 100 * share), (-1 + (at + 1) * wide, 100 * share)]
    return [*outline, (1.0, 0.0)]


def _middles(bins: Mapping[str, Sequence[float]]) -> str:
    """The mean cosine of each bin, each step counted at its middle."""
    said = []
    for grade, shares in bins.items():
        middle = sum(share * (-1 + (2 * at + 1) / len(shares)) for at, share in enumerate(shares))
        said += [f"{grade} at {middle:.2f}" if any(shares) else f"{grade} without pairs"]
    return "mean cosine by gold score " + ", ".join(said)

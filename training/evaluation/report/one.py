"""`evaluate --report`: all figures of one model in Markdown, with pictures.

FOLDER/report.md
FOLDER/plane.svg spectrum.svg cosines.svg     of the geometry
FOLDER/dev.svg                                of the runs, where one has dev scores
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from training.evaluation.data import BY_KEY
from training.evaluation.report.courses import Course
from training.evaluation.report.files import Scores
from training.evaluation.report.markdown import escape, listed, picture, table, write
from training.evaluation.report.table import (
    COLUMNS,
    SEARCH,
    other_modes,
    percent,
    plain,
    search_remarks,
    similarity_remarks,
    title,
    transfer_remarks,
)

if TYPE_CHECKING:
    from training.evaluation.report.plots import Picture

_SIMILARITY = ("Spearman", "mean of subsets", "weighted", "Pearson")
GEOMETRY = {"alignment": 4, "uniformity": 4, "mean_cosine": 4, "top_energy": 4, "effective_rank": 1}
_SAYS = {
    "alignment": "mean squared distance of {pairs} pairs with a gold score above 4; lower is better",
    "uniformity": "over {sentences} distinct sentences; lower is better, about -4 when spread evenly",
    "mean_cosine": "of two different sentences; 0 when directions are spread evenly",
    "top_energy": "share of the squared lengths along one direction",
    "effective_rank": "of {directions} directions",
}
READING = (
    "Similarity, search and transfer are times 100. The Spearman that papers report is the first: a year's "
    "subsets are put together and ranked once. Geometry explains a score and does not replace it: a model "
    "may be better in each figure and worse at similarity."
)


def write_report(folder: Path, scores: Scores, courses: Sequence[Course]) -> Path:
    """Write the report; return its place."""
    name = str(scores["model"])
    drawn = pictures({name: [scores]}, courses)
    sections = [f"# {escape(name)}", _about(scores), READING, *_tables(scores), *shown(drawn)]
    return write(folder, [*sections, *training(courses, drawn)], drawn)


def pictures(models: Mapping[str, Sequence[Scores]], courses: Sequence[Course]) -> dict[str, Picture]:
    """By file name. A model without a figure is not on its picture; a picture of nothing is not made."""
    from training.evaluation.report.plots import (  # noqa: PLC0415  matplotlib
        Curve,
        Mark,
        cosines,
        dev_scores,
        plane,
        spectra,
    )

    shapes = {
        name: [each["geometry"] for each in seeds if "geometry" in each] for name, seeds in models.items()
    }
    found: dict[str, Picture] = {}
    marks = []
    for name, seeds in shapes.items():
        places = [(each["uniformity"], each["alignment"]) for each in seeds]
        if known := [place for place in places if None not in place]:
            marks += [Mark(name, known)]
    if marks:
        found["plane.svg"] = plane(marks)
    spectrums = [(name, each["spectrum"]) for name, seeds in shapes.items() for each in seeds]
    if curves := [Curve(name, points) for name, values in spectrums if (points := _above_zero(values))]:
        found["spectrum.svg"] = spectra(curves)
    counts = {
        name: _together([each["histogram"] for each in seeds]) for name, seeds in shapes.items() if seeds
    }
    if counts:
        found["cosines.svg"] = cosines(counts)
    watched = [(course, _points(course)) for course in courses]
    if any(points for _, points in watched):
        lines = [Curve(course.name, points, _best(course)) for course, points in watched if points]
        found["dev.svg"] = dev_scores(lines)
    return found


def shown(drawn: Mapping[str, Picture]) -> Iterator[str]:
    """The pictures of the geometry, with what they show."""
    said = {
        "plane.svg": "Lower is better on both axes. The dot of several seeds is their mean.",
        "spectrum.svg": "Singular values of the sentences' vectors by the largest; zeros are not drawn.",
        "cosines.svg": "How many of a bin's pairs have which cosine: the further apart the bins, the better.",
    }
    for file, words in said.items():
        if file in drawn:
            yield f"{picture(file, drawn[file])}\n\n{words}"


def training(courses: Sequence[Course], drawn: Mapping[str, Picture]) -> Iterator[str]:
    """The runs as a table. Spearman on STS-B dev times 100."""
    if not courses:
        return
    yield "## Training"
    header = ("run", "method", "base", "seed", "steps", "best step", "best dev", "last dev", "minutes")
    rows = [
        (
            course.name,
            course.method,
            course.base,
            _or_blank(course.seed),
            str(course.done)
            if course.finished
            else f"{course.done} of {_or_blank(course.planned)}, unfinished",
            _or_blank(course.best),
            "" if course.best is None else percent(course.dev[course.best]),
            percent(list(course.dev.values())[-1]) if course.dev else "",
            f"{course.seconds / 60:.1f}",
            "" if course.rate is None else f"{course.rate:.0f}",
            course.device,
        )
        for course in courses
    ]
    yield table((*header, "sentences/s", "device"), rows, words=(0, 1, 2, 10))
    if "dev.svg" in drawn:
        yield f"{picture('dev.svg', drawn['dev.svg'])}\n\nThe ring is the best step."


def absent(scores: Scores) -> str:
    return ", ".join(map(title, scores["absent"]))


def _about(scores: Scores) -> str:
    rows = [
        ("model", str(scores["model"])),
        ("version", scores["version"] or "not published in the models folder"),
        ("fingerprint", scores["fingerprint"] or "unknown"),
        ("form", scores.get("form") or "unknown"),
        ("date", scores["date"]),
        ("data", scores.get("data") or "unknown"),
        ("measured", f"{scores['sentences']} distinct sentences in {scores['seconds']:.1f} s"),
    ]
    if scores["absent"]:
        rows += [("absent", f"{absent(scores)} (no such folder in the evaluation data)")]
    return table(("", ""), rows, words=(0, 1))


def _tables(scores: Scores) -> Iterator[str]:
    if "sts" in scores:
        yield "## Similarity"
        yield from _similarity(scores)
    if "geometry" in scores:
        figures = scores["geometry"]
        said = {"directions": len(figures["spectrum"])} | figures
        rows = [
            (key.replace("_", " "), plain(figures[key], decimals), _SAYS[key].format(**said))
            for key, decimals in GEOMETRY.items()
        ]
        yield f"## Geometry of STS-B ({', '.join(figures['splits'])})"
        yield table(("", "value", ""), rows, words=(0, 2))
    if "retrieval" in scores:
        yield "## Search"
        searches: list[tuple[str, ...]] = []
        for name, figures in scores["retrieval"].items():
            counted = str(figures["queries"]), str(figures["documents"]), "; ".join(search_remarks(figures))
            searches += [(name, *_found(figures), *counted)]
            searches += [
                (f"{name}, {mode}", *_found(found), "", "", "") for mode, found in other_modes(figures)
            ]
        header = ("", *(f"recall{head}" if head[0] == "@" else head for head in SEARCH))
        yield table((*header, "queries", "documents", "remarks"), searches, words=(0, len(header) + 2))
    if "transfer" in scores:
        yield "## Transfer"
        yield from _transfer(scores)


def _found(figures: Mapping[str, Any]) -> Iterator[str]:
    return (percent(figures[key]) for key in SEARCH.values())


def _similarity(scores: Scores) -> Iterator[str]:
    rows = {}
    for key, figures in scores["sts"].items():
        cells = (percent(figures[column]) for column in COLUMNS)
        remarks = "; ".join(similarity_remarks(figures, BY_KEY[key].published))
        rows[key] = (title(key), *cells, str(figures["pairs"]), remarks)
    english = scores["mean"]["sets"] if "mean" in scores else []
    ordered = [rows.pop(key) for key in english]
    if english:
        mean = percent(scores["mean"]["spearman_all"])
        names = ", ".join(map(title, english))
        ordered += [(f"mean of {len(english)}", mean, "", "", "", "", f"over {names}")]
    yield table(("", *_SIMILARITY, "pairs", "remarks"), [*ordered, *rows.values()], words=(0, 6))


def _transfer(scores: Scores) -> Iterator[str]:
    rows, protocols = [], []
    for key, figures in scores["transfer"].items():
        f1 = "" if figures["f1"] is None else percent(figures["f1"])
        remarks = "; ".join(transfer_remarks(figures))
        rows += [(title(key), percent(figures["accuracy"]), f1, str(figures["examples"]), remarks)]
        protocols += [f"{title(key)}: {figures['protocol']}; on held-out examples {percent(figures['dev'])}"]
    names = ", ".join(map(title, scores["transfer_mean"]["sets"]))
    mean = f"mean of {len(scores['transfer_mean']['sets'])}"
    rows += [(mean, percent(scores["transfer_mean"]["accuracy"]), "", "", f"over {names}")]
    yield table(("", "accuracy", "F1", "examples", "remarks"), rows, words=(0, 4))
    yield listed(protocols)


def _above_zero(spectrum: Sequence[float]) -> list[tuple[float, float]]:
    return [(place, value) for place, value in enumerate(spectrum, 1) if value > 0]


def _together(histograms: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, list[int]]:
    """The pairs of all seeds."""
    return {grade: np.sum([each[grade] for each in histograms], axis=0).tolist() for grade in histograms[0]}


def _points(course: Course) -> list[tuple[float, float]]:
    return [(step, 100 * score) for step, score in course.dev.items() if score is not None]


def _best(course: Course) -> tuple[float, float] | None:
    return next((point for point in _points(course) if point[0] == course.best), None)


def _or_blank(value: int | None) -> str:
    return "" if value is None else str(value)

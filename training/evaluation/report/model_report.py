"""Write the report of `evaluate --report`: all figures of a model in Markdown, with pictures.

FOLDER/report.md
FOLDER/plane.svg spectrum.svg cosines.svg     of the geometry
FOLDER/dev.svg                                of runs with dev scores
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from training.evaluation.report.markdown import escape, listed, picture, table, write
from training.evaluation.report.runs import Course
from training.evaluation.report.table import Scores, percent, sections, title

if TYPE_CHECKING:
    from training.evaluation.report.plots import Picture

READING = (
    "Similarity, search and transfer are times 100. The Spearman that papers report is the first: a year's "
    "subsets are put together and ranked once. Geometry explains a score and does not replace it: a model "
    "may be better in each figure and worse at similarity."
)


def write_report(folder: Path, scores: Scores, courses: Sequence[Course]) -> Path:
    """Writes report.md and the pictures into `folder`. Returns the path of report.md."""
    name = str(scores["model"])
    drawn = pictures({name: [scores]}, courses)
    sections = [f"# {escape(name)}", _about(scores), READING, *_tables(scores), *shown(drawn)]
    return write(folder, [*sections, *training(courses, drawn)], drawn)


def pictures(models: Mapping[str, Sequence[Scores]], courses: Sequence[Course]) -> dict[str, Picture]:
    """Draws all pictures for which there are figures. Returns them by file name."""
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
    if curves := [
        Curve(name, points)
        for name, values in spectrums
        if (points := [place for place in enumerate(values, 1) if place[1] > 0])
    ]:
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
    """Yields Markdown for the pictures of the geometry, with captions."""
    said = {
        "plane.svg": "Lower is better on both axes. The dot of several seeds is their mean.",
        "spectrum.svg": "Singular values of the sentences' vectors by the largest; zeros are not drawn.",
        "cosines.svg": "How many of a bin's pairs have which cosine: the further apart the bins, the better.",
    }
    for file, words in said.items():
        if file in drawn:
            yield f"{picture(file, drawn[file])}\n\n{words}"


def training(courses: Sequence[Course], drawn: Mapping[str, Picture]) -> Iterator[str]:
    """Yields Markdown for training runs: a table with Spearman on STS-B dev times 100, and the picture."""
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
    for section in sections(scores):
        yield f"## {section.title}"
        yield table(section.header, section.rows, section.words)
        yield listed(section.notes)


def _together(histograms: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, list[int]]:
    """Returns the sum of the histograms of all seeds."""
    return {grade: np.sum([each[grade] for each in histograms], axis=0).tolist() for grade in histograms[0]}


def _points(course: Course) -> list[tuple[float, float]]:
    return [(step, 100 * score) for step, score in course.dev.items() if score is not None]


def _best(course: Course) -> tuple[float, float] | None:
    return next((point for point in _points(course) if point[0] == course.best), None)


def _or_blank(value: int | None) -> str:
    return "" if value is None else str(value)

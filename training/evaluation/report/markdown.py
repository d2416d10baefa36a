"""Write Markdown reports: tables, escaped names, and a folder with pictures.

FOLDER/report.md
FOLDER/plane.svg spectrum.svg cosines.svg     of the geometry
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from models.files.fsync import replace_text
from training.arguments import expanded
from training.errors import TrainingError
from training.evaluation.report.table import Scores

if TYPE_CHECKING:
    from training.evaluation.report.plots import Picture

FILE_NAME = "report.md"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], words: Iterable[int] = (0,)) -> str:
    """Returns a Markdown table. Columns whose index is in `words` are left-aligned, others right-aligned."""
    left = set(words)
    marks = [":--" if at in left else "--:" for at in range(len(header))]
    lines = [header, marks, *(map(escape, row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escape(text: str) -> str:
    """Escapes Markdown in a name. Unprintable characters, such as line ends, become U+FFFD."""
    one_line = "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
    return re.sub(r"([\\`*_{}\[\]<>|&~#])", r"\\\1", one_line)


def listed(remarks: Iterable[str]) -> str:
    return "\n".join(f"- {escape(remark)}" for remark in remarks)


def picture(file: str, drawn: Picture) -> str:
    return f"![{escape(drawn.title)}]({file})"


def report_folder(name: str) -> Path:
    """Creates the folder of a report. Called before the evaluation, so that a wrong path fails at once.

    Raises:
        TrainingError: The folder cannot be created, or cannot contain a report.
    """
    folder = expanded(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrainingError(f"{name} cannot hold a report: {error.strerror}.") from None
    place = folder / FILE_NAME
    if place.exists() and not place.is_file():
        raise TrainingError(f"{place} is no file, so no report can take its place.")
    return folder


def write(folder: Path, sections: Iterable[str], pictures: Mapping[str, Picture]) -> Path:
    """Writes the pictures and then report.md into `folder`. Returns the path of report.md."""
    for file, drawn in pictures.items():
        replace_text(folder / file, drawn.svg())
    text = "\n\n".join(section for section in sections if section)
    replace_text(folder / FILE_NAME, f"{text}\n")
    return folder / FILE_NAME


def pictures(models: Mapping[str, Sequence[Scores]]) -> dict[str, Picture]:
    """Draws all pictures for which there are figures. Returns them by file name."""
    from training.evaluation.report.plots import (  # noqa: PLC0415  matplotlib
        Curve,
        Mark,
        cosines,
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


def _together(histograms: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, list[int]]:
    """Returns the sum of the histograms of all seeds."""
    return {grade: np.sum([each[grade] for each in histograms], axis=0).tolist() for grade in histograms[0]}

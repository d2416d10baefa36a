"""Write Markdown reports, FOLDER/report.md: tables, escaped names, and pictures as files next to it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from models.files.fsync import replace_text
from training.arguments import expanded
from training.errors import TrainingError

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


def write(folder: Path, sections: Iterable[str]) -> Path:
    """Writes report.md into `folder`. Returns its path."""
    text = "\n\n".join(section for section in sections if section)
    replace_text(folder / FILE_NAME, f"{text}\n")
    return folder / FILE_NAME

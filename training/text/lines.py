"""Read the lines of a text file as records. A record has its position in the file for error messages.

    .jsonl      an object on each line
    .tsv        a header row, then rows with the same number of fields
    others      one text on each line, as {"text": …}

All files may be compressed as .gz. corpus.py and evaluation/data.py choose the fields.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from models.messages import amount
from training.errors import TrainingError

LARGEST_LINE = 1 << 20  # bytes; a longer line is not a text to embed


class Line(NamedTuple):
    text: str
    at: str  # the file and the number of the line, from 1


class Record(NamedTuple):
    fields: Mapping[str, Any]
    at: str


def read_records(
    file: Path, header: Iterable[tuple[str, ...]] = (), kind: str | None = None
) -> Iterator[Record]:
    """Yields records. Blank lines of .jsonl and plain text give records without fields.

    Args:
        file: File to read.
        header: Alternative names of each field that a table must have.
        kind: Layout, `.jsonl` or `.tsv`. None means the layout that the file name has.

    Raises:
        TrainingError: A line cannot be read. The message names the line.

    """
    if kind is None and file.name.lower().removesuffix(".gz").endswith(".csv"):
        raise TrainingError(
            f"{file} is a CSV file. Import it into a service (`simile import`) and give "
            "--from-service, or write it as .tsv or .jsonl."
        )
    lines = read_lines(file)
    kind = layout(file) if kind is None else kind
    if kind == ".jsonl":
        return _from_json(lines)
    if kind == ".tsv":
        return _from_table(file, lines, header)
    return (Record({"text": line.text} if line.text.strip() else {}, line.at) for line in lines)


def layout(file: Path) -> str:
    """Returns the layout of a file by its name: `.jsonl`, `.tsv`, or an empty string for lines of text."""
    name = file.name.lower().removesuffix(".gz")
    return next((suffix for suffix in (".jsonl", ".tsv") if name.endswith(suffix)), "")


def build_text(record: Record, names: Sequence[str]) -> str:
    """Returns the text of a field. `names` are alternative names of the field, in order of preference.

    Raises:
        TrainingError: The record has none of the names, or the value is not a text.

    """
    text = next((record.fields[name] for name in names if name in record.fields), None)
    if not isinstance(text, str):
        raise TrainingError(f"{record.at} has no text under the name {' or '.join(names)}.")
    return valid(text, record.at)


def valid(text: str, at: str) -> str:
    """Returns the text unchanged if tokenizers accept it.

    Raises:
        TrainingError: The text contains a lone surrogate, which JSON allows but tokenizers reject.

    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise TrainingError(f"{at} holds half of a surrogate pair, which is not text.") from None
    return text


def read_lines(file: Path) -> Iterator[Line]:
    """Yields the lines of a UTF-8 file. Only a newline ends a line, as texts may contain other separators.

    Raises:
        TrainingError: A line cannot be read. The message names the line.

    """
    if not file.is_file():
        raise TrainingError(f"There is no file {file}.")
    return _lines(file)


def _lines(file: Path) -> Iterator[Line]:
    packed = file.name.lower().endswith(".gz")
    with gzip.open(file) if packed else file.open("rb") as stream:
        try:
            number = 0
            while raw := stream.readline(LARGEST_LINE + 2):
                number += 1
                yield _line(raw, f"{file}, line {number}", first=number == 1)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise TrainingError(f"{file} is not a whole gzip file: {error}") from None


def _line(raw: bytes, at: str, *, first: bool) -> Line:
    raw = raw.rstrip(b"\r\n")
    if len(raw) > LARGEST_LINE:
        raise TrainingError(f"{at} is longer than 1 MiB. Put each text on a line of its own.")
    try:
        return Line(raw.decode("utf-8-sig" if first else "utf-8"), at)
    except UnicodeDecodeError as error:
        raise TrainingError(f"{at} is not UTF-8 (byte {error.start + 1}). Save the file as UTF-8.") from None


def _from_json(lines: Iterable[Line]) -> Iterator[Record]:
    for line in lines:
        if not line.text.strip():
            yield Record({}, line.at)
            continue
        try:
            record = json.loads(line.text)
        except (ValueError, RecursionError):
            raise TrainingError(f"{line.at} is not JSON.") from None
        if not isinstance(record, dict) or not record:
            record = {"": record}  # the reader then names the missing field
        yield Record(record, line.at)


def _from_table(file: Path, lines: Iterable[Line], requested: Iterable[tuple[str, ...]]) -> Iterator[Record]:
    rows = iter(lines)
    first = next(rows, None)
    header = first.text.split("\t") if first else []
    missing = [
        " or ".join(f"`{name}`" for name in names) for names in requested if not set(names) & set(header)
    ]
    if missing:
        raise TrainingError(f"{file} has no column {', '.join(missing)} in its first row.")
    for row in rows:
        fields = row.text.split("\t")
        if len(fields) != len(header):
            raise TrainingError(
                f"{row.at} has {amount(len(fields), 'field')}; the first row has {len(header)}."
            )
        yield Record(dict(zip(header, fields, strict=True)), row.at)

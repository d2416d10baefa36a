"""Documents out of files: JSON lines, CSV, TSV, plain text; plain or compressed by gzip; `-` is stdin.

jsonl: {"id", "title", "text", "metadata"} on each line, or fields of other names. csv: a first line of column
names, and commas; tsv: the same with tabs. text: a document on each line, or one per file.
"""

import contextlib
import csv
import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Protocol, Self, TypeAlias, cast

import orjson

from service.cli.commands.columns import BadRow, Columns
from service.errors import CommandError
from service.http import exact_json
from service.http.ndjson import MAX_LINE_BYTES, Lines

Format: TypeAlias = Literal["jsonl", "csv", "tsv", "text"]
FORMATS: tuple[Format, ...] = ("jsonl", "csv", "tsv", "text")
Bytes: TypeAlias = IO[bytes] | gzip.GzipFile
PIECE_BYTES = 1 << 13  # the progress is told by what was read
_ENDINGS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "text",
}
_MARKS: dict[Format, str] = {"csv": ",", "tsv": "\t"}  # between the cells of a row


class CsvReader(Protocol):
    """The type that `csv.reader` makes."""

    def __next__(self) -> list[str]: ...


class Row(NamedTuple):
    """Content of one line of a file: the document as it is sent, or why there is none."""

    file: str
    line: int
    content: dict[str, Any] | BadRow


def format_of(name: str) -> Format:
    """By the end of the file's name. Raises CommandError when that says nothing."""
    endings = [ending for ending in Path(name).suffixes if ending != ".gz"]
    found = _ENDINGS.get(endings[-1].lower()) if endings else None
    if found is None:
        raise CommandError(f"{name}: is it jsonl, csv, tsv or text? Say so with --format.")
    return found


@contextlib.contextmanager
def opened(name: str) -> Iterator[tuple[Bytes, Bytes]]:
    """The file's bytes, unpacked, and the file itself, whose position says how far it is read.

    Raises:
        CommandError: it cannot be read.

    """
    try:
        if name == "-":
            yield sys.stdin.buffer, sys.stdin.buffer
            return
        with Path(name).open("rb") as raw:
            if raw.read(2) == b"\x1f\x8b":  # gzip's mark, whatever the name
                raw.seek(0)
                with gzip.open(raw) as unpacked:
                    yield unpacked, raw
            else:
                raw.seek(0)
                yield raw, raw
    except (OSError, EOFError, zlib.error) as error:
        why = (isinstance(error, OSError) and error.strerror) or error
        raise CommandError(f"{name} cannot be read ({why}).") from error


def rows(file: Bytes, name: str, kind: Format, columns: Columns, *, per_file: bool) -> Iterator[Row]:
    """Every row of a file, in its order.

    Raises:
        CommandError: nothing of it can be read, from some line on.

    """
    if per_file:
        yield _whole(file, name)
    elif kind in _MARKS:
        yield from _table(file, name, _MARKS[kind], columns)
    else:
        yield from _lines(file, name, kind, columns)


def _whole(file: Bytes, name: str) -> Row:
    content = file.read(MAX_LINE_BYTES + 1)
    if len(content) > MAX_LINE_BYTES:
        return Row(name, 1, BadRow(f"a document has at most {MAX_LINE_BYTES >> 20} MiB"))
    try:
        return Row(name, 1, {"id": name, "text": content.decode("utf-8-sig"), "metadata": {}})
    except UnicodeDecodeError as error:
        return Row(name, 1, BadRow(f"it is not UTF-8 (byte {error.start})"))


def _lines(file: Bytes, name: str, kind: Format, columns: Columns) -> Iterator[Row]:
    splitter = Lines()
    pieces = map(splitter.feed, iter(lambda: file.read(PIECE_BYTES), b""))
    for found in chain(chain.from_iterable(pieces), splitter.finish()):
        if found.content is None:
            yield Row(name, found.number, BadRow(f"the line is longer than {MAX_LINE_BYTES >> 20} MiB"))
            continue
        try:
            document = _json(found.content, columns) if kind == "jsonl" else _text(found.content)
        except BadRow as error:
            yield Row(name, found.number, error)
        else:
            yield Row(name, found.number, document)


def _json(content: bytes, columns: Columns) -> dict[str, Any]:
    try:
        value = exact_json.loads(content)
    except exact_json.Inexact as error:
        raise BadRow(str(error)) from error
    except orjson.JSONDecodeError as error:
        raise BadRow(f"it is not valid JSON in UTF-8 ({error.msg}, column {error.colno})") from error
    if not isinstance(value, dict):
        raise BadRow("it is no JSON object")
    columns.refuse_unsaid(value)
    return columns.document(value)


def _text(content: bytes) -> dict[str, Any]:
    try:
        return {"text": content.decode().removesuffix("\r"), "metadata": {}}
    except UnicodeDecodeError as error:
        raise BadRow(f"it is not UTF-8 (byte {error.start})") from error


class _Lines:
    """The lines of a CSV file, each of bounded length, and so is each row, which may take several.

    `csv.reader` begins a new row after an error, with the line behind the one that was too long.
    """

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text = text
        self._row_characters = 0
        self.number = 0  # of the line read last, from 1

    def begin_row(self) -> None:
        self._row_characters = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        line = self._text.readline(MAX_LINE_BYTES + 1)
        if not line:
            raise StopIteration
        self.number += 1
        self._row_characters += len(line)
        if self._row_characters > MAX_LINE_BYTES:
            while line and line[-1] not in "\r\n":
                line = self._text.readline(MAX_LINE_BYTES)
            raise BadRow(f"the row is longer than {MAX_LINE_BYTES >> 20} MiB")
        return line


def _table(file: Bytes, name: str, mark: str, columns: Columns) -> Iterator[Row]:
    csv.field_size_limit(MAX_LINE_BYTES)
    # What is not UTF-8 is kept apart as surrogates, so that one bad line does not end the file.
    raw = cast("IO[bytes]", file)
    text = io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape", newline="")
    try:
        lines = _Lines(text)
        yield from _rows(csv.reader(lines, delimiter=mark, strict=True), lines, name, columns)
    finally:
        text.detach()  # whoever opened the file closes it


def _rows(reader: CsvReader, lines: _Lines, name: str, columns: Columns) -> Iterator[Row]:
    begun, names = 1, None
    while True:
        begun = lines.number + 1
        lines.begin_row()
        try:
            cells = next(reader)
            if names is None:
                names = _names(cells, name, columns)
                continue
            if cells:
                yield Row(name, begun, columns.document(_fields(names, cells)))
        except StopIteration:
            return
        except csv.Error as error:
            yield Row(name, begun, BadRow(f"it is not a valid row ({error})"))
        except BadRow as error:
            if names is None:
                raise CommandError(
                    f"{name}:{begun}: {error}. The first line of the file names its columns."
                ) from error
            yield Row(name, begun, error)


def _names(cells: list[str], name: str, columns: Columns) -> list[str]:
    if missing := [column for column in columns.named if column not in cells]:
        raise CommandError(
            f"{name}:1: there is no column {missing[0]!r}; there are {', '.join(cells)[:500]}. The first "
            "line of the file names its columns; --text, --title, --id and --metadata say which to take."
        )
    if any(map(_undecoded, cells)):
        raise CommandError(f"{name}:1: the names of the columns are not UTF-8. Convert the file first.")
    if twice := [column for column in cells if cells.count(column) > 1]:
        raise CommandError(f"{name}:1: two columns are named {twice[0]!r}. Give each a name of its own.")
    return cells


def _undecoded(cell: str) -> bool:
    return any("\udc80" <= letter <= "\udcff" for letter in cell)


def _fields(names: list[str], cells: list[str]) -> dict[str, Any]:
    if len(cells) != len(names):
        raise BadRow(f"it has {len(cells)} cells, and the first line names {len(names)} columns")
    if any(map(_undecoded, cells)):
        raise BadRow("it is not UTF-8")
    return dict(zip(names, cells, strict=True))

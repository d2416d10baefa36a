"""Reads documents from JSON lines, CSV, TSV or plain text, optionally compressed with gzip.

    bytes ─▶ Unpacked ─▶ FileReader: detects encoding and separator ─▶ lines ─▶ records ─▶ Row

The caller passes pieces of bytes to `FileReader.feed`, so that a command and a route can share the reader.
Memory holds the start of the file, one line and one record, each of at most 1 MiB.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, filterfalse
from typing import Any, NamedTuple

import orjson

from models.files import exact_json
from models.files.lines import (
    MARK,
    MAX_LINE_BYTES,
    Record,
    Records,
    TextLine,
    TextLines,
    decoded,
    is_blank,
    note_on,
)
from models.messages import amount
from service.files import detection
from service.files.columns import IDS, Columns, Placed
from service.files.conversion import convert, parse_types, plain_text
from service.files.detection import HEAD_BYTES, SEPARATORS
from service.files.values import BadFile, BadRow, Format, Row, Spelling, command_option, split_names

GZIP_MARK = b"\x1f\x8b"
_SLICE_BYTES = 1 << 12
STEP_BYTES = 1 << 16  # Bytes per decompression step. gzip can expand data a thousand times.


@dataclass(frozen=True, slots=True)
class Options:
    """Options for reading a file. An option that is None is detected automatically.

    Args:
        types: Types of metadata columns that become numbers or dates.
        html: Whether to remove tags from title and text.
        spell: Returns the caller's spelling of an option, for messages.

    """

    format: Format | None = None
    encoding: str | None = None
    delimiter: str | None = None
    columns: Columns = field(default_factory=Columns)
    types: Mapping[str, str] = field(default_factory=dict)
    html: bool = False
    spell: Spelling = command_option


def build_options(
    given: Any,
    name: str,
    kind: Format | None,
    id: str | None,
    metadata: str | None,
    placed: Placed,
    *,
    every: bool,
    spell: Spelling = command_option,
) -> Options:
    """Builds the options of the reader from a command line or from query parameters.

    Args:
        given: Object with the attributes format, encoding, delimiter, title, text, types and html. Each is a
            string or None.
        name: Name of the file. It is checked unless `given` has a format.
        kind: Format of the file. None means that it is detected.
        id: Name of the id column, as in `Columns`.
        metadata: Names of the metadata columns, separated by commas. None: as in `Columns`.
        placed: How collections are chosen, as in `Columns`.
        every: Whether all other columns become metadata.
        spell: Returns the caller's spelling of an option, for messages.

    Raises:
        BadFile: An option or the name of the file is wrong.

    """
    if given.format is None:
        detection.refuse_name(name)
    text, chosen = split_names(given.text) or ("",), None if metadata is None else split_names(metadata)
    columns = Columns(id, given.title, text, chosen, every, placed, spell)
    types = parse_types(split_names(given.types or ""), spell)
    return Options(kind, given.encoding, given.delimiter, columns, types, given.html is not None, spell)


class Layout(NamedTuple):
    """The format, encoding and separator of a file. If `certain` is False, the encoding is a guess."""

    format: Format
    encoding: str
    certain: bool
    sample: str = ""
    separator: str = ""

    @property
    def encoding_name(self) -> str:
        return self.encoding.upper() if self.encoding.startswith("utf") else self.encoding

    def __str__(self) -> str:
        if not self.separator:
            return self.encoding_name
        separator = SEPARATORS.get(self.separator, repr(self.separator))
        return f"{self.encoding_name}, cells separated by {separator}"


class Unpacked:
    """Decompresses gzip data in bounded steps. Other data stays as it is."""

    def __init__(self) -> None:
        self._begin = b""
        self._gzip: bool | None = None
        self._inflate = zlib.decompressobj(wbits=31)

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yields the uncompressed bytes of `piece`.

        Raises:
            BadFile: The compressed data is damaged.

        """
        if self._gzip is None:
            self._begin += piece
            if len(self._begin) < len(GZIP_MARK):
                return
            piece, self._begin = self._begin, b""
            self._gzip = piece.startswith(GZIP_MARK)
        if not self._gzip:
            yield piece
            return
        try:
            yield from self._inflated(piece)
        except zlib.error as error:
            raise BadFile(f"it cannot be read as gzip ({error}).") from error

    def _inflated(self, piece: bytes) -> Iterator[bytes]:
        while piece:
            if self._inflate.eof:  # Another gzip member or zero padding follows.
                piece = piece.lstrip(b"\0")
                if not piece:
                    return
                self._inflate = zlib.decompressobj(wbits=31)
            while not self._inflate.eof:
                out = self._inflate.decompress(piece, STEP_BYTES)
                if not out:
                    break
                yield out
                piece = self._inflate.unconsumed_tail
            piece = self._inflate.unused_data  # At the end of a member `unconsumed_tail` is stale.

    def finish(self) -> Iterator[bytes]:
        """Yields the last bytes of the file.

        Raises:
            BadFile: The compressed data is incomplete.

        """
        if self._begin:
            yield self._begin
        if self._gzip and not self._inflate.eof:
            raise BadFile("it cannot be read to its end: the gzip data is cut off.")


class FileReader:
    """Turns uncompressed bytes into rows. Call `feed` with each piece, then `finish`.

    `feed` and `finish` raise BadFile if the rest of the file cannot be read.

    Args:
        name: Name of the file, for messages and ids.
        options: Options for reading.

    """

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self.layout: Layout | None = None
        self._options = options
        self._head = bytearray()
        self._rows = 0
        self._fed = self._done = 0  # bytes
        self._lines: TextLines
        self._maker: _Maker

    def feed(self, piece: bytes) -> Iterator[Row]:
        self._fed += len(piece)
        if self.layout is not None:
            yield from self._taken(piece)
            return
        self._head += piece
        if len(self._head) >= HEAD_BYTES:
            yield from self._begin(complete=False)

    @property
    def share(self) -> float:
        return self._done / self._fed if self._fed else 0.0

    def _taken(self, piece: bytes) -> Iterator[Row]:
        for at in range(0, len(piece), _SLICE_BYTES):
            part = piece[at : at + _SLICE_BYTES]
            for line in self._lines.feed(part):
                yield from self._counted(self._maker.take(line))
            self._done += len(part)

    def finish(self) -> Iterator[Row]:
        """Yields the last rows. If the file has no rows, yields a note that says so."""
        if self.layout is None:
            yield from self._begin(complete=True)
        for line in self._lines.feed(b"", final=True):
            yield from self._counted(self._maker.take(line))
        yield from self._counted(self._maker.finish())
        if not self._rows:
            problem = "has no row after the line that names its columns" if self._maker.begun else "is empty"
            yield Row(self.name, 1, None, note=f"the file {problem}.")

    def _counted(self, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            self._rows += row.content is not None
            yield row

    def _begin(self, *, complete: bool) -> Iterator[Row]:
        """Detects the layout from the start of the file, and yields the rows in that part.

        Args:
            complete: Whether this is the whole file.

        Raises:
            BadFile: The file cannot be read, or the encoding is only a guess.

        """
        head, self._head = bytes(self._head), bytearray()
        self.layout = layout = detect_layout(head, self.name, self._options, complete=complete)
        if not layout.certain:
            raise BadFile(unsure(layout, self._options.spell))
        refuse_arrays(head, layout)
        self._lines = TextLines(layout.encoding)
        maker = _TableMaker if layout.separator else _FileMaker if layout.format == "file" else _LineMaker
        self._maker = maker(self.name, layout, self._options)
        expected = {"csv": ",", "tsv": "\t"}.get(layout.format, "")
        unusual = layout.encoding != "utf-8" and self._options.encoding is None
        if unusual or (layout.separator != expected and self._options.delimiter is None):
            yield Row(self.name, 1, None, note=f"it is read as {layout}.")
        yield from self._taken(head)


def detect_layout(head: bytes, name: str, options: Options, *, complete: bool) -> Layout:
    """Detects the format, the encoding and the separator of a file.

    Args:
        head: The uncompressed start of the file.
        name: Name of the file.
        options: Options that replace automatic detection.
        complete: Whether `head` is the whole file.

    Raises:
        BadFile: The file cannot be read, or an option is wrong.

    """
    kind = options.format or detection.find_format(name)
    if kind is None:
        how = options.spell("format")
        raise BadFile(f"is it jsonl, csv, tsv or text? Choose with {how.removesuffix('=')}.")
    detection.refuse_content(head)
    certain, sample = True, ""
    if options.encoding is not None:
        encoding = detection.checked_encoding(options.encoding, options.spell)
        detection.require_mark(head, encoding, options.spell)
    else:
        encoding, certain, sample = detection.detect_encoding(head, complete=complete)
        if kind == "jsonl" and not certain:  # JSON is UTF-8. Lines that are not UTF-8 fail one by one.
            encoding, certain, sample = "utf-8", True, ""
    if kind not in {"csv", "tsv"}:
        return Layout(kind, encoding, certain, sample)
    if options.delimiter is not None:
        separator = detection.checked_separator(options.delimiter, options.spell)
    else:
        text = decoded(head, encoding, final=complete)
        separator = detection.detect_separator(text, kind, complete=complete)
    return Layout(kind, encoding, certain, sample, separator)


def unsure(layout: Layout, spell: Spelling) -> str:
    shown = f": {layout.sample!r}" if layout.sample else ""
    how = spell("encoding")
    repeat = f"Send it again with {how}" if how.endswith("=") else f"Run it again with {how} "
    looks = f"It looks like {layout.encoding}{shown}"
    return f"it is not UTF-8. {looks}. {repeat}{layout.encoding}, or name another encoding."


def refuse_arrays(head: bytes, layout: Layout) -> None:
    """Rejects a JSON file that does not have one object per line.

    Raises:
        BadFile: The file is an array, or an object that spans several lines.

    """
    if layout.format != "jsonl":
        return
    text = decoded(head, layout.encoding, final=False).lstrip()
    first = text.splitlines()[0].strip() if text else ""
    if first == "{" or (first.startswith("[") and "{" in text[:1000].removeprefix("[").lstrip()[:1]):
        kind = "an array" if first.startswith("[") else "an object over several lines"
        raise BadFile(
            f"it is {kind}. Write one JSON object on a line (jq -c '.[]' does that with an array).", 1
        )


def build_fields(columns: dict[str, Any], options: Options) -> dict[str, Any]:
    """Builds a document, as a dictionary, from the values of a row by column name.

    Raises:
        BadRow: The row is no valid document.

    """
    document = options.columns.document(columns)
    if options.html:
        for name in ("title", "text"):
            if isinstance(document.get(name), str):
                document[name] = plain_text(document[name])
    if options.types and isinstance(document["metadata"], dict):
        document["metadata"] = dict(document["metadata"])
        convert(document["metadata"], options.types)
    return document


class _Maker:
    def __init__(self, name: str, layout: Layout, options: Options) -> None:
        self._name, self._layout, self._options = name, layout, options
        self.begun = False  # The column names were read.

    def take(self, line: TextLine) -> Iterator[Row]:
        raise NotImplementedError

    def finish(self) -> Iterator[Row]:
        return iter(())

    def _not_decoded(self, text: str) -> BadRow:
        name = self._layout.encoding_name
        how = self._options.spell("encoding")
        return BadRow(f"it is not {name} (character {text.index(MARK) + 1}). {how} names another encoding")


class _LineMaker(_Maker):
    """Builds a document from each line, which contains JSON or plain text."""

    def take(self, line: TextLine) -> Iterator[Row]:
        if line.text is None:
            why = BadRow(f"the line is longer than {MAX_LINE_BYTES >> 20} MiB")
            yield Row(self._name, line.number, why)
            return
        text = line.text.rstrip("\r\n")
        if not text.strip():
            return
        content: dict[str, Any] | BadRow
        try:
            content = self._parsed(text)
        except BadRow as error:
            content = error
        yield Row(self._name, line.number, content)

    def _parsed(self, text: str) -> dict[str, Any]:
        if MARK in text:
            raise self._not_decoded(text)
        if self._layout.format != "jsonl":
            if "\0" in text:
                raise BadRow("it holds a NUL character (U+0000). Take it out")
            return {"text": plain_text(text) if self._options.html else text, "metadata": {}}
        try:
            value = exact_json.loads(text.encode())
        except exact_json.Inexact as error:
            raise BadRow(str(error)) from error
        except orjson.JSONDecodeError as error:
            raise BadRow(f"it is not valid JSON ({error.msg}, column {error.colno})") from error
        if isinstance(value, list):
            raise BadRow("it is a JSON array. Write one JSON object on a line")
        if not isinstance(value, dict):
            raise BadRow("it is not a JSON object")
        self._options.columns.refuse_unsaid(value)
        return build_fields(value, self._options)


class _FileMaker(_Maker):
    def __init__(self, name: str, layout: Layout, options: Options) -> None:
        super().__init__(name, layout, options)
        self._parts: list[str] = []
        self._size = 0

    def take(self, line: TextLine) -> Iterator[Row]:
        self._size += line.size if line.text is not None else MAX_LINE_BYTES + 1
        if self._size > MAX_LINE_BYTES:
            self._parts.clear()
        elif line.text is not None:
            self._parts.append(line.text)
        return iter(())

    def finish(self) -> Iterator[Row]:
        text = "".join(self._parts)
        if self._size > MAX_LINE_BYTES:
            yield Row(self._name, 1, BadRow(f"a document has at most {MAX_LINE_BYTES >> 20} MiB"))
        elif MARK in text:
            yield Row(self._name, 1, self._not_decoded(text))
        elif self._size:
            text = plain_text(text) if self._options.html else text
            yield Row(self._name, 1, {"id": self._name, "text": text, "metadata": {}})


class _TableMaker(_Maker):
    """Builds a document from each record of a table. The first record contains the names of the columns."""

    def __init__(self, name: str, layout: Layout, options: Options) -> None:
        super().__init__(name, layout, options)
        self._records = Records(layout.separator)
        self._names: list[str] = []

    def take(self, line: TextLine) -> Iterator[Row]:
        return self._rows(self._records.take(line))

    def finish(self) -> Iterator[Row]:
        return self._rows(self._records.finish())

    def _rows(self, records: Iterator[Record]) -> Iterator[Row]:
        return chain.from_iterable(map(self._row, filterfalse(is_blank, records)))

    def _row(self, record: Record) -> Iterator[Row]:
        if not self.begun:
            self._names = parse_header(record, self._layout, self._options)
            self.begun = True
            if self._options.columns.id is None and (hint := _id_hint(self._names, self._options.spell)):
                yield Row(self._name, record.line, None, note=hint)
            return
        content: dict[str, Any] | BadRow
        try:
            content = build_fields(self._fields(record), self._options)
        except BadRow as error:
            content = error
        note = "" if isinstance(content, BadRow) else note_on(record)
        yield Row(self._name, record.line, content, record.last_line, note)

    def _fields(self, record: Record) -> dict[str, Any]:
        cells = record.cells
        if isinstance(cells, BadRow):
            raise cells
        if len(cells) != len(self._names):
            subject = "it has"
            if record.last_line > record.line:
                subject = f"lines {record.line} to {record.last_line} are one row of"
            named = amount(len(self._names), "column")
            raise BadRow(f"{subject} {amount(len(cells), 'cell')}, and the first line names {named}")
        if undecoded := [cell for cell in cells if MARK in cell]:
            raise self._not_decoded(undecoded[0])
        return dict(zip(self._names, cells, strict=True))


def _id_hint(names: list[str], spell: Spelling) -> str:
    nearly = next((name for name in names if name.lower() in IDS), None)
    if nearly is None or any(name in IDS for name in names):
        return ""
    return f"no column is named id, so ids are made from the text. Is it {nearly!r} ({spell('id')})?"


def parse_header(record: Record, layout: Layout, options: Options, *, checked: bool = True) -> list[str]:
    """Returns the names of the columns from the first record, without surrounding white space.

    Args:
        record: The first record.
        layout: Layout of the file.
        options: Options that name columns.
        checked: Whether to check that the names match the options.

    Raises:
        BadFile: The names are invalid, or do not match the options.

    """
    cells = record.cells
    if isinstance(cells, BadRow):
        raise BadFile(f"{cells}. The first line of the file names its columns.", record.line)
    if any(MARK in cell for cell in cells):
        raise BadFile(
            f"the names of the columns are not {layout.encoding_name}. "
            f"{options.spell('encoding')} names another encoding.",
            record.line,
        )
    names = [cell.strip() for cell in cells]
    if not checked:
        return names
    columns = options.columns
    try:
        columns.check(names)
    except BadFile as error:
        if options.delimiter is not None and len(names) == 1:
            tried = detection.detect_separator(cells[0] + "\n", layout.format, complete=True)
            if tried in cells[0]:
                how = options.spell("delimiter")
                raise BadFile(
                    f"it looks as if {tried!r} separates its columns ({how}). {error}", record.line
                ) from error
        raise BadFile(str(error), record.line) from error
    stored = columns.stored(names)
    for name in options.types:
        if name not in stored:
            raise BadFile(
                f"{options.spell('types')} names {name[:80]!r}, which is not stored as metadata. "
                f"Also name it in {options.spell('metadata')}.",
                record.line,
            )
    return names

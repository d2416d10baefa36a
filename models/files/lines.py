"""Splits bytes into lines of text, and groups lines into CSV records. Memory use is bounded.

Quoted cells of a record may contain separators and line breaks (RFC 4180). The size of a record is limited,
so that a quote that is never closed is reported with the numbers of the lines.
"""

import codecs
import csv
import io
import re
from collections.abc import Iterator
from typing import NamedTuple

MAX_LINE_BYTES = 1 << 20
MARK = "\udc80"  # Replaces bytes that cannot be decoded. No decoded text contains it.
_HANDLER = "simile-mark"
_END = re.compile(r"\r\n|\n|\r")
LONG_LINES = 20  # lines from which a record gets a note
_SAID = re.compile(r'^"?sep=(.)"?(?:\r\n|\n|\r)', re.IGNORECASE)
_CLOSED = r'[^"]*+(?:""[^"]*+)*+"'


class BadRow(Exception):
    """Raised if a line does not contain a valid document. The message gives the reason."""


def _marked(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)  # noqa: S101  the handler is used only for decoding
    return MARK, error.end


codecs.register_error(_HANDLER, _marked)


class TextLine(NamedTuple):
    """A line of text with its line end. `text` is None if the line is longer than 1 MiB."""

    number: int
    text: str | None
    size: int  # in bytes of UTF-8


def decoded(content: bytes, encoding: str, *, final: bool) -> str:
    """Decodes bytes without a byte order mark. The character `MARK` replaces invalid bytes."""
    text = codecs.getincrementaldecoder(encoding)(_HANDLER).decode(content, final)
    return text.removeprefix("\ufeff")


class TextLines:
    """Decodes bytes and splits them into lines, which end with LF, CR LF or CR."""

    def __init__(self, encoding: str) -> None:
        self._decoder = codecs.getincrementaldecoder(encoding)(_HANDLER)
        self._number = 0
        self._rest = io.StringIO()  # start of an unfinished line
        self._length = 0
        self._too_long = False
        self._held = ""  # A CR at the end of a piece, because an LF may follow.
        self._at_start = True

    def feed(self, piece: bytes, *, final: bool = False) -> Iterator[TextLine]:
        """Yields the lines that end in `piece`. Set `final` for the last piece of the file."""
        text = self._held + self._decoder.decode(piece, final)
        self._held = ""
        if text and self._at_start:
            self._at_start = False
            text = text.removeprefix("\ufeff")
        if not final and text.endswith("\r"):
            text, self._held = text[:-1], "\r"
        start = 0
        if "\n" in text or "\r" in text:
            for end in _END.finditer(text):
                self._keep(text[start : end.end()])
                start = end.end()
                yield self._line()
        self._keep(text[start:])
        if final and (self._length or self._too_long):
            yield self._line()

    def _keep(self, part: str) -> None:
        if self._too_long or self._length + len(part) > MAX_LINE_BYTES + 2:
            self._too_long = True
            self._forget()
        elif part:
            self._rest.write(part)
            self._length += len(part)

    def _line(self) -> TextLine:
        self._number += 1
        text, too_long = self._rest.getvalue(), self._too_long
        self._too_long = False
        self._forget()
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        if too_long or size - (len(text) - len(text.rstrip("\r\n"))) > MAX_LINE_BYTES:
            return TextLine(self._number, None, size)
        return TextLine(self._number, text, size)

    def _forget(self) -> None:
        if self._length:
            self._rest = io.StringIO()
            self._length = 0


def said_separator(text: str) -> str | None:
    """Returns the separator that Excel's special first line names, such as `sep=;`.

    Returns None for other lines.
    """
    found = _SAID.match(text)
    return found[1] if found else None


class Record(NamedTuple):
    """A row of a table: the cells of one or several lines, or the reason why these lines are invalid."""

    line: int
    last_line: int
    cells: list[str] | BadRow
    lines_alike: int = 0  # number of lines with as many separators as the record


class Records:
    """Groups lines into records. Call `take` with each line, then `finish`."""

    def __init__(self, separator: str) -> None:
        csv.field_size_limit(MAX_LINE_BYTES)
        self._separator = separator
        mark = re.escape(separator)
        # Matches cells that are followed by a separator. The rest is the last cell of the line.
        self._cells = re.compile(rf'(?:(?:"{_CLOSED}|(?!")[^{mark}]*+){mark})*+')
        self._closed = re.compile(_CLOSED)
        self._lines: list[str] = []
        self._size = 0
        self._first = self._last = 0

    def take(self, line: TextLine) -> Iterator[Record]:
        number, text, size = line
        self._last = number
        if not self._lines:
            if number == 1 and text is not None and said_separator(text):
                return
            if text is not None and not text.strip("\r\n"):
                return
            self._first, self._size = number, 0
        self._size += size
        if text is None or self._size > MAX_LINE_BYTES:
            yield self._bad(f"longer than {MAX_LINE_BYTES >> 20} MiB", "Its quote may never end.")
        elif self._ends(text):
            yield self._record([*self._lines, text])
            self._lines = []
        else:
            self._lines.append(text)

    def finish(self) -> Iterator[Record]:
        """Yields an invalid record if the last quote is never closed."""
        if self._lines:
            if self._first == self._last:
                reason = BadRow("its quote never ends")
            else:
                reason = BadRow(f"lines {self._first} to {self._last} are one row, its quote never ends")
            yield Record(self._first, self._last, reason)
            self._lines = []

    def _ends(self, text: str) -> bool:
        if not self._lines and '"' not in text:
            return True
        at = 0
        if self._lines:
            closed = self._closed.match(text)
            if closed is None:
                return False
            at = closed.end()
            if not text.startswith(self._separator, at):
                return True
            at += len(self._separator)
        cells = self._cells.match(text, at)
        assert cells is not None  # noqa: S101  the pattern also matches an empty text
        rest = cells.end()
        return not text.startswith('"', rest) or self._closed.match(text, rest + 1) is not None

    def _record(self, lines: list[str]) -> Record:
        try:
            cells = next(csv.reader(lines, delimiter=self._separator, strict=True))
        except csv.Error as error:
            return self._bad("not valid", f"({error})")
        if any("\0" in line for line in lines):
            return Record(self._first, self._last, BadRow("it holds a NUL character (U+0000). Take it out"))
        alike = 0
        if len(lines) > 1:
            alike = sum(line.count(self._separator) == len(cells) - 1 for line in lines)
        return Record(self._first, self._last, cells, alike)

    def _bad(self, what: str, why: str) -> Record:
        self._lines = []
        if self._first == self._last:
            reason = f"the row is {what}" if what != "not valid" else f"it is not a valid row {why}"
        else:
            reason = f"lines {self._first} to {self._last} are one row, which is {what}. {why}".removesuffix(
                "."
            )
        return Record(self._first, self._last, BadRow(reason))


def parse_separator(mark: str) -> str:
    """Returns the character that a user chose to separate columns: one character, or a name such as `tab`.

    Returns an empty text if the character cannot be a separator.
    """
    found = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|"}.get(mark.lower(), mark)
    return "" if len(found) != 1 or found in '"\r\n\0' or found.isalnum() else found


def is_blank(record: Record) -> bool:
    """Returns whether every cell is empty, as in the rows that Excel writes below a table."""
    return not isinstance(record.cells, BadRow) and not any(map(str.strip, record.cells))


def note_on(record: Record) -> str:
    """Returns a warning if a stray quote may have joined several rows into `record`, otherwise ""."""
    lines = record.last_line - record.line + 1
    if lines < 2 or isinstance(record.cells, BadRow):
        return ""
    swallowed = len(record.cells) > 1 and lines > 2 and record.lines_alike * 2 > lines
    if not swallowed and lines < LONG_LINES:
        return ""
    return (
        f"lines {record.line} to {record.last_line} are one row of {lines} lines. "
        f"If that is a mistake, correct the quote in line {record.line}."
    )

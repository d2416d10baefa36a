"""Splits pieces of bytes into lines of text, in bounded memory and any encoding."""

import codecs
import io
import re
from collections.abc import Iterator
from typing import NamedTuple

from service.files.values import MARK
from service.http.ndjson import MAX_LINE_BYTES

_HANDLER = "simile-mark"
_END = re.compile(r"\r\n|\n|\r")


def _marked(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)  # noqa: S101  the handler is used only for decoding
    return MARK, error.end


codecs.register_error(_HANDLER, _marked)


class TextLine(NamedTuple):
    """A line. `text` includes the line end, and is None if the line is longer than 1 MiB."""

    number: int
    text: str | None
    size: int  # in bytes of UTF-8


def decoded(content: bytes, encoding: str, *, final: bool) -> str:
    """Decodes `content`. `MARK` replaces invalid bytes."""
    text = codecs.getincrementaldecoder(encoding)(_HANDLER).decode(content, final)
    return text.removeprefix("\ufeff")


class TextLines:
    """Splits pieces into lines, which end with LF, CR LF or CR. Call `feed` with each piece."""

    def __init__(self, encoding: str) -> None:
        self._decoder = codecs.getincrementaldecoder(encoding)(_HANDLER)
        self._number = 0
        self._rest = io.StringIO()  # start of an unfinished line
        self._length = 0
        self._too_long = False
        self._held = ""  # A CR at the end of a piece, because an LF may follow.
        self._at_start = True

    def feed(self, piece: bytes, *, final: bool = False) -> Iterator[TextLine]:
        """Yields the lines that end in `piece`. The last piece is `final`."""
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

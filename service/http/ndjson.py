"""Splits a streamed body into lines, in bounded memory."""

from collections.abc import Iterator
from typing import NamedTuple

MAX_LINE_BYTES = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # Some programs start a file with it.


class Line(NamedTuple):
    """A line of the body.

    Attributes:
        number: Counts from 1, empty lines included.
        content: The bytes. None if they exceed MAX_LINE_BYTES.

    """

    number: int
    content: bytes | None


class Lines:
    """Splits pieces into lines. Call `feed` with each piece, then `finish`. Skips empty lines."""

    def __init__(self) -> None:
        self._number = 0
        self._rest = bytearray()  # start of an unfinished line
        self._too_long = False

    def feed(self, piece: bytes) -> Iterator[Line]:
        start = 0
        while (end := piece.find(b"\n", start)) >= 0:
            self._keep(piece[start:end])
            start = end + 1
            yield from self._line()
        self._keep(piece[start:])

    def finish(self) -> Iterator[Line]:
        yield from self._line()

    def _keep(self, part: bytes) -> None:
        if self._too_long or len(self._rest) + len(part) > MAX_LINE_BYTES:
            self._too_long = True
            self._rest.clear()
        else:
            self._rest += part

    def _line(self) -> Iterator[Line]:
        self._number += 1
        content, self._rest = bytes(self._rest), bytearray()
        too_long, self._too_long = self._too_long, False
        if self._number == 1:
            content = content.removeprefix(_BYTE_ORDER_MARK)
        if too_long:
            yield Line(self._number, None)
        elif content and not content.isspace():
            yield Line(self._number, content)

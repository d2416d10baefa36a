"""Lines out of pieces of a body, in bounded memory."""

from collections.abc import Iterator
from typing import NamedTuple

MAX_LINE_BYTES = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # some programs begin a file with it


class Line(NamedTuple):
    """`number` counts from 1, empty lines included; `content` is None when it is longer than it may be."""

    number: int
    content: bytes | None


class Lines:
    """feed() every piece, then finish(): each line that is not empty comes once."""

    def __init__(self) -> None:
        self._number = 0
        self._rest = bytearray()  # of a line whose end has not come
        self._too_long = False

    def feed(self, piece: bytes) -> Iterator[Line]:
        """The lines that end in `piece`."""
        start = 0
        while (end := piece.find(b"\n", start)) >= 0:
            self._keep(piece[start:end])
            start = end + 1
            yield from self._line()
        self._keep(piece[start:])

    def finish(self) -> Iterator[Line]:
        """The last line, where no line feed ended it."""
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

"""The ends of sentences in a text, for whoever cuts one up: passages in service, crops in training."""

from __future__ import annotations

import re
from collections.abc import Iterator

# No mark is repeated here: with a `+` a row of dots took time with the square of its length, and the GIL.
# After a full stop and what closes quotes and brackets, if white space follows; after a full stop of Chinese
# or Japanese; at the end of a line.
BORDER = re.compile(r"[.!?…][\"'”’)\]»]*\s+|[。！？｡][」』”’）]*\s*|\n\s*")  # noqa: RUF001  meant as they are
PIECE = 1 << 16  # characters that are searched in one call


def sentence_ends(text: str) -> Iterator[list[int]]:
    """The places behind each sentence and the white space after it, rising, a piece of the text at a time.

    Found in pieces, because a search holds the interpreter. They end behind a letter or a digit, which no
    border has in it.
    """
    at = 0
    while at < len(text):
        end = min(at + PIECE, len(text))
        most = min(end + PIECE, len(text))
        while end < most and not text[end - 1].isalnum():
            end += 1
        yield [border.end() for border in BORDER.finditer(text, at, end)]
        at = end

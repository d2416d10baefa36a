"""Finds the ends of sentences, for passages of the service and crops of the training."""

from __future__ import annotations

import re
from collections.abc import Iterator

# Sentences end after a full stop, closing quotes and whitespace; after a Chinese or Japanese full stop; and
# at the end of a line. The pattern does not repeat full stops, because rows of dots then took quadratic time.
BORDER = re.compile(r"[.!?…][\"'”’)\]»]*\s+|[。！？｡][」』”’）]*\s*|\n\s*")  # noqa: RUF001  meant as they are
PIECE = 1 << 16  # Characters per search, because a search holds the GIL.


def sentence_ends(text: str) -> Iterator[list[int]]:
    """Yields the positions after each sentence and its whitespace, ascending, in a list per piece of text."""
    at = 0
    while at < len(text):
        end = min(at + PIECE, len(text))
        most = min(end + PIECE, len(text))
        # A piece ends after a letter or digit, which is never inside a border.
        while end < most and not text[end - 1].isalnum():
            end += 1
        yield [border.end() for border in BORDER.finditer(text, at, end)]
        at = end

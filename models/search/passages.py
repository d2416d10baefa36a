"""A text that is longer than the model reads is embedded as several passages, which overlap.

    text      ├──────────────── tokens ────────────────────────────────────┤
    head      ├─── what the model sees of it ───┤                             passage 0, whatever the text
    others                                  ├─ sentence. Sentence. ─┤         passage 1
                                                          ├─ Sentence. … ─┤   passage 2

The head is the vector that the text has without passages, so a search over heads alone is a search without
them. The others begin and end where sentences do, as far as there are any in reach, and share about an eighth
of their tokens with the one before.

Not here: where vectors are kept, how one document is found by its best passage (service/).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.encoder import Encoder
from models.tokens.sentences import sentence_ends

# Shares of what a passage holds. One begins at the last sentence that repeats more than LEAST of it, and at
# most MOST; where no sentence begins there it repeats USUAL, and begins in the middle of one.
MAX_PASSAGES = 1 << 16  # of one text: the index has 16 bits to name one
LEAST_ROOM = 8  # tokens; a prompt that leaves less makes no sense of a text
LEAST, USUAL, MOST = 1 / 16, 1 / 8, 1 / 4
SHORTEST = 1 / 2  # of a passage that ends with a sentence rather than with the last token that fits
SPARE_TOKENS = 2  # a passage cut out of a text may begin with other tokens than it has within the text


class Span(NamedTuple):
    """Characters of a text (Unicode code points), the end not included."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Split:
    """The head of a long text, the passages behind it, and whether they reach its end."""

    head: Span
    others: Sequence[Span]
    complete: bool


def split(
    text: str, encoder: Encoder, prompt: str = "", wanted: Callable[[], bool] = lambda: True
) -> Split | None:
    """The places of the passages of `text`, None when the model sees the whole of it.

    Tokenizes all of it: some hundred milliseconds for a megabyte, so not on the event loop.

    Args:
        text: without the prompt, which goes before each passage.
        encoder: whose tokens count.
        prompt: of documents.
        wanted: asked from time to time; once it is false the answer means nothing.

    """
    tokens = encoder.spans(text, wanted)
    if not wanted():
        return None
    room = encoder.room - len(encoder.spans(prompt))
    if len(tokens) <= room or room < LEAST_ROOM:
        return None
    starts, ends = tokens[:, 0], tokens[:, 1]
    borders = _borders(text, starts)
    head = Span(0, int(ends[room - 1]))
    others: list[Span] = []
    unseen, fits = room, room - SPARE_TOKENS
    while unseen < len(tokens) and len(others) < MAX_PASSAGES - 1:
        begin = _begin(borders, unseen, fits)
        unseen = _end(borders, begin, fits, len(tokens))
        others.append(Span(int(starts[begin]), int(ends[unseen - 1])))
    return Split(head, others, unseen >= len(tokens))


def _borders(text: str, starts: NDArray[np.int64]) -> NDArray[np.intp]:
    """The tokens behind which a sentence ends, rising; `starts` are those of the tokens."""
    found = [np.searchsorted(starts, ends) for ends in sentence_ends(text)]
    rising = np.concatenate([np.empty(0, np.intp), *found])
    return rising[np.diff(rising, prepend=-1) > 0]  # np.unique would hold the interpreter for seconds


def _begin(borders: NDArray[np.intp], unseen: int, fits: int) -> int:
    """The token that a passage begins with, when `unseen` is the first one that no passage has yet."""
    within = borders[(borders >= unseen - int(MOST * fits)) & (borders < unseen - int(LEAST * fits))]
    return int(within[-1]) if len(within) else unseen - max(1, int(USUAL * fits))


def _end(borders: NDArray[np.intp], begin: int, fits: int, count: int) -> int:
    """The token behind the last one of a passage that begins with token `begin`, of `count` in all."""
    last = begin + fits
    if last >= count:
        return count
    within = borders[(borders > begin + int(SHORTEST * fits)) & (borders <= last)]
    return int(within[-1]) if len(within) else last

"""Splits long texts into overlapping passages. Start at `split`.

A text is split if it is longer than half of the tokens that the model reads:

    text      ├──────────────── tokens ────────────────────────────────────┤
    head      ├─── tokens that the model reads ─┤                              passage 0 of every text
    others    ├─ Sentence. Sentence. ─┤    ├─ sentence. Sentence. ─┤            passages 1, 3
                               ├─ Sentence. … ─┤           ├─ Sentence. … ─┤   passages 2, 4

Passages after the head are half as long as the head, because one vector represents a long text less well.
This gains 1.0 to 3.8 points of nDCG@10 in dense search on three English sets (docs/SEARCH.md). A collection
may learn another length. If the learned length is that of the head, the other passages start after the head:

    head      ├─── tokens that the model reads ─┤
    others                                  ├─ sentence. Sentence. ─┤
                                                          ├─ Sentence. … ─┤

The vector of the head is the same as the vector of the unsplit text. The other passages start and end with
sentences if possible, and repeat about an eighth of the passage before. The last passage repeats more,
because a short remainder has too little context. The title precedes each passage, because it often names the
subject.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.encoder import Encoder
from models.manifest import Manifest, SearchDefaults
from models.search.content import Content

MAX_PASSAGES = 1 << 16  # Per text, because the index has 16 bits for the number of a passage.
LEAD = 1 / 4  # Maximum share of the title in a passage after the head. Longer titles are cut.
MIN_ROOM = 8  # Tokens. With less room after the prompt, a text is not split.
# Shares of a passage that repeat the passage before: minimum, default, maximum. A passage starts at the last
# sentence within the limits. Without such a sentence, it repeats the default share.
MIN_SHARE, DEFAULT_SHARE, MAX_SHARE = 1 / 16, 1 / 8, 1 / 4
SHORTEST = 1 / 2  # Minimum share of a passage that ends with a sentence.
SPARE_TOKENS = 2  # A passage by itself may have more tokens than inside the text.
MIN_DEFAULT = 64  # Minimum of the default length in tokens, if the model reads that many.


def learned_tokens(learned: SearchDefaults | None) -> int | None:
    """Returns the number of tokens per passage that a collection learned, or None for the default."""
    return learned.passage_tokens if learned else None


def usual_tokens(room: int) -> int:
    """Returns the default number of tokens per passage: half of `room`, but at least MIN_DEFAULT.

    Args:
        room: Tokens of a text that the model reads.
    """
    return max(MIN_DEFAULT, room // 2)


def passage_tokens(manifest: Manifest, collection: str) -> int:
    """Returns the approximate number of tokens per passage in a collection.

    The number includes prompts and special tokens.
    """
    learned = learned_tokens(manifest.search.get(collection))
    return min(learned or usual_tokens(manifest.max_length), manifest.max_length)


class Span(NamedTuple):
    """Start and end of a passage in the text, in characters (Unicode code points). `end` is exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Split:
    """The passages of a long text."""

    head: Span  # Empty if the title fills the model's limit.
    others: Sequence[Span]
    complete: bool  # True if the passages contain all of title and text.
    lead: str  # Prefix of each of `others`. The prefix of the head is the whole title.


def split(
    content: Content,
    encoder: Encoder,
    prompt: str = "",
    is_needed: Callable[[], bool] = lambda: True,
    length: int | None = None,
) -> Split | None:
    """Splits a text into passages.

    Do not call this on the event loop: it takes some hundred milliseconds per megabyte.

    Args:
        prompt: The prompt of documents, which precedes each passage.
        is_needed: Called repeatedly during the work. If it returns False, the work stops and the result has
            no meaning.
        length: Number of tokens of each passage after the head, with the title; None for the default.

    Returns:
        The passages, or None if one passage is enough or the work was stopped.
    """
    tokens = encoder.spans(content.text, is_needed)
    titled = encoder.spans(content.lead, is_needed) if content.title else tokens[:0]
    if not is_needed():
        return None
    room = encoder.room - len(encoder.spans(prompt))
    size = min(length or usual_tokens(room), room)
    if len(titled) + len(tokens) <= size or room < MIN_ROOM:
        return None
    most = int(LEAD * size)
    lead = content.lead if len(titled) <= most else Content("", content.title[: titled[most - 1, 1]]).lead
    starts, ends = tokens[:, 0], tokens[:, 1]
    borders = _borders(content.text, starts)
    seen = min(max(room - len(titled), 0), len(tokens))
    head = Span(0, int(ends[seen - 1]) if seen else 0)
    unseen, fits = seen if size == room else 0, size - min(len(titled), most) - SPARE_TOKENS
    others: list[Span] = []
    while unseen < len(tokens) and len(others) < MAX_PASSAGES - 1:
        begin = _begin(borders, unseen, fits)
        unseen = _end(borders, begin, fits, len(tokens))
        if unseen == len(tokens):
            begin = _last(borders, begin, len(tokens) - fits)
        others.append(Span(int(starts[begin]), int(ends[unseen - 1])))
    return Split(head, others, unseen >= len(tokens) and len(titled) <= room, lead)


def _borders(text: str, starts: NDArray[np.int64]) -> NDArray[np.intp]:
    """Returns the indices of tokens that start sentences, ascending.

    Args:
        starts: Position of each token in the text, in characters.
    """
    found = [np.searchsorted(starts, ends) for ends in sentence_ends(text)]
    rising = np.concatenate([np.empty(0, np.intp), *found])
    return rising[np.diff(rising, prepend=-1) > 0]  # np.unique would hold the GIL for seconds.


def _begin(borders: NDArray[np.intp], unseen: int, fits: int) -> int:
    """Returns the index of a passage's first token.

    Args:
        borders: Tokens that start sentences.
        unseen: The first token that no earlier passage contains.
        fits: Tokens that a passage can hold.
    """
    within = borders[(borders >= unseen - int(MAX_SHARE * fits)) & (borders < unseen - int(MIN_SHARE * fits))]
    return int(within[-1]) if len(within) else max(0, unseen - max(1, int(DEFAULT_SHARE * fits)))


def _last(borders: NDArray[np.intp], begin: int, earliest: int) -> int:
    """Returns the index of the last passage's first token.

    This is the first start of a sentence from `earliest` to `begin`, or else `earliest`, but at least 0.

    Args:
        borders: Tokens that start sentences.
        begin: The first token that `_begin` chose.
        earliest: The first token from which the rest of the text fits.
    """
    within = borders[(borders >= earliest) & (borders <= begin)]
    return int(within[0]) if len(within) else max(0, earliest)


def _end(borders: NDArray[np.intp], begin: int, fits: int, count: int) -> int:
    """Returns the index of the token after a passage that starts at token `begin`.

    Args:
        borders: Tokens that start sentences.
        fits: Tokens that a passage can hold.
        count: Tokens of the text.
    """
    last = begin + fits
    if last >= count:
        return count
    within = borders[(borders > begin + int(SHORTEST * fits)) & (borders <= last)]
    return int(within[-1]) if len(within) else last


# Sentences end after a full stop, closing quotes and whitespace; after a Chinese or Japanese full stop; and
# at the end of a line. The pattern does not repeat full stops, because rows of dots then took quadratic time.
BORDER = re.compile(r"[.!?…][\"'”’)\]»]*\s+|[。！？｡][」』”’）]*\s*|\n\s*")  # noqa: RUF001  meant as they are
PIECE = 1 << 16  # Characters per search, because a search holds the GIL.


def sentence_ends(text: str) -> Iterator[list[int]]:
    """Yields lists of positions, ascending, one list per piece of the text.

    Each position is the end of a sentence, after the whitespace that follows it.
    """
    at = 0
    while at < len(text):
        end = min(at + PIECE, len(text))
        most = min(end + PIECE, len(text))
        # End the piece after a letter or digit. BORDER matches neither, so no match is cut.
        while end < most and not text[end - 1].isalnum():
            end += 1
        yield [border.end() for border in BORDER.finditer(text, at, end)]
        at = end

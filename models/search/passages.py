"""A text that is longer than half of what the model reads is embedded as several passages, which overlap.

    text      ├──────────────── tokens ────────────────────────────────────┤
    head      ├─── what the model sees of it ───┤                              passage 0, whatever the text
    others    ├─ Sentence. Sentence. ─┤    ├─ sentence. Sentence. ─┤            passages 1, 3
                               ├─ Sentence. … ─┤           ├─ Sentence. … ─┤   passages 2, 4

The others are half as long as the head, because one vector says less of each part of a longer text. With the
default model dense search gains 1.0 to 3.8 points of nDCG@10 by it on three English sets (docs/SEARCH.md). A
collection may have learned another length. Those as long as the head begin behind it:

    head      ├─── what the model sees of it ───┤
    others                                  ├─ sentence. Sentence. ─┤
                                                          ├─ Sentence. … ─┤

The head is the vector that the text has without passages, so a search over heads alone is a search without
them. The others begin and end where sentences do, as far as there are any in reach, and share about an eighth
of their tokens with the one before; the last one shares more, because a short rest says too little of what it
is about. A title goes in front of each passage, because it often names what the
passage only speaks of. Places are those of the text.

Not here: where vectors are kept, how one document is found by its best passage (service/).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.encoder import Encoder
from models.manifest import Manifest, SearchDefaults
from models.search.content import Content
from models.tokens.sentences import sentence_ends

# Shares of what a passage holds. One begins at the last sentence that repeats more than LEAST of it, and at
# most MOST; where no sentence begins there it repeats USUAL, and begins in the middle of one.
MAX_PASSAGES = 1 << 16  # of one text: the index has 16 bits to name one
LEAD = 1 / 4  # that a title may take of a passage behind the head: only so much of a longer one goes there
LEAST_ROOM = 8  # tokens; a prompt that leaves less makes no sense of a text
LEAST, USUAL, MOST = 1 / 16, 1 / 8, 1 / 4
SHORTEST = 1 / 2  # of a passage that ends with a sentence rather than with the last token that fits
SPARE_TOKENS = 2  # a passage cut out of a text may begin with other tokens than it has within the text
LEAST_USUAL = 64  # tokens of a passage where none were learned, if the model reads so many


def learned_tokens(learned: SearchDefaults | None) -> int | None:
    """Tokens of a passage that a collection has learned; None: as many as is usual."""
    return learned.passage_tokens if learned else None


def usual_tokens(room: int) -> int:
    """Tokens of a passage where none were learned: half of the `room` that the model has for a text."""
    return max(LEAST_USUAL, room // 2)


def passage_tokens(manifest: Manifest, collection: str) -> int:
    """Tokens of a passage in that collection, about: prompts and special tokens count as text."""
    learned = learned_tokens(manifest.search.get(collection))
    return min(learned or usual_tokens(manifest.max_length), manifest.max_length)


class Span(NamedTuple):
    """Characters of a text (Unicode code points), the end not included."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Split:
    """The head of a long text, the passages behind it, and whether they show all of title and text.

    lead: goes in front of each of `others`, as the whole title does in front of the head. The head is empty
    where the title alone is longer than the model reads.
    """

    head: Span
    others: Sequence[Span]
    complete: bool
    lead: str


def split(
    content: Content,
    encoder: Encoder,
    prompt: str = "",
    wanted: Callable[[], bool] = lambda: True,
    length: int | None = None,
) -> Split | None:
    """The places of a text's passages, None when all of it behind its title is one.

    Tokenizes all of it: some hundred milliseconds for a megabyte, so not on the event loop.

    Args:
        content: without the prompt, which goes before each passage.
        encoder: whose tokens count.
        prompt: of documents.
        wanted: asked from time to time; once it is false the answer means nothing.
        length: tokens of each passage behind the head, its title included; None: as many as is usual.

    """
    tokens = encoder.spans(content.text, wanted)
    titled = encoder.spans(content.lead, wanted) if content.title else tokens[:0]
    if not wanted():
        return None
    room = encoder.room - len(encoder.spans(prompt))
    size = min(length or usual_tokens(room), room)
    if len(titled) + len(tokens) <= size or room < LEAST_ROOM:
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
    """The tokens behind which a sentence ends, rising; `starts` are those of the tokens."""
    found = [np.searchsorted(starts, ends) for ends in sentence_ends(text)]
    rising = np.concatenate([np.empty(0, np.intp), *found])
    return rising[np.diff(rising, prepend=-1) > 0]  # np.unique would hold the interpreter for seconds


def _begin(borders: NDArray[np.intp], unseen: int, fits: int) -> int:
    """The token that a passage begins with, when `unseen` is the first one that no passage has yet."""
    within = borders[(borders >= unseen - int(MOST * fits)) & (borders < unseen - int(LEAST * fits))]
    return int(within[-1]) if len(within) else max(0, unseen - max(1, int(USUAL * fits)))


def _last(borders: NDArray[np.intp], begin: int, earliest: int) -> int:
    """The token that the last passage begins with: a sentence from which all the rest fits, the first."""
    within = borders[(borders >= earliest) & (borders <= begin)]
    return int(within[0]) if len(within) else max(0, earliest)


def _end(borders: NDArray[np.intp], begin: int, fits: int, count: int) -> int:
    """The token behind the last one of a passage that begins with token `begin`, of `count` in all."""
    last = begin + fits
    if last >= count:
        return count
    within = borders[(borders > begin + int(SHORTEST * fits)) & (borders <= last)]
    return int(within[-1]) if len(within) else last

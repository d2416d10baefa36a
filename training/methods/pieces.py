"""Sentences of texts, and the source of whole texts and their sentences.

A student learns from both, because it must embed documents, queries and lengths between. A title on a line of
its own is also a piece.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from models.search.passages import sentence_ends
from training.methods.sources import Given, Rounds, Rows, RowSource, Source
from training.text.corpus import TEXTS, Corpus, Kind

MIN_BYTES = 24  # about four English words; a shorter piece, such as "Fig.", joins the next. Our choice
WINDOW = 32  # batches among which rows are sorted by length


def sentences(text: str) -> list[str]:
    """Cuts a text after sentences, without losing a character. White space belongs to the following piece."""
    pieces: list[str] = []
    begin = 0
    for end in (end for found in sentence_ends(text) for end in found):
        piece = text[begin:end].rstrip()
        if len(piece.strip().encode()) >= MIN_BYTES:
            pieces.append(piece)
            begin += len(piece)
    rest = text[begin:]
    if pieces and len(rest.strip().encode()) < MIN_BYTES:
        pieces[-1] += rest
    else:
        pieces.append(rest)
    return pieces


def pieces_of(corpus: Corpus) -> Corpus:
    """Returns the corpus in pieces, with the same digest."""
    found = (piece.strip() for text in corpus.texts for piece in (text, *sentences(text)))
    return replace(Corpus.of(found, "the corpus"), digest=corpus.digest)


@dataclass(frozen=True)
class Pieces(RowSource):
    """Whole texts and their sentences. Every second piece gets the query prompt, if the base has one."""

    name: Literal["pieces"] = "pieces"
    kind: ClassVar[Kind] = TEXTS

    def build(self, given: Given) -> Source:
        """`given` has the corpus in pieces already, since their number sets the steps (runs/loop.py)."""
        prompts = (given.prompt, given.search_prompt)
        texts = tuple(prompts[at % 2] + text for at, text in enumerate(given.corpus.texts))
        rows = Rows(given._replace(corpus=replace(given.corpus, texts=texts), prompt=""))
        rows.rounds = LikeLengths(rows.shelf.starts.diff().numpy(), given.batch, given.seed)
        return rows


class LikeLengths(Rounds):
    """Batches of texts of similar length, because attention is padded to the longest text of a batch.

    No loss depends on the other texts of a batch.
    """

    def __init__(self, lengths: NDArray[np.int64], batch: int, seed: int) -> None:
        self._lengths = lengths
        super().__init__(len(lengths), batch, seed)

    def order(self, number: int) -> NDArray[np.int64]:
        order, rng = super().order(number), np.random.default_rng([self.seed, number])
        return np.concatenate(
            [
                self._sorted(order[at : at + WINDOW * self.batch], rng)
                for at in range(0, self.count, WINDOW * self.batch)
            ]
        )

    def _sorted(self, rows: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Returns batches of similar length in a random order; the remainder is the last."""
        rows = rows[np.argsort(self._lengths[rows], kind="stable")]
        whole = len(rows) - len(rows) % self.batch
        batches = rng.permutation(rows[:whole].reshape(-1, self.batch))
        return np.concatenate([batches.ravel(), rows[whole:]])

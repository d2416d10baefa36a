"""Source of short and long texts: each text whole, and each of its sentences.

For a student, which is asked for documents, for queries and for what is between them. A title on a line of
its own is a piece as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from training.methods.crops import sentences
from training.methods.sources import Given, Rounds, Rows, RowSource, Source
from training.text.corpus import TEXTS, Corpus, Kind

WINDOW = 32  # batches that are made of neighbours in the random order


def pieces_of(corpus: Corpus) -> Corpus:
    """The corpus in pieces, under the digest that it has."""
    found = (piece.strip() for text in corpus.texts for piece in (text, *sentences(text)))
    return replace(Corpus.of(found, "the corpus"), digest=corpus.digest)


@dataclass(frozen=True)
class Pieces(RowSource):
    """Texts whole and in sentences; every second one as a query, where the base has a prompt for those."""

    name: Literal["pieces"] = "pieces"
    kind: ClassVar[Kind] = TEXTS

    def build(self, given: Given) -> Source:
        """given: of a corpus in pieces (runs/loop.py), since its number of rows is the run's."""
        prompts = (given.prompt, given.search_prompt)
        texts = tuple(prompts[at % 2] + text for at, text in enumerate(given.corpus.texts))
        rows = Rows(given._replace(corpus=replace(given.corpus, texts=texts), prompt=""))
        rows.rounds = LikeLengths(rows.shelf.starts.diff().numpy(), given.batch, given.seed)
        return rows


class LikeLengths(Rounds):
    """Batches of texts that are about as long, since attention is padded to the longest of a batch.

    Each text is learned from alone, so the company that it keeps changes no loss.
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
        """Batches of like length in a random order; what is left over is the last."""
        rows = rows[np.argsort(self._lengths[rows], kind="stable")]
        whole = len(rows) - len(rows) % self.batch
        batches = rng.permutation(rows[:whole].reshape(-1, self.batch))
        return np.concatenate([batches.ravel(), rows[whole:]])

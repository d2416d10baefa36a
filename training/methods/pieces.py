"""Source of short and long texts: each text whole, and each of its sentences.

For a student, which is asked for documents, for queries and for what is between them. A title on a line of
its own is a piece as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from training.methods.crops import sentences
from training.methods.sources import Given, Rows, Source
from training.text.corpus import TEXTS, Corpus, Kind


def pieces_of(corpus: Corpus) -> Corpus:
    """The corpus in pieces, under the digest that it has."""
    found = (piece.strip() for text in corpus.texts for piece in (text, *sentences(text)))
    return replace(Corpus.of(found, "the corpus"), digest=corpus.digest)


@dataclass(frozen=True)
class Pieces:
    """Texts whole and in sentences; every second one as a query, where the base has a prompt for those."""

    name: Literal["pieces"] = "pieces"
    kind: ClassVar[Kind] = TEXTS
    whole: ClassVar[bool] = False
    searches: ClassVar[bool] = False
    columns: ClassVar[int] = 1

    def build(self, given: Given) -> Source:
        """given: of a corpus in pieces (runs/loop.py), since its number of rows is the run's."""
        prompts = (given.prompt, given.search_prompt)
        texts = tuple(prompts[at % 2] + text for at, text in enumerate(given.corpus.texts))
        return Rows(given._replace(corpus=replace(given.corpus, texts=texts), prompt=""))

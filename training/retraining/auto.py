"""`recipe = "auto"`: look at what there is to learn from, and train what can help.

    judged queries, titles, text, tokens ─▶ Material ─▶ choices ─▶ trained and judged in turn, until one passes
                                                                ─▶ none does: search itself is tuned, and judged

Each choice says why, and what it gained where it was measured (training/RESULTS.md). Where nothing helps, that
is the answer: a model is not replaced so that something was trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from models.publishing.publish import Say
from models.store import Store
from models.tokens.reading import unreadable
from training.errors import NothingToLearn
from training.mining.queries import queries_of
from training.retraining.documents import Document
from training.retraining.gathered import Gathered
from training.retraining.judgements import Judged

AUTO = "auto"
MINUTES = 30.0  # of training for each choice, where train.minutes is not set
# Fewest of each to learn from. Chosen by us: below, a run has no ten batches to see.
LEAST_JUDGED, LEAST_QUERIES = 30, 200
_LOOKED_AT = 500  # documents whose tokens are counted


class Material(NamedTuple):
    """Counts of what may be trained on."""

    documents: int
    judged: int  # queries with a relevant document
    queries: int  # that the text itself gives: titles, headings, first sentences
    unreadable: str  # the reason why the base cannot read the text; empty when it can

    def __str__(self) -> str:
        told = f" The model cannot read the text: {self.unreadable}." if self.unreadable else ""
        return (
            f"There are {self.documents:,} documents, {self.judged:,} judged queries, and {self.queries:,} "
            f"titles, headings and first sentences to learn from.{told}"
        )


class Choice(NamedTuple):
    recipe: str
    why: str
    gained: str  # where it was measured


TRIPLES = Choice(
    "triples",
    "people judged queries, and the model finds documents for them that look right and are not",
    "4.5 points of nDCG@10 on SciFact with 809 judged queries, most of it on answers seen in training",
)
DISTIL = Choice(
    "distil-hybrid",
    "words find what vectors miss, and the titles and first sentences of the text can ask for it",
    "2.3 points of dense nDCG@10 on MLQA and 0.7 on Cranfield, from text alone",
)


def choices(material: Material) -> list[Choice]:
    """The recipes that can help, the most promising first; empty when there is nothing to learn from."""
    if material.unreadable:
        return []
    found = []
    if material.judged >= LEAST_JUDGED:
        found.append(TRIPLES)
    if material.queries >= LEAST_QUERIES:
        found.append(DISTIL)
    return found


def material_of(gathered: Gathered, count: Callable[[str], tuple[int, int, int]]) -> Material:
    """count: words, tokens and unknown tokens of a text, as the base has them."""
    documents = gathered.split.train
    return Material(
        len(documents),
        len(gathered.found.train),
        len(queries_of([(document.title, document.text) for document in documents])),
        _unreadable(documents, count),
    )

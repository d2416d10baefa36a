"""`recipe = "auto"`: look at what there is to learn from, and choose what can help.

    judged queries, titles, text, tokens ─▶ Material ─▶ choices, the most promising first ─▶ trained in turn
                                                                                           ─▶ dev picks one
                                                                                           ─▶ the gate judges

Each choice says why, and what it gained where it was measured: training/RESULTS.md has the runs. Where
nothing can help, that is the answer: a model is not trained so that something was trained.
"""

from __future__ import annotations

from typing import NamedTuple

AUTO = "auto"
# Fewest of each to learn from. Chosen by us: below, a run has fewer than three batches to see.
LEAST_JUDGED, LEAST_QUERIES, LEAST_TEXTS = 30, 200, 200


class Material(NamedTuple):
    """Counts of what may be trained on; `readable` says whether the base model's tokens fit the text."""

    documents: int
    judged: int  # queries with a relevant document
    queries: int  # that the text itself gives: titles, headings, first sentences
    readable: bool

    def __str__(self) -> str:
        script = "" if self.readable else ", in a script or words that the model cannot read"
        return (
            f"{self.documents:,} documents{script}; {self.judged:,} judged queries and {self.queries:,} "
            "titles, headings and first sentences to learn from"
        )


class Choice(NamedTuple):
    recipe: str
    why: str
    gain: str  # what it gained elsewhere


def choices(material: Material) -> list[Choice]:
    """The recipes that can help, the most promising first; empty when there is nothing to learn from."""
    found = []
    if not material.readable and material.documents >= LEAST_TEXTS:
        found.append(ADAPT)
    if material.judged >= LEAST_JUDGED:
        found.append(TRIPLES)
    if material.readable and material.queries >= LEAST_QUERIES:
        found.append(DISTIL)
    return found


ADAPT = Choice(
    "adapt",
    "the model spells the text instead of reading it, so it gets tokens of its own for it",
    "",
)
TRIPLES = Choice(
    "triples",
    "people judged queries, and each finds documents that look right and are not",
    "",
)
DISTIL = Choice(
    "distil-hybrid",
    "words find what vectors miss, and the text's own titles and sentences can ask for it",
    "",
)

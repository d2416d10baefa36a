"""Searches that choose the best step of a run: of text that is neither trained on nor judges.

    split.train ─▶ hash of the id ─┬─▶ set aside: titles, neighbours, judged queries ─▶ a score of each step
                                   └─▶ to train on

For recipes that learn to search; the others are chosen by STS-B (runs/dev.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from training.retraining import searches as own
from training.retraining.documents import Document
from training.retraining.heldout import Split, place
from training.retraining.judgements import Judged
from training.runs.dev import Encoder, Score

SHARE = 0.05  # of the documents, and of the queries, that would be trained on. Chosen by us
CANDIDATES = 1000  # texts among which an answer is looked for; each look encodes them all


class Aside(NamedTuple):
    """The part that is left to train on, and what chooses."""

    documents: Sequence[Document]
    judged: Mapping[str, Sequence[str]]  # ids of relevant documents by query
    withheld: set[str]  # texts that choose, as `own.plain` makes them
    score: Score | None  # mean nDCG@10; None where too few queries could choose


def nothing_aside(split: Split, found: Judged) -> Aside:
    """Everything is trained on."""
    return Aside(split.train, found.train, set(), None)


def set_aside(split: Split, found: Judged) -> Aside:
    """Nothing is set aside where fewer than LEAST_QUERIES searches would come of it."""
    chosen = [document for document in split.train if place(f"choose\0{document.id}") < SHARE]
    ids = {document.id for document in split.train}
    queries = {
        query: there
        for query, of_query in found.train.items()
        if place(f"choose\0{query.casefold()}") < SHARE and (there := [id for id in of_query if id in ids])
    }
    names = {document.id for document in chosen}
    rest = tuple(document for document in split.train if document.id not in names)
    part = Split(rest, tuple(chosen), {})
    made = own.collections(part, queries, CANDIDATES)
    if not made:
        return nothing_aside(split, found)
    if "judged" in made:  # what people said counts more than what text can be made to say
        made = {"judged": made["judged"]}

    def score(encoder: Encoder) -> float:
        scores = own.score(made, encoder.encode_queries, encoder.encode_documents)
        return fmean(figures["ndcg10"] for figures in scores.values())

    judged = {query: of_query for query, of_query in found.train.items() if query not in queries}
    return Aside(rest, judged, own.withheld(part, queries), score)

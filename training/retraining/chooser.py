"""Searches that choose the share of a training that is kept: over documents that neither train nor judge.

    documents to train on ─▶ hash of the id ─▶ to train on
                                           └▶ set aside: a title or first sentence must find its document

The query is cut out of its document, so that its words alone do not find it. Not here: the searches that
judge (searches.py), and the choice (runs/mix.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.evaluation.encoding import Encode
from training.evaluation.modes import find, passages_of
from training.evaluation.words import WordIndex
from training.mining.queries import Query, queries_of
from training.retraining.documents import Document
from training.retraining.heldout import place

SHARE, MOST_QUERIES = 0.1, 200  # of the documents, until there are so many; chosen by us
LEAST_QUERIES = 20  # as of the searches that judge
MOST_TEXTS = 500  # among which a query looks: each of four shares embeds them all
_TOP = 10  # as nDCG@10


class SetAside(NamedTuple):
    train: tuple[Document, ...]
    chooses: tuple[Document, ...]


def set_aside(documents: Sequence[Document]) -> SetAside:
    """Each side in the order that the documents came in."""
    share = min(SHARE, MOST_QUERIES / max(1, len(documents)))
    chooses = {document.id for document in documents if place(f"chooses\0{document.id}") < share}
    return SetAside(
        tuple(document for document in documents if document.id not in chooses),
        tuple(document for document in documents if document.id in chooses),
    )


class Searches:
    """A query of each document that was set aside, among their rests and other documents."""

    def __init__(self, aside: SetAside) -> None:
        of_each: dict[int | None, Query] = {}  # its first one: the title, where it has any
        for query in queries_of([(document.title, document.text) for document in aside.chooses]):
            of_each.setdefault(query.source, query)
        others = sorted(aside.train, key=lambda document: place(f"among\0{document.id}"))
        self.queries = [query.text for query in of_each.values()]
        rests = [query.rest for query in of_each.values()]
        self._texts = [*rests, *(document.text for document in others)][: max(MOST_TEXTS, len(rests))]

    def enough(self) -> bool:
        return len(self.queries) >= LEAST_QUERIES

    def __call__(self, encode_queries: Encode, encode_documents: Encode) -> NDArray[np.float64]:
        """The mean of dense and hybrid nDCG@10 of each query."""
        heads = passages_of(self._texts, lambda text: [text], encode_documents)
        vectors = encode_queries(self.queries)
        with WordIndex(self._texts) as words:
            found = find(self.queries, vectors, heads, words, _TOP)
            return np.array(
                [
                    (_gain(answer, [*each.dense]) + _gain(answer, [*each.hybrid])) / 2
                    for answer, each in enumerate(found)
                ]
            )


def _gain(answer: int, ranked: Sequence[int]) -> float:
    """nDCG@10 of one right answer."""
    return 1 / math.log2(ranked.index(answer) + 2) if answer in ranked else 0.0

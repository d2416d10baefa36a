"""BM25 by the formula of FTS5, for both stores. Start at `compute_scores`.

    Σ idf · f · 2.2 / (f + 1.2 · (0.25 + 0.75 · length / mean length))
    idf = ln((N - n + 0.5) / (n + 0.5)), at least 1e-6; n of the collection's N documents have the term

A posting says how often a document has a term. Every posting of a query is scored, so the best documents are
exact. A million postings take 20 ms. docs/decisions/words.md says why none is skipped. Many postings are
scored in parts, which bounds the memory of a search.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from models.search.terms import Query, Weights, compute_idf
from service.store.scheduling import pause
from service.store.values import TIES, Ranking, Revisions

Integers: TypeAlias = NDArray[np.integer[Any]]
Scored: TypeAlias = tuple[Integers, NDArray[np.float64]]  # Revisions in ascending order, and scores.

TOGETHER = 2_000_000  # Postings that are scored at a time, in 100 MB.
SPACING = 1000  # Each of so many postings is sampled, to find where parts begin.


class Postings(NamedTuple):
    """The documents that have a term, in ascending order of their revisions. Immutable.

    Frequencies count the term in the text. Lengths count all tokens of the text.
    """

    revisions: Integers
    frequencies: Integers
    lengths: Integers

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self)

    def without(self, revisions: Integers) -> "Postings":
        """Returns the postings of other documents than `revisions`, which are few."""
        if not len(revisions) or not len(self.revisions):
            return self
        at = np.searchsorted(self.revisions, revisions.astype(self.revisions.dtype))
        gone = at[self.revisions[np.minimum(at, len(self.revisions) - 1)] == revisions]
        return Postings(*(np.delete(column, gone) for column in self)) if len(gone) else self


class Size(NamedTuple):
    """A collection's numbers of documents and tokens."""

    documents: int
    tokens: int


def compute_scores(
    query: Query, weights: Weights, postings: Mapping[str, Postings], size: Size
) -> tuple[Revisions, NDArray[np.float32]]:
    """Returns the documents that match a query in ascending order, and their scores.

    Args:
        query: The query as typed.
        weights: Weights of groups of terms.
        postings: The postings of all terms of the query and the groups.
        size: Size of the collection.
    """
    idf = {term: compute_idf(size.documents, len(found.revisions)) for term, found in postings.items()}
    typed = [term for term in (*query.terms, *query.beginnings) if (term,) not in weights]
    sums: list[tuple[Revisions, NDArray[np.float32]]] = []
    for part in _split(postings):
        pause()
        scored = {term: _score(found, idf[term], size) for term, found in part.items()}
        parts = [scored[term] for term in typed]
        for group, weight in weights.items():
            parts += _weigh([scored[term] for term in group], weight)
        sums.append(_sum(parts))
    revisions, scores = zip(*sums, strict=True)
    return np.concatenate(revisions), np.concatenate(scores)


def _split(postings: Mapping[str, Postings]) -> Iterator[Mapping[str, Postings]]:
    """Yields the postings of one range of revisions after the other, about TOGETHER at a time."""
    columns = [found.revisions for found in postings.values()]
    if sum(map(len, columns)) <= TOGETHER:
        yield postings
        return
    sampled = np.sort(np.concatenate([revisions[::SPACING] for revisions in columns]))
    step = TOGETHER // SPACING
    borders = sampled[step::step]
    cuts = [[0, *np.searchsorted(revisions, borders).tolist(), len(revisions)] for revisions in columns]
    for ends in zip(*map(pairwise, cuts), strict=True):
        yield {
            term: Postings(*(column[slice(*inside)] for column in found))
            for (term, found), inside in zip(postings.items(), ends, strict=True)
        }


def _score(postings: Postings, idf: float, size: Size) -> Scored:
    frequencies = postings.frequencies.astype(np.float64)
    saturation = postings.lengths * (1.2 * 0.75 * size.documents / max(size.tokens, 1))
    saturation += 1.2 * 0.25
    saturation += frequencies
    frequencies *= 2.2 * idf
    frequencies /= saturation
    return postings.revisions, frequencies


def _weigh(terms: Sequence[Scored], weight: float) -> list[Scored]:
    """Returns the weighted scores of the documents that have all terms of a group."""
    if len(terms) > 1:
        every = reduce(lambda one, other: one[is_in(one, other)], [revisions for revisions, _ in terms])
        insides = [(is_in(revisions, every), revisions, scores) for revisions, scores in terms]
        terms = [(revisions[inside], scores[inside]) for inside, revisions, scores in insides]
    return [(revisions, weight * scores) for revisions, scores in terms]


def _sum(parts: Sequence[Scored]) -> tuple[Revisions, NDArray[np.float32]]:
    """Sums the scores of each document, in the order of `parts`."""
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.float32)
    revisions = np.concatenate([revisions for revisions, _ in parts])
    scores = np.concatenate([scores for _, scores in parts])
    if len(parts) > 1:
        order = np.argsort(
            revisions, kind="stable"
        )  # Merges the sorted parts. Other kinds take ten times as long.
        revisions, scores = revisions[order], scores[order]
        starts = np.flatnonzero(np.diff(revisions, prepend=-1))
        if len(starts):
            revisions, scores = revisions[starts], np.add.reduceat(scores, starts)
    return revisions.astype(np.int64), scores.astype(np.float32)


def select_best(revisions: Revisions, scores: NDArray[np.float32], depth: int) -> Ranking:
    """Returns the revisions with the `depth` highest scores, and up to TIES that tie with the last one.

    Equal scores are in order of revision.
    """
    if len(scores) > depth:
        least = np.partition(scores, -depth)[-depth]
        kept = scores >= least
        revisions, scores = revisions[kept], scores[kept]
    order = np.lexsort((revisions, -scores))[: depth + TIES]
    return revisions[order], scores[order]


def is_in(revisions: Integers, others: Integers) -> NDArray[np.bool_]:
    """Returns which of `revisions` are among `others`. Both are in ascending order."""
    if not len(others):
        return np.zeros(len(revisions), np.bool_)
    at = np.searchsorted(others, revisions.astype(others.dtype))
    found: NDArray[np.bool_] = others[np.minimum(at, len(others) - 1)] == revisions
    return found

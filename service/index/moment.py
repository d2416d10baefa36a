"""Searches an index in one state of the store, with a filter. Start reading at `IndexMoment.search`.

If many documents match the filter, the search finds the nearest of all documents and then applies the filter:

    a lookup finds few matches ────────────▶ collect all matches ─▶ search only these
    else test a sample ─▶ few match ───────▶ the same
                      └─▶ many match ──▶ search more of all documents ─▶ keep the matches
                                         if these are too few: as above
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from service.index.index import Index
from service.index.view import Hits, View, cut
from service.store.values import Revisions, get_revisions

SMALL = 2000  # In smaller collections the filter is applied to all documents.
SAMPLE = 64  # documents in the sample
MORE = 3  # Factor for the search depth, because matches are not spread evenly around a query.
DEEPEST = 1000  # Filtering 1,000 documents takes 5 ms.


class Filtered(Protocol):
    """Interface of `FilterMatches`: the documents that match a filter, in a snapshot of the store."""

    @property
    def all(self) -> Revisions: ...
    def is_narrow(self, most: int) -> bool: ...
    def among(self, revisions: Revisions) -> Revisions: ...


@dataclass(frozen=True, slots=True)
class IndexMoment:
    """An index, and the view of the index at the start of a transaction."""

    index: Index
    view: View
    is_split: bool  # Documents may have several rows.

    def search(
        self, vectors: NDArray[np.float32], depth: int, allowed: Filtered | None, *, heads_only: bool
    ) -> Iterator[Hits]:
        """Yields the hits of each vector: the scores of the best documents, best first, and their best rows.

        Args:
            vectors: Query vectors.
            depth: Number of documents.
            allowed: Documents that match a filter; None for all.
            heads_only: Whether to compare only the first passage of each document.
        """
        if allowed is None:
            return iter(self.index.search(vectors, depth, None, self.view, heads_only=heads_only))
        found: list[Hits | None] = [None] * len(vectors)
        if (width := self._width(depth, allowed)) is not None:
            wide = self.index.search(vectors, width, None, self.view, heads_only=heads_only)
            found = _matching(wide, depth, allowed)
        rest = [at for at, hits in enumerate(found) if hits is None]
        if rest:
            again = self.index.search(vectors[rest], depth, allowed.all, self.view, heads_only=heads_only)
            for at, hits in zip(rest, again, strict=True):
                found[at] = hits
        return (hits for hits in found if hits is not None)

    def _width(self, depth: int, allowed: Filtered) -> int | None:
        """Returns how many nearest documents to search so that probably `depth` of them match the filter.

        Returns None if the collection is small, or if too few documents match.
        """
        documents, least = self.view.documents, MORE * depth / DEEPEST  # `least`: share that must match
        if documents < SMALL or least > 1 or allowed.is_narrow(int(least * documents)):
            return None
        sample = np.unique(get_revisions(self.view.sample(SAMPLE)))
        share = len(allowed.among(sample)) / max(1, len(sample))
        return math.ceil(MORE * depth / share) if share >= least else None


def _matching(found: Sequence[Hits], depth: int, allowed: Filtered) -> list[Hits | None]:
    """Returns the matching hits of each query, as `Index.search` would return them.

    The entry of a query with too few matching hits is None.
    """
    revisions = [get_revisions(names) for _, names in found]
    matching = allowed.among(np.unique(np.concatenate(revisions)))
    answers: list[Hits | None] = []
    for (scores, names), each in zip(found, revisions, strict=True):
        inside = np.isin(each, matching)
        kept = scores[inside]
        # Documents that tie with the last hit may be missing from `found`.
        is_complete = len(kept) >= depth and kept[depth - 1] > scores[-1]
        answers.append(cut(kept, names[inside], depth) if is_complete else None)
    return answers

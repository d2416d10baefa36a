"""Vectors at one moment of the store: what a search asks for those that are nearest.

A filter that many documents pass is tried on the nearest of all, which takes a few milliseconds:

    a lookup finds few ─────────────────────────▶ all that pass ─▶ the nearest of these
    else a sample is tried ─▶ too few pass ─────▶ the same
                          └─▶ many pass ────▶ the nearest of all, more than needed ─▶ those of them that pass
                                              where these are too few: the same
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from service.index.index import Index
from service.index.view import Hits, View, cut
from service.store.values import Revisions, revisions_of

SMALL = 2000  # documents, of which a filter is applied to all
SAMPLE = 64  # documents that are tried
MORE = 3  # times as many as are needed, for what passes is not spread evenly around a query
DEEPEST = 1000  # to try so many takes 5 ms


class Filtered(Protocol):
    """Documents that pass a filter, as a snapshot of the store finds them."""

    @property
    def all(self) -> Revisions: ...
    def is_narrow(self, most: int) -> bool: ...
    def among(self, revisions: Revisions) -> Revisions: ...


@dataclass(frozen=True, slots=True)
class IndexMoment:
    """An index, and what it was when a transaction began."""

    index: Index
    view: View
    is_split: bool  # a document may have several rows

    def search(
        self, vectors: NDArray[np.float32], depth: int, allowed: Filtered | None, *, heads_only: bool
    ) -> Iterator[Hits]:
        """For each vector the best documents: scores, best first, and their nearest rows."""
        if allowed is None:
            return iter(self.index.search(vectors, depth, None, self.view, heads_only=heads_only))
        found: list[Hits | None] = [None] * len(vectors)
        if (width := self._width(depth, allowed)) is not None:
            wide = self.index.search(vectors, width, None, self.view, heads_only=heads_only)
            found = _passing(wide, depth, allowed)
        rest = [at for at, hits in enumerate(found) if hits is None]
        if rest:
            again = self.index.search(vectors[rest], depth, allowed.all, self.view, heads_only=heads_only)
            for at, hits in zip(rest, again, strict=True):
                found[at] = hits
        return (hits for hits in found if hits is not None)

    def _width(self, depth: int, allowed: Filtered) -> int | None:
        """The number of all to look for, so that `depth` of them pass; None when too few would."""
        documents, least = self.view.documents, MORE * depth / DEEPEST  # the share that has to pass
        if documents < SMALL or least > 1 or allowed.is_narrow(int(least * documents)):
            return None
        sample = np.unique(revisions_of(self.view.sample(SAMPLE)))
        share = len(allowed.among(sample)) / max(1, len(sample))
        return math.ceil(MORE * depth / share) if share >= least else None


def _passing(found: Sequence[Hits], depth: int, allowed: Filtered) -> list[Hits | None]:
    """Each query's hits that pass, as `Index.search` would answer; None where they are too few."""
    revisions = [revisions_of(names) for _, names in found]
    passing = allowed.among(np.unique(np.concatenate(revisions)))
    answers: list[Hits | None] = []
    for (scores, names), each in zip(found, revisions, strict=True):
        inside = np.isin(each, passing)
        kept = scores[inside]
        # Of what ties with the last one of all, some may be missing.
        if len(kept) >= depth and kept[depth - 1] > scores[-1]:
            answers.append(cut(kept, names[inside], depth))
        else:
            answers.append(None)
    return answers

"""Few labelled queries judge twice: each half judges a model that was trained without it.

    half A ─▶ train ─▶ model 1 ─▶ asked half B ─┐
    half B ─▶ train ─▶ model 2 ─▶ asked half A ─┴▶ one figure for each query ─▶ gate
    both   ─▶ train ─▶ the candidate: guarded by the other searches, published if the halves gained

So all of them judge and all of them train, for three trainings instead of one. The halves are the sides of
sides.py: no query has an answer that its model was trained on. The candidate itself has seen them all, so
they never judge again once it is active.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from training.evaluation.retrieval import Collection
from training.retraining.gate.verdict import EACH, GROUPS, HITS, JUDGED, KEYS
from training.text.corpus import Corpus

CROSSFIT_GROUPS = 50  # groups of judged queries held out; with more, one half shows enough. Chosen by us
_LISTS = (EACH, HITS, GROUPS, KEYS)


class Fold(NamedTuple):
    corpus: Corpus  # of one half
    searches: Mapping[str, Collection]  # the judged queries of the other
    evidence: Mapping[str, Any]  # as searches.evidence


def pooled(halves: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of both halves as those of one search, each query counted once."""
    weights = [half.get("queries", len(half[EACH])) for half in halves]
    found: dict[str, Any] = {}
    for key, value in halves[0].items():
        values = [half[key] for half in halves]
        if isinstance(value, Mapping):
            found[key] = pooled(values)
        elif key in _LISTS:
            found[key] = [each for of_half in values for each in of_half]
        elif key in {"queries", "undefined"}:
            found[key] = sum(values)
        elif key in {"documents", "empty"}:
            found[key] = max(values)
        else:
            found[key] = fmean(values, weights)
    return found


def queried(folds: Sequence[Fold]) -> dict[str, Collection]:
    """The judged queries of all folds, in their order, as one search."""
    return {JUDGED: merged([fold.searches[JUDGED] for fold in folds])} if folds else {}


def merged(searches: Sequence[Collection]) -> Collection:
    """The documents and the queries of all `searches` as those of one, in their order."""
    return Collection(
        {id: content for one in searches for id, content in one.documents.items()},
        {name: query for one in searches for name, query in one.queries.items()},
        {name: ids for one in searches for name, ids in one.relevant.items()},
        0,
    )

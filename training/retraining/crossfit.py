"""Cross-fitting: if judged queries are few, each half judges a model that was trained on the other half.

    half A ─▶ train ─▶ model 1 ─▶ scored on half B ─┐
    half B ─▶ train ─▶ model 2 ─▶ scored on half A ─┴▶ one score per query ─▶ gate
    both   ─▶ train ─▶ the candidate, published if the halves show a gain and other searches do not get worse

So all judged queries are used for both training and judging, at the cost of three trainings instead of one.
The halves are parts from sides.py, so no model is trained on an answer of a query that judges it. The
candidate is trained on all judged queries. They never judge again after the candidate becomes active.
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
    """Combines the scores of both halves as if they were one search."""
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
    """Combines the judged queries of all folds, in order, into one search."""
    return {JUDGED: merged([fold.searches[JUDGED] for fold in folds])} if folds else {}


def merged(searches: Sequence[Collection]) -> Collection:
    """Combines the documents and the queries of several collections, in order, into one collection."""
    return Collection(
        {id: content for one in searches for id, content in one.documents.items()},
        {name: query for one in searches for name, query in one.queries.items()},
        {name: ids for one in searches for name, ids in one.relevant.items()},
        0,
    )

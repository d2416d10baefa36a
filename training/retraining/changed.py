"""The queries that a candidate changed most: what it gained, what it lost, and both answers, to look at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training.evaluation.retrieval import Collection
from training.retraining.gate.gains import HYBRID, deciding, each_of
from training.retraining.gate.verdict import HITS

MOST = 10  # queries to either side
_HITS, _LETTERS = 3, 120  # of an answer: documents, and characters of each


def changed(
    searches: Mapping[str, Collection], before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, list[dict[str, Any]]]:
    """`gained` and `lost`: the largest changes first, of the searches that decide; both empty without any.

    before, after: as searches.score gives them. The answers are those of hybrid search.
    """
    found = [
        (now - was, name, at)
        for name in deciding(before)
        if name in after and name in searches
        for at, (was, now) in enumerate(zip(each_of(before[name]), each_of(after[name]), strict=True))
    ]
    found.sort(key=lambda change: change[0])

    def shown(difference: float, name: str, at: int) -> dict[str, Any]:
        asked = searches[name]
        query = list(asked.queries)[at]
        return {
            "search": name,
            "query": _short(asked.queries[query]),
            "difference": difference,
            "relevant": [_id(id) for id in asked.relevant[query]],
            "active": _answer(asked, before[name], at),
            "candidate": _answer(asked, after[name], at),
        }

    return {
        "gained": [shown(*change) for change in reversed(found[-MOST:]) if change[0] > 0],
        "lost": [shown(*change) for change in found[:MOST] if change[0] < 0],
    }


def _answer(asked: Collection, figures: Mapping[str, Any], at: int) -> list[dict[str, str]]:
    hits = figures.get(HYBRID, figures)[HITS][at][:_HITS]
    return [{"id": _id(id), "text": _short(asked.documents[id].whole)} for id in hits]


def _id(name: str) -> str:
    """A document's own id: a part of it is named behind a zero."""
    return name.partition("\0")[0]


def _short(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= _LETTERS else f"{one_line[: _LETTERS - 1]}…"

"""Find the queries whose results a candidate changed most, with the hits of both versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from training.evaluation.retrieval import Collection
from training.retraining.gate.gains import deciding
from training.retraining.gate.verdict import EACH, HITS, JUDGED, NAMES

MAX_CHANGED = 10  # queries to either side
MAX_ANSWERS = 1000  # queries: about 2 MB
_HITS, _ALL_HITS = 3, 10  # documents of an answer
_LETTERS = 120  # of each of them, and of a query


class _Change(NamedTuple):
    difference: float
    name: str  # of the search
    at: int  # the position of the query


def changed(
    searches: Mapping[str, Collection], before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, list[dict[str, Any]]]:
    """Returns the queries that gained and lost most, under the keys `gained` and `lost`.

    Args:
        searches: The collections that were searched.
        before: Scores of the active version, from searches.score.
        after: Scores of the candidate, from searches.score.

    Returns:
        Queries of the searches that decide, largest change first, with the first hits.

    """
    found = sorted(_changes(searches, before, after))
    best = [change for change in reversed(found[-MAX_CHANGED:]) if change.difference > 0]
    worst = [change for change in found[:MAX_CHANGED] if change.difference < 0]
    return {
        "gained": [_shown(change, searches, before, after, _HITS) for change in best],
        "lost": [_shown(change, searches, before, after, _HITS) for change in worst],
    }


def answers(
    searches: Mapping[str, Collection], before: Mapping[str, Any], after: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Returns all queries that decide, with the first ten hits of both versions.

    Of more than MAX_ANSWERS queries, only those with the largest changes are returned.
    """
    found = sorted(_changes(searches, before, after), key=lambda change: -abs(change.difference))
    return [_shown(change, searches, before, after, _ALL_HITS) for change in found[:MAX_ANSWERS]]


def _changes(
    searches: Mapping[str, Collection], before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[_Change]:
    for name in deciding(before):
        if name in after:
            for at, (was, now) in enumerate(zip(before[name][EACH], after[name][EACH], strict=True)):
                yield _Change(now - was, name, at)


def _shown(
    change: _Change,
    searches: Mapping[str, Collection],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    hits: int,
) -> dict[str, Any]:
    difference, name, at = change
    queried = searches.get(name) or searches[JUDGED]
    query = before[name][NAMES][at]
    return {
        "search": name,
        "query": _short(queried.queries[query]),
        "difference": difference,
        "relevant": [_id(id) for id in queried.relevant[query]],
        "active": _answer(queried, before[name], at, hits),
        "candidate": _answer(queried, after[name], at, hits),
    }


def _answer(queried: Collection, figures: Mapping[str, Any], at: int, number: int) -> list[dict[str, str]]:
    hits = figures[HITS][at][:number]
    return [{"id": _id(id), "text": _short(queried.documents[id].whole)} for id in hits]


def _id(name: str) -> str:
    """Returns the id of a document, given the name of the document or of a part of it."""
    return name.partition("\0")[0]


def _short(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= _LETTERS else f"{one_line[: _LETTERS - 1]}…"

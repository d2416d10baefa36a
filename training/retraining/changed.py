"""Find the queries whose results a candidate changed most, with the hits of both sides.

`changed` compares two versions, and `reordered` compares rankings with the hybrid order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from training.evaluation.retrieval import Collection
from training.ranking.cross_validation import Comparison
from training.retraining.gate.gains import deciding, list_each
from training.retraining.gate.verdict import HITS, HYBRID

MAX_CHANGED = 10  # queries to either side
MAX_ANSWERS = 1000  # queries: about 2 MB
_HITS, _ALL_HITS = 3, 10  # documents of an answer
_LETTERS = 120  # of each of them, and of a query


class _Change(NamedTuple):
    difference: float
    name: str  # of the search
    at: int  # the query's place in it


def changed(
    searches: Mapping[str, Collection], before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, list[dict[str, Any]]]:
    """Returns the queries that gained and lost most, under the keys `gained` and `lost`.

    Args:
        searches: The collections that were searched.
        before: Scores of the active version, from searches.score.
        after: Scores of the candidate, from searches.score.

    Returns:
        Queries of the searches that decide, largest change first, with the hits of hybrid search.

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

    If there are very many queries, only those with the largest changes are returned.
    """
    found = sorted(_changes(searches, before, after), key=lambda change: -abs(change.difference))
    return [_shown(change, searches, before, after, _ALL_HITS) for change in found[:MAX_ANSWERS]]


def _changes(
    searches: Mapping[str, Collection], before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[_Change]:
    for name in deciding(before):
        if name in after and name in searches:
            for at, (was, now) in enumerate(
                zip(list_each(before[name]), list_each(after[name]), strict=True)
            ):
                yield _Change(now - was, name, at)


def _shown(
    change: _Change,
    searches: Mapping[str, Collection],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    hits: int,
) -> dict[str, Any]:
    difference, name, at = change
    queried = searches[name]
    query = list(queried.queries)[at]
    orders = [each.get(HYBRID, each)[HITS][at][:_ALL_HITS] for each in (before[name], after[name])]
    row = _row(name, queried.queries[query], difference, queried.relevant[query], orders, hits)
    for hit in (*row["active"], *row["candidate"]):
        hit["text"] = _short(queried.documents[hit["id"]].whole)
        hit["id"] = _id(hit["id"])
    return row


def reordered(
    compared: Mapping[str, Comparison],
    fetch: Callable[[str, Sequence[str]], Mapping[str, str]],
) -> dict[str, Any]:
    """Returns the judged queries that rankings moved most, in the form of `changed`.

    If nDCG@10 is the same, the rank of the first relevant hit counts. So rows exist for moves below the tenth
    hit, too.

    Args:
        compared: The comparison of the ranking of each collection with the hybrid order.
        fetch: Returns the texts of documents by id, given a collection and ids.
    """
    moves = sorted(
        (float(after - before), _reciprocal(ranks[1]) - _reciprocal(ranks[0]), name, at)
        for name, found in compared.items()
        for at, (before, after, ranks) in enumerate(
            zip(found.before, found.after, found.ranks.tolist(), strict=True)
        )
    )
    best = [move for move in reversed(moves[-MAX_CHANGED:]) if move[:2] > (0, 0)]
    worst = [move for move in moves[:MAX_CHANGED] if move[:2] < (0, 0)]
    rows = {word: [*_moved(compared, some)] for word, some in (("gained", best), ("lost", worst))}
    for name in compared:
        found = [row for some in rows.values() for row in some if row["search"] == name]
        hits = [hit for row in found for hit in (*row["active"], *row["candidate"])]
        texts = fetch(name, sorted({hit["id"] for hit in hits}))
        for hit in hits:
            hit["text"] = _short(texts.get(hit["id"], ""))
    return {**rows, "sides": ["hybrid order", "ranking"]}


def _moved(
    compared: Mapping[str, Comparison], moves: Iterable[tuple[float, float, str, int]]
) -> Iterator[dict[str, Any]]:
    for difference, _, name, at in moves:
        example, order = compared[name].examples[at], compared[name].orders[at]
        orders = [example.ids, [example.ids[place] for place in order]]
        yield _row(name, example.query, difference, example.relevant, orders, _HITS)


def _reciprocal(rank: int) -> float:
    return 1 / rank if rank else 0.0


def _row(
    search: str,
    query: str,
    difference: float,
    relevant: Mapping[str, float],
    orders: Sequence[Sequence[str]],
    number: int,
) -> dict[str, Any]:
    """Returns a query with the first `number` hits of both orders, and the first relevant hit below them."""
    ranks = [next((rank for rank, id in enumerate(ids, 1) if id in relevant), None) for ids in orders]
    active, candidate = (
        [
            {"id": id, "rank": rank, "text": ""}
            for rank, id in enumerate(ids, 1)
            if rank <= number or rank == first
        ]
        for ids, first in zip(orders, ranks, strict=True)
    )
    return {
        "search": search,
        "query": _short(query),
        "difference": difference,
        "ranks": ranks,  # Of the first relevant hit. None: it is not among the hits.
        "relevant": [_id(id) for id in relevant],
        "active": active,
        "candidate": candidate,
    }


def _id(name: str) -> str:
    """Returns the id of a document, given the name of the document or of a part of it."""
    return name.partition("\0")[0]


def _short(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= _LETTERS else f"{one_line[: _LETTERS - 1]}…"

"""Find the queries whose results a candidate changed most, with the hits before and after.

`find_answers` compares two versions, and `reordered` compares rankings with the hybrid order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from training.evaluation.retrieval import Collection
from training.ranking.cross_validation import Comparison
from training.retraining.gate.gains import deciding
from training.retraining.gate.verdict import EACH, HITS, JUDGED, NAMES
from training.retraining.grouping import group

MAX_CHANGED = 10  # maximum number of queries that gained, and of queries that lost
MAX_ANSWERS = 1000  # maximum queries that a version stores: about 2 MB
_SIDES = ("active", "candidate")
_HITS = 3  # hits that a row has, in addition to the first relevant hit
_LETTERS = 120  # maximum characters of a hit, and of a query

Answer = dict[str, Any]


def find_answers(
    searches: Mapping[str, Collection], before: Mapping[str, Any], after: Mapping[str, Any]
) -> list[Answer]:
    """Returns the queries on which the gate decides, with the first ten hits of both versions.

    The query with the largest change comes first.

    Args:
        searches: The collections that were searched.
        before: The part `own` of the active version's scores, from compute_scores.
        after: The same part of the candidate's scores.
    """
    found = []
    for name in deciding(before):
        searched = searches.get(name) or searches[JUDGED]
        columns = (before[name][EACH], after[name][EACH], before[name][HITS], after[name][HITS])
        for query, was, now, *orders in zip(before[name][NAMES], *columns, strict=True):
            row = _build(name, searched.queries[query], now - was, searched.relevant[query], orders)
            _add_texts([row], {id: searched.documents[id].whole for ids in orders for id in ids})
            found.append(row)
    return sorted(found, key=lambda row: -abs(row["difference"]))


def find_changed(answers: Iterable[Answer]) -> dict[str, Any]:
    """Returns the queries that gained and lost most, under the keys `gained` and `lost`.

    If nDCG@10 is the same, the rank of the first relevant hit counts. So a query may also have a row if its
    relevant hits move only below the tenth place. For both orders, a row has the first three hits and the
    first relevant hit.
    """
    moves = sorted(answers, key=_measure)
    gained = [row for row in reversed(moves[-MAX_CHANGED:]) if _measure(row) > (0, 0)]
    lost = [row for row in moves[:MAX_CHANGED] if _measure(row) < (0, 0)]
    return {"gained": [*map(_cut, gained)], "lost": [*map(_cut, lost)]}


def reordered(
    compared: Mapping[str, Comparison],
    fetch: Callable[[str, Sequence[str]], Mapping[str, str]],
) -> dict[str, Any]:
    """Returns the judged queries whose hits the rankings changed most, in the form of `find_changed`.

    The key `sides` has the names of the two orders.

    Args:
        compared: By collection, the comparison of its ranking with the hybrid order.
        fetch: Returns the texts of documents by id, given a collection and ids.
    """
    found = find_changed(
        _build(name, each.query, gain, each.relevant, [each.ids, hits])
        for name, row in compared.items()
        for each, gain, hits in zip(row.examples, (row.after - row.before).tolist(), row.hits, strict=True)
    )
    for name, rows in group((row["search"], row) for some in found.values() for row in some).items():
        ids = {hit["id"] for row in rows for side in _SIDES for hit in row[side]}
        _add_texts(rows, fetch(name, sorted(ids)))
    return {**found, "sides": ["hybrid order", "ranking"]}


def _build(
    search: str,
    query: str,
    difference: float,
    relevant: Mapping[str, float],
    orders: Sequence[Sequence[str]],
) -> Answer:
    """Returns a query with its hits in both orders, without texts."""
    return {
        "search": search,
        "query": _short(query),
        "difference": difference,
        # Rank of the first relevant hit in each order, or None without a relevant hit.
        "ranks": [next((rank for rank, id in enumerate(ids, 1) if id in relevant), None) for ids in orders],
        "relevant": [*relevant],
        **{
            side: [{"id": id, "rank": rank, "text": ""} for rank, id in enumerate(ids, 1)]
            for side, ids in zip(_SIDES, orders, strict=True)
        },
    }


def _measure(row: Answer) -> tuple[float, float]:
    """Returns the change of nDCG@10, and the change of the reciprocal rank of the first relevant hit."""
    before, after = (1 / rank if rank else 0.0 for rank in row["ranks"])
    return row["difference"], after - before


def _cut(row: Answer) -> Answer:
    kept = {
        side: [hit for hit in row[side] if hit["rank"] <= _HITS or hit["rank"] == first]
        for side, first in zip(_SIDES, row["ranks"], strict=True)
    }
    return row | kept


def _add_texts(rows: Iterable[Answer], texts: Mapping[str, str]) -> None:
    """Adds the texts of documents, given by id."""
    for hit in (hit for row in rows for side in _SIDES for hit in row[side]):
        hit["text"] = _short(texts.get(hit["id"], ""))


def _short(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= _LETTERS else f"{one_line[: _LETTERS - 1]}…"

"""Find the queries whose results a candidate changed most, with the hits of both versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from training.evaluation.retrieval import Collection
from training.retraining.gate.gains import deciding
from training.retraining.gate.verdict import EACH, HITS, JUDGED, NAMES

MAX_CHANGED = 10  # queries to either side
MAX_ANSWERS = 1000  # queries: about 2 MB
_HITS = 3  # of a query that gained or lost most
_LETTERS = 120  # of a hit and of a query

Answer = dict[str, Any]


def find_answers(
    searches: Mapping[str, Collection], before: Mapping[str, Any], after: Mapping[str, Any]
) -> list[Answer]:
    """Returns the queries that decide with the first ten hits of both versions, the largest change first.

    Args:
        searches: The collections that were searched.
        before: Scores of the active version, from compute_scores.
        after: Scores of the candidate.
    """
    found = []
    for name in deciding(before):
        searched = searches.get(name) or searches[JUDGED]
        if name not in after:
            continue
        for at, query in enumerate(before[name][NAMES]):
            difference = after[name][EACH][at] - before[name][EACH][at]
            lists = before[name][HITS][at], after[name][HITS][at]
            found.append(_build_answer(name, searched, query, difference, lists))
    return sorted(found, key=lambda each: -abs(each["difference"]))[:MAX_ANSWERS]


def find_changed(answers: Sequence[Answer]) -> dict[str, list[Answer]]:
    """Returns the queries that gained and lost most, under the keys `gained` and `lost`.

    They have the first hits, and the first relevant hit below them.
    """
    cut = [
        each
        | {
            side: [hit for hit in each[side] if hit["rank"] <= _HITS or hit["rank"] == rank]
            for side, rank in zip(("active", "candidate"), each["ranks"], strict=True)
        }
        for each in answers
    ]
    return {
        "gained": [each for each in cut if each["difference"] > 0][:MAX_CHANGED],
        "lost": [each for each in cut if each["difference"] < 0][:MAX_CHANGED],
    }


def _build_answer(
    name: str, searched: Collection, query: str, difference: float, lists: Sequence[Sequence[str]]
) -> Answer:
    relevant = searched.relevant[query]
    active, candidate = (
        [
            {"id": _id(id), "rank": rank, "text": _short(searched.documents[id].whole)}
            for rank, id in enumerate(ids, 1)
        ]
        for ids in lists
    )
    return {
        "search": name,
        "query": _short(searched.queries[query]),
        "difference": difference,
        # Of the first relevant hit. None: it is not among the hits.
        "ranks": [next((rank for rank, id in enumerate(ids, 1) if id in relevant), None) for ids in lists],
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

"""Find the queries whose results a candidate changed most, with the hits of both versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from training.evaluation.retrieval import Collection
from training.retraining.gate.gains import deciding
from training.retraining.gate.verdict import EACH, HITS, JUDGED, NAMES

MAX_CHANGED = 10  # queries to either side
MAX_ANSWERS = 1000  # queries: about 2 MB
_HITS = 3  # documents of a query that gained or lost most
_LETTERS = 120  # of each of them, and of a query

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
    found = [
        {
            "search": name,
            "query": _short(searched.queries[query]),
            "difference": now - was,
            "relevant": [_id(id) for id in searched.relevant[query]],
            "active": _show(searched, old),
            "candidate": _show(searched, new),
        }
        for name in deciding(before)
        if name in after
        for searched in [searches.get(name) or searches[JUDGED]]
        for query, was, now, old, new in zip(
            before[name][NAMES],
            before[name][EACH],
            after[name][EACH],
            before[name][HITS],
            after[name][HITS],
            strict=True,
        )
    ]
    return sorted(found, key=lambda each: -abs(each["difference"]))[:MAX_ANSWERS]


def find_changed(answers: Sequence[Answer]) -> dict[str, list[Answer]]:
    """Returns the queries that gained and lost most, under the keys `gained` and `lost`."""
    cut = [each | {side: each[side][:_HITS] for side in ("active", "candidate")} for each in answers]
    return {
        "gained": [each for each in cut if each["difference"] > 0][:MAX_CHANGED],
        "lost": [each for each in cut if each["difference"] < 0][:MAX_CHANGED],
    }


def _show(searched: Collection, ids: Sequence[str]) -> list[dict[str, str]]:
    return [{"id": _id(id), "text": _short(searched.documents[id].whole)} for id in ids]


def _id(name: str) -> str:
    """Returns the id of a document, given the name of the document or of a part of it."""
    return name.partition("\0")[0]


def _short(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= _LETTERS else f"{one_line[: _LETTERS - 1]}…"

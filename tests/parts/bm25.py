"""BM25 of all documents, computed with dictionaries: the reference of keyword search."""

import math
from collections import Counter
from collections.abc import Mapping

import pytest

from models.search.terms import Query, Weights, get_terms
from service.store.values import TIES, Ranking

WORDS = ["the", "river", "river", "stone", "bridge", "owl", "東京都", "京都", "ABC-12", "c++"]
WEIGHTED: list[tuple[str, Weights]] = [
    ("river stone", {}),
    ("The", {}),
    ("owl bridge river stone the", {}),
    ("京", {}),
    ("東京 river", {}),
    ("abc-12 c++", {}),
    ("zebra", {}),
    ("rivr owl", {("river",): 0.7}),
    ("owl", {("river", "stone"): 0.5, ("bridg",): 0.5}),
    ("river", {("river",): 0.25, ("stone", "zebra"): 0.9}),
]


def rank(texts: Mapping[int, str], query: Query, weights: Weights) -> dict[int, float]:
    """Returns the BM25 score of each text that has a term of the query, or all terms of a group."""
    counts = {revision: Counter(get_terms(text)) for revision, text in texts.items()}
    mean = sum(each.total() for each in counts.values()) / max(1, len(counts))

    def count(revision: int, term: str) -> int:
        if term in query.beginnings or (len(term) == 1 and not term.isascii()):
            return sum(number for each, number in counts[revision].items() if each.startswith(term))
        return counts[revision][term]

    def score(revision: int, term: str) -> float:
        having = sum(count(each, term) > 0 for each in counts)
        idf = max(1e-6, math.log((len(counts) - having + 0.5) / (having + 0.5)))
        f, length = count(revision, term), counts[revision].total()
        return idf * f * 2.2 / (f + 1.2 * (0.25 + 0.75 * length / mean)) if f else 0.0

    groups = {(term,): 1.0 for term in (*query.terms, *query.beginnings) if (term,) not in weights} | {
        **weights
    }
    found: dict[int, float] = {}
    for revision in counts:
        for group, weight in groups.items():
            if all(count(revision, term) for term in group):
                scores = [weight * score(revision, term) for term in group]
                found[revision] = found.get(revision, 0.0) + sum(scores)
    return found


def check(found: Ranking, expected: Mapping[int, float], depth: int) -> None:
    revisions, scores = found[0].tolist(), found[1].tolist()
    assert scores == pytest.approx([expected[revision] for revision in revisions], rel=1e-6)
    assert [*zip(revisions, scores, strict=True)] == sorted(
        zip(revisions, scores, strict=True), key=lambda each: (-each[1], each[0])
    )
    assert len(set(revisions)) == len(revisions) >= min(depth, len(expected))
    least = scores[depth - 1] if len(scores) >= depth else 0.0
    assert {revision for revision, score in expected.items() if score > least * (1 + 1e-6)} <= {*revisions}
    assert len(scores) <= depth + TIES
    assert all(score == least for score in scores[depth:])

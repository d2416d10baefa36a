"""Builds the features by which a learned ranking orders the candidates of a search. Start at `build`.

    query vector, passages' vectors ─┐
    BM25, fused scores ──────────────┼─▶ features, shape (n, len(FEATURES))
    terms of the query and the texts ┘

The features are those of learning-to-rank collections such as LETOR (Qin and Liu, 2013), without those that
need clicks or links. Memory.recall fills the last three columns, from judged queries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, pairwise
from math import log1p
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.search.terms import FUNCTION_WORDS, NO_SAME, get_words, parse_query

VERSION = 3  # Raise it if the meaning of a feature or of a ranking changes. Others are ignored.
FEATURES = (
    "dense",  # Cosine of the best passage.
    "second",  # Cosine of the second-best passage, or of the only one.
    "bm25",  # BM25 of title and text. 0 if keyword search did not find the document.
    "hybrid",  # The fused score.
    "feedback",  # Cosine of the head with the query vector moved towards the best hits.
    "cover",  # Share of the query's terms in the document.
    "bigram",  # Share of the query's adjacent pairs of terms that are adjacent in the document.
    "title_cover",  # Share of the title's terms in the query.
    "length",  # Logarithm of 1 + the number of terms.
    "hub",  # Cosine of the head with the mean of the queries that the ranking learned from.
    "proximity",  # Largest share of the query's terms within WINDOW words. Rare terms weigh more.
    "memory_best",  # Largest similarity of a judged query that this document answers, times the gain.
    "memory_sum",  # Sum of these products over all judged queries.
    "memory_not",  # Similarity of the most similar judged query that this document does not answer.
)
MEMORY = FEATURES[-3:]
CHARACTERS = 2000  # Limit of a text and of a title that are read for features.
COVER_CHARACTERS = 10_000  # Splitting them takes about 2 ms.
WINDOW = 20  # Words, about a sentence.
FEEDBACK_HITS = 3  # Hits that move the query vector (pseudo relevance feedback; Rocchio, 1971).

Features = NDArray[np.float64]  # (n, len(FEATURES))
Vectors = NDArray[np.float32]


class Candidates(NamedTuple):
    """The candidates of one query, best first in hybrid order, in lists and arrays of equal length n.

    Attributes:
        hybrid: Fused scores, shape (n,).
        bm25: BM25 scores, shape (n,).
        passages: Vectors of each candidate's passages, length 1, shape (p, d). The head, the start of the
            text, is first. A candidate without vectors has p = 0.
        titles: Titles, or empty texts.
        texts: Texts without titles.
    """

    hybrid: NDArray[np.float64]
    bm25: NDArray[np.float64]
    passages: Sequence[Vectors]
    titles: Sequence[str]
    texts: Sequence[str]


def build(
    query: str,
    vector: Vectors,
    candidates: Candidates,
    mean_query: Vectors | None,
    check: Callable[[], None] = lambda: None,
    same: Mapping[str, str] = NO_SAME,
) -> Features:
    """Returns the features of the candidates, shape (n, len(FEATURES)). The columns of MEMORY are 0.

    Args:
        query: The text of the query.
        vector: Vector of the query, length 1, shape (d,).
        candidates: The candidates.
        mean_query: Mean vector of the queries that the ranking learned from, length 1, shape (d,). None: the
            feature `hub` is 0.
        check: Called before each candidate. May raise to end the work.
        same: Synonyms that count as words of the query, with these words.
    """
    features = np.zeros((len(candidates.texts), len(FEATURES)))
    heads = np.zeros((len(features), len(vector)))
    parsed = parse_query(query)
    telling, pairs = parsed.telling, {*pairwise(parsed.words)}
    wanted = {word: word for word in parsed.words}
    places: list[list[tuple[int, str]]] = []  # Of the query's terms in each document.
    for row, (passages, title, text) in enumerate(
        zip(candidates.passages, candidates.titles, candidates.texts, strict=True)
    ):
        check()
        cosines = np.sort(passages @ vector)[::-1]
        if len(passages):
            heads[row] = passages[0]
            features[row, :2] = cosines[0], cosines[min(1, len(cosines) - 1)]
        titled = _get_words(title, same)
        words = titled + _get_words(text, same)
        features[row, 5] = _share(telling, words)
        terms = [*map(wanted.get, words)]
        features[row, 6] = _share(pairs, pairwise(terms))
        features[row, 7] = _share(_telling(titled), parsed.words)
        features[row, 8] = np.log1p(len(words))
        places.append([(place, term) for place, term in enumerate(terms) if term and term in telling])
    features[:, 2], features[:, 3] = candidates.bm25, candidates.hybrid
    moved = vector + heads[:FEEDBACK_HITS].mean(axis=0) if len(heads) else vector
    features[:, 4] = heads @ (moved / (np.linalg.norm(moved) or 1))
    if mean_query is not None:
        features[:, 9] = heads @ mean_query
    features[:, 10] = _get_proximities(places, telling)
    return features


def get_cover(query: str, text: str, same: Mapping[str, str] = NO_SAME) -> float:
    """Returns the share of the query's terms that the first COVER_CHARACTERS of a text contain.

    The result is at least the share of one term, because keyword search has found the text.
    """
    telling = parse_query(query).telling
    share = _share(telling, _get_words(text[:COVER_CHARACTERS], same))
    return max(share, 1 / max(1, len(telling)))


def _get_words(text: str, same: Mapping[str, str]) -> list[str]:
    """Returns the words of a text, with those of the query instead of their synonyms."""
    words = get_words(text)
    return [same.get(word, word) for word in words] if same else words


def _get_proximities(places: Sequence[Sequence[tuple[int, str]]], terms: AbstractSet[str]) -> list[float]:
    """Returns for each document the largest share of the query's terms that occur within WINDOW words.

    The weight of a term is its inverse frequency among the documents, as in BM25 (Robertson et al. 1995).

    Args:
        places: Places of the terms in each document, with the term, in order.
        terms: The terms of the query.
    """
    counts = Counter(chain.from_iterable({term for _, term in found} for found in places))
    weights = {term: log1p((len(places) - counts[term] + 0.5) / (counts[term] + 0.5)) for term in terms}
    total = sum(weights.values())
    shares = []
    for found in places:
        inside, best, first = Counter[str](), 0.0, 0
        weight = 0.0  # Weight of the terms inside the window.
        for place, term in found:
            weight += 0.0 if inside[term] else weights[term]
            inside[term] += 1
            while place - found[first][0] >= WINDOW:
                left = found[first][1]
                inside[left] -= 1
                weight -= 0.0 if inside[left] else weights[left]
                first += 1
            best = max(best, weight)
        shares.append(best / total if found else 0.0)
    return shares


def _telling(stems: Sequence[str]) -> set[str]:
    """Returns the stems without function words, or all stems if all are function words."""
    return {*stems} - _FUNCTION_STEMS or {*stems}


_FUNCTION_STEMS = frozenset(get_words(" ".join(FUNCTION_WORDS)))


def _share(wanted: AbstractSet[object], found: Iterable[object]) -> float:
    return len(wanted & {*found}) / len(wanted) if wanted else 0.0


class Memory:
    """Judged queries of a collection. `recall` makes features from those that are similar to a query.

    Args:
        vectors: Vectors of the judged queries, length 1, shape (q, d).
        answers: The judgments of each query: document id to gain, 0 (not relevant) to 1.
        unrelated: Mean cosine of unrelated texts, which differs between models. 1 if unknown.
    """

    def __init__(
        self, vectors: Vectors, answers: Sequence[Mapping[str, float]], unrelated: float = 1.0
    ) -> None:
        self.vectors = vectors
        self._answers = answers
        self._unrelated = unrelated if unrelated < 1 else 0.0
        self._judged: dict[str, list[tuple[int, float]]] = {}  # Queries and gains, by document.
        for at, gains in enumerate(answers):
            for id, gain in gains.items():
                self._judged.setdefault(id, []).append((at, gain))

    def recall(
        self, vector: Vectors, ids: Sequence[str], threshold: float, *, without: frozenset[int] = frozenset()
    ) -> Features:
        """Returns the features MEMORY of each document, shape (n, 3).

        The nearness of a judged query is 0 at the cosine of unrelated texts, and 1 at a cosine of 1. Its
        similarity is 0 up to the nearness `threshold`, and 1 at a nearness of 1. `memory_best` and
        `memory_sum` multiply the similarity by the gain of the document.

        Args:
            vector: Vector of the query, shape (d,).
            ids: Ids of the documents.
            threshold: Nearness that a judged query must exceed, below 1.
            without: Positions of judged queries to leave out, such as the query itself.
        """
        found = np.zeros((len(ids), len(MEMORY)))
        if not self._judged:
            return found
        similarities = self._compare(vector, threshold)
        similarities[[*without]] = 0
        similar = similarities.tolist()
        for row, id in enumerate(ids):
            if judged := self._judged.get(id):
                weighed = [gain * similar[at] for at, gain in judged]
                against = max((similar[at] for at, gain in judged if gain == 0), default=0.0)
                found[row] = max(weighed), sum(weighed), against
        return found

    def list_relevant(self, vector: Vectors, threshold: float) -> list[str]:
        """Returns the documents that were judged relevant for similar queries, best first.

        Their `memory_best` in `recall` is above 0. Arguments are those of `recall`.
        """
        similar = self._compare(vector, threshold) if self._judged else np.zeros(0)
        gains: dict[str, float] = {}
        for at in np.flatnonzero(similar).tolist():
            for id, gain in self._answers[at].items():
                gains[id] = max(gains.get(id, 0.0), gain * float(similar[at]))
        return [id for _, id in sorted((-gain, id) for id, gain in gains.items() if gain > 0)]

    def _compare(self, vector: Vectors, threshold: float) -> NDArray[np.float64]:
        """Returns the similarity of each judged query, shape (q,)."""
        nearness = (np.asarray(self.vectors @ vector, np.float64) - self._unrelated) / (1 - self._unrelated)
        similarities: NDArray[np.float64] = np.clip((nearness - threshold) / (1 - threshold), 0, 1)
        return similarities


NO_MEMORY = Memory(np.empty((0, 0), np.float32), [])

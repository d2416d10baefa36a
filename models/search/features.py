"""Features of the candidates of a hybrid search, from which a learned ranking orders them. Start at `build`.

    query vector, passages' vectors ─┐
    BM25, fused scores ──────────────┼─▶ features, shape (n, len(FEATURES))
    terms of the query and the texts ┘

The features are those of learning-to-rank collections such as LETOR (Qin and Liu, 2013), without those that
need clicks or links. Memory.recall fills the last three columns, from judged queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.search.terms import FUNCTION_WORDS, split_query, split_words, stem

VERSION = 1  # Raise it if the meaning of a feature changes. Rankings of other versions are ignored.
FEATURES = (
    "dense",  # Cosine of the best passage.
    "second",  # Cosine of the second-best passage, or of the only one.
    "bm25",  # Of title and text. 0 if keyword search did not find the document.
    "hybrid",  # The fused score.
    "feedback",  # Cosine of the head with the query vector moved towards the best hits.
    "cover",  # Share of the query's terms in the document.
    "bigram",  # Share of the query's adjacent pairs of terms that are adjacent in the document.
    "title_cover",  # Share of the title's terms in the query.
    "length",  # Logarithm of 1 + the number of terms.
    "hub",  # Cosine of the head with the mean of the queries that the ranking learned from.
    "memory_best",  # Similarity of the most similar judged query that this document answers.
    "memory_sum",  # Sum of these similarities over all judged queries.
    "memory_not",  # Similarity of the most similar judged query that this document does not answer.
)
MEMORY = FEATURES[-3:]
CHARACTERS = 2000  # Of a text and of a title that are read for features.
FEEDBACK_HITS = 3  # Hits that move the query vector (pseudo relevance feedback; Rocchio, 1971).

Features = NDArray[np.float64]  # (n, len(FEATURES))
Vectors = NDArray[np.float32]


class Candidates(NamedTuple):
    """The candidates of one query, best first in hybrid order, in lists and arrays of equal length n.

    Attributes:
        hybrid: Fused scores, shape (n,).
        bm25: BM25 scores, shape (n,).
        passages: Vectors of each candidate's passages, length 1, shape (p, d), the head first. A candidate
            without vectors has p = 0.
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
) -> Features:
    """Returns the features of the candidates, shape (n, len(FEATURES)). Memory is 0.

    Args:
        query: The text of the query.
        vector: Vector of the query, length 1, shape (d,).
        candidates: The candidates.
        mean_query: For `hub`, length 1, shape (d,). None: `hub` is 0.
        check: Called before each candidate. May raise to end the work.
    """
    features = np.zeros((len(candidates.texts), len(FEATURES)))
    heads = np.zeros((len(features), len(vector)))
    query_stems = split_query(query)
    stems = stem({*query_stems})
    query_stems = [stems[word] for word in query_stems]
    wanted, telling, pairs = {*query_stems}, _telling(query_stems), {*pairwise(query_stems)}
    for row, (passages, title, text) in enumerate(
        zip(candidates.passages, candidates.titles, candidates.texts, strict=True)
    ):
        check()
        cosines = np.sort(passages @ vector)[::-1]
        if len(passages):
            heads[row] = passages[0]
            features[row, :2] = cosines[0], cosines[min(1, len(cosines) - 1)]
        titled = split_words(title)
        words = titled + split_words(text)
        stems = stem({*words})
        matching = {word: stemmed for word, stemmed in stems.items() if stemmed in wanted}
        features[row, 5] = _share(telling, matching.values())
        features[row, 6] = _share(pairs, pairwise(map(matching.get, words)))
        features[row, 7] = _share(_telling([stems[word] for word in titled]), query_stems)
        features[row, 8] = np.log1p(len(words))
    features[:, 2], features[:, 3] = candidates.bm25, candidates.hybrid
    moved = vector + heads[:FEEDBACK_HITS].mean(axis=0) if len(heads) else vector
    features[:, 4] = heads @ (moved / (np.linalg.norm(moved) or 1))
    if mean_query is not None:
        features[:, 9] = heads @ mean_query
    return features


def _telling(stems: Sequence[str]) -> set[str]:
    """Returns the stems without function words, or all stems if there are no others."""
    return {word for word in stems if word not in _FUNCTION_STEMS} or set(stems)


_FUNCTION_STEMS = frozenset(stem(FUNCTION_WORDS).values())


def _share(wanted: AbstractSet[object], found: Iterable[object]) -> float:
    return len(wanted & {*found}) / len(wanted) if wanted else 0.0


class Memory:
    """Judged queries of a collection, by which a search recalls their answers.

    Args:
        vectors: Vectors of the judged queries, length 1, shape (q, d).
        answers: The judgments of each query: document id to True (relevant) or False (not relevant).
    """

    def __init__(self, vectors: Vectors, answers: Sequence[Mapping[str, bool]]) -> None:
        self.vectors = vectors
        self.answers = answers

    def recall(
        self, vector: Vectors, ids: Sequence[str], cosine: float, *, without: frozenset[int] = frozenset()
    ) -> Features:
        """Returns the features MEMORY of each document, shape (n, 3).

        The similarity of a judged query is 0 at the cosine `cosine` and 1 at a cosine of 1.

        Args:
            vector: Vector of the query, shape (d,).
            ids: Documents.
            cosine: Judged queries must have a larger cosine than this, which is below 1.
            without: Positions of judged queries to leave out, such as the query that is judged itself.
        """
        found = np.zeros((len(ids), len(MEMORY)))
        cosines = np.asarray(self.vectors @ vector, np.float64) if len(self.vectors) else np.empty(0)
        rows = {id: row for row, id in enumerate(ids)}
        for at in np.flatnonzero(cosines > cosine).tolist():
            if at in without:
                continue
            similarity = min(1.0, (float(cosines[at]) - cosine) / (1 - cosine))
            for id, relevant in self.answers[at].items():
                if (row := rows.get(id)) is None:
                    continue
                if relevant:
                    found[row, 0] = max(found[row, 0], similarity)
                    found[row, 1] += similarity
                else:
                    found[row, 2] = max(found[row, 2], similarity)
        return found


NO_MEMORY = Memory(np.empty((0, 0), np.float32), [])

"""Judged queries with the candidates that a hybrid search found, from which a ranking learns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.search.content import Content
from models.search.features import (
    CHARACTERS,
    FEATURES,
    MEMORY,
    NO_MEMORY,
    Candidates,
    Features,
    Memory,
    Vectors,
    build,
)
from models.search.measures import dcg
from models.search.ranking import MAX_RANKED, RERANKED, Ranking, RerankerWeight, rerank
from training.evaluation.modes import Scores


class Example(NamedTuple):
    """A judged query and its candidates, best first in hybrid order.

    Attributes:
        query: The text of the query.
        vector: Vector of the query, length 1, shape (d,).
        ids: Documents, n of them.
        features: Features of the documents, shape (n, len(FEATURES)). The columns of MEMORY are ignored.
        relevant: Gains of all relevant documents, found or not.
        wrong: Documents that were judged not relevant.
        judges: Whether the query may judge a ranking. All queries train.
        seen: For each candidate without a gain, the probability that it was judged, shape (n,). If only
            clicks judge the query, that is the probability that users have examined the candidate. The
            candidate counts as wrong with this weight. None: 1 for all.
        unrelated: Mean cosine of unrelated texts by the encoder of `vector`. 1 if unknown.
        alike: The same key for nearly equal queries. Empty: `query`.
        late: Features of late interaction, shape (n, len(LATE)). None: not computed.
        reranked: Scores of the reranker before its activation, shape (n,). NaN: none. None: not computed.
    """

    query: str
    vector: Vectors
    ids: Sequence[str]
    features: Features
    relevant: dict[str, float]
    wrong: frozenset[str] = frozenset()
    judges: bool = True
    seen: NDArray[np.float64] | None = None
    unrelated: float = 1.0
    alike: str = ""
    late: Features | None = None
    reranked: NDArray[np.float64] | None = None

    @property
    def gains(self) -> NDArray[np.float64]:
        """The gain of each candidate, shape (n,)."""
        return np.array([self.relevant.get(id, 0.0) for id in self.ids])

    @property
    def weights(self) -> NDArray[np.float64]:
        """The weight of each candidate in the loss, shape (n,), 1 for candidates with a gain."""
        return np.where(self.gains > 0, 1.0, np.ones(len(self.ids)) if self.seen is None else self.seen)

    def rerank(self, scores: NDArray[np.float64], weight: RerankerWeight) -> NDArray[np.float64]:
        """Returns scores with the order in which the service reranks the candidates, shape (n,).

        Args:
            scores: Ranking scores, shape (n,).
            weight: Weight of the reranker, which has scored the candidates.
        """
        order = np.argsort(-scores, kind="stable")
        best = order[:RERANKED]
        if self.reranked is not None:
            parts = weight.contribute(scores[best], self.reranked[best])
            order[: len(best)] = best[rerank(scores[best] + parts)]
        found = np.empty(len(order))
        found[order] = -np.arange(len(order))
        return found

    def without(self, ids: Collection[str]) -> Example:
        """Returns the query without judgments of `ids`: those documents are neither right nor wrong."""
        kept = {id: gain for id, gain in self.relevant.items() if id not in ids}
        seen = np.ones(len(self.ids)) if self.seen is None else self.seen.copy()
        seen[np.isin(self.ids, [*(self.relevant.keys() | self.wrong).intersection(ids)])] = 0.0
        return self._replace(relevant=kept, wrong=self.wrong.difference(ids), seen=seen)

    def score(self, scores: NDArray[np.float64]) -> float:
        """Returns nDCG@10 if the candidates are ordered by `scores`, ties in hybrid order.

        A candidate takes up as much of a rank as it weighs (`weights`). So candidates that users probably
        never saw count as if the list were without them (Sakai 2007, "Alternatives to Bpref").
        """
        order = np.argsort(-scores, kind="stable")
        ranks = np.cumsum(self.weights[order])
        found = self.gains[order] * (ranks <= 10) / np.log2(1 + np.maximum(ranks, 1))
        return float(found.sum()) / self._ideal

    @property
    def _ideal(self) -> float:
        return dcg(sorted(self.relevant.values(), reverse=True)[:10])

    @property
    def chance(self) -> float:
        """The mean nDCG@10 of random orders of the candidates that count."""
        count = float(self.weights.sum())
        mean = float(self.gains.sum()) / max(count, 1.0)
        return mean * dcg([1.0] * min(10, round(count))) / self._ideal

    def rank(self, scores: NDArray[np.float64]) -> int:
        """Returns the position of the first relevant candidate, from 1, or 0."""
        ordered = self.gains[np.argsort(-scores, kind="stable")]
        return int(np.argmax(ordered > 0)) + 1 if ordered.any() else 0


class Texts(NamedTuple):
    """Documents with their vectors, and two figures of the encoder.

    Attributes:
        ids: Ids of the documents.
        contents: Contents of the documents.
        passages: Unit vectors of the passages of each document, shape (p, d).
        mean_query: The mean of query vectors, for the feature `hub`, length 1, shape (d,).
        unrelated: Mean cosine of unrelated texts by the encoder.
    """

    ids: Sequence[str]
    contents: Sequence[Content]
    passages: Sequence[Vectors]
    mean_query: Vectors
    unrelated: float


def build_example(
    query: str,
    vector: Vectors,
    scores: Scores,
    bm25: Scores,
    texts: Texts,
    relevant: dict[str, float],
    *,
    ranked: bool = True,
) -> Example:
    """Returns the judged query with the best documents by `scores`.

    Args:
        query: The text of the query.
        vector: Its vector, length 1, shape (d,).
        scores: Scores of documents by their position in `texts`, best first.
        bm25: Scores of keyword search by the same position.
        texts: The documents.
        relevant: Gains of the relevant documents by id.
        ranked: Whether to compute features. Otherwise they are 0.
    """
    best = [*scores][:MAX_RANKED]
    ids, features = [texts.ids[at] for at in best], np.zeros((len(best), len(FEATURES)))
    if ranked:
        candidates = Candidates(
            hybrid=np.array([scores[at] for at in best], np.float64),
            bm25=np.array([bm25.get(at, 0.0) for at in best], np.float64),
            passages=[texts.passages[at] for at in best],
            titles=[texts.contents[at].title[:CHARACTERS] for at in best],
            texts=[texts.contents[at].text[:CHARACTERS] for at in best],
        )
        features = build(query, vector, candidates, texts.mean_query)
    return Example(query, vector, ids, features, relevant, unrelated=texts.unrelated)


def build_memory(examples: Sequence[Example]) -> Memory:
    """Returns the memory that a service would have of these queries."""
    if not examples:
        return NO_MEMORY
    answers = [
        {id: min(gain, 1.0) for id, gain in each.relevant.items()} | dict.fromkeys(each.wrong, 0.0)
        for each in examples
    ]
    return Memory(np.stack([each.vector for each in examples]), answers, examples[0].unrelated)


def remember(
    example: Example, memory: Memory, threshold: float, without: frozenset[int] = frozenset()
) -> Features:
    """Returns the features of an example with the columns of MEMORY filled.

    Args:
        example: The example.
        memory: The judged queries.
        threshold: Judged queries must have a larger nearness (`Memory.recall`).
        without: Positions of judged queries to leave out.
    """
    recalled = memory.recall(example.vector, example.ids, threshold, without=without)
    return np.hstack([example.features[:, : -len(MEMORY)], recalled])


def score_candidates(example: Example, ranking: Ranking, memory: Memory) -> NDArray[np.float64]:
    """Returns the scores of the candidates by a ranking, before a reranker, shape (n,)."""
    return ranking.score(remember(example, memory, ranking.memory_threshold), example.late)

"""Learn a collection's search: its default mode, and the weight of the vectors in hybrid search.

    held-out queries ─▶ candidates by vectors and by words, found once ─▶ nDCG@10 at each weight ─▶ defaults

A weight of 1 is dense search and 0 is search by words alone. Fusing costs no model, so every weight of the
grid is tried. The one chosen is not the best on these few queries, but the nearest to the usual weight among
those that are as good as the best within one standard error of their difference (the rule of Breiman and
others 1984, section 3.4.3): what differs by less is luck, and the usual weight is what others measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.manifest import Mode, SearchDefaults
from models.search.fusion import DENSE_WEIGHT
from training.evaluation.modes import candidates, fused, passages_of
from training.evaluation.rankings import judge
from training.evaluation.retrieval import Collection
from training.evaluation.scorable import Scorable
from training.evaluation.words import WordIndex
from training.text.service_collections import DEFAULT

WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
LEAST_QUERIES = 20  # of a collection; with fewer the standard error is wider than what weights differ by
_DEPTH = 10  # hits that nDCG@10 looks at


class Tuned(NamedTuple):
    """The learned search of one collection, and what it rests on."""

    chosen: SearchDefaults
    ndcg10: dict[float, float]  # the mean at each weight, over the queries that it was chosen with
    queries: int


def tune(searches: Sequence[Collection], model: Scorable) -> dict[str, Tuned]:
    """The search that each collection's queries ask for; collections with too few of them are left out.

    searches: of queries that neither train nor judge.
    """
    asked: dict[str, list[list[float]]] = {}
    for search in searches:
        for _, collection, of_weights in by_collection(search, model):
            asked.setdefault(collection, []).append(of_weights)
    return {
        collection: choose(np.array(rows))
        for collection, rows in sorted(asked.items())
        if len(rows) >= LEAST_QUERIES
    }


def choose(ndcg10: NDArray[np.float64]) -> Tuned:
    """(q, weights) nDCG@10 of each query at each of WEIGHTS -> the weight to serve."""
    means = ndcg10.mean(axis=0)
    best = int(means.argmax())
    lost = ndcg10[:, [best]] - ndcg10
    errors = lost.std(axis=0, ddof=1) / np.sqrt(len(ndcg10)) if len(ndcg10) > 1 else np.inf
    alike = np.flatnonzero(means[best] - means <= errors)
    chosen = WEIGHTS[min(alike, key=lambda at: (abs(WEIGHTS[at] - DENSE_WEIGHT), WEIGHTS[at]))]
    mode: Mode = "dense" if chosen == 1 else "lexical" if chosen == 0 else "hybrid"
    found = dict(zip(WEIGHTS, (round(float(mean), 4) for mean in means), strict=True))
    return Tuned(SearchDefaults(mode=mode, weight=chosen), found, len(ndcg10))


def by_collection(search: Collection, model: Scorable) -> Iterator[tuple[str, str, list[float]]]:
    """Each query with its collection, and its nDCG@10 at each of WEIGHTS."""
    for collection, part in parts(search):
        ids, texts = [*part.documents], [*part.documents.values()]
        queries = [*part.queries.values()]
        passages = passages_of(texts, model.split, model.encode_documents)
        with WordIndex(texts) as words:
            found = candidates(queries, model.encode_queries(queries), passages, words)
            for query, (near, worded) in zip(part.queries, found, strict=True):
                lists = (fused(near, worded, weight, _DEPTH) for weight in WEIGHTS)
                relevant = part.relevant[query]
                yield (
                    query,
                    collection,
                    [judge([ids[at] for at in ranked], relevant).ndcg10 for ranked in lists],
                )


def parts(search: Collection) -> Iterator[tuple[str, Collection]]:
    """The search of each collection that has queries, with that collection's documents alone."""
    within = search.within or {}

    def of(name: str) -> str:
        return within.get(name, DEFAULT)

    for collection in sorted({of(query) for query in search.queries}):
        queries = {query: text for query, text in search.queries.items() if of(query) == collection}
        yield (
            collection,
            search._replace(
                documents={id: text for id, text in search.documents.items() if of(id) == collection},
                queries=queries,
                relevant={query: search.relevant[query] for query in queries},
                within=None,
            ),
        )

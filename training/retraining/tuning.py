"""Learn the search settings of a collection: default mode, weight of dense search, and passage length.

    queries ─▶ dense and keyword rankings for each length ─▶ nDCG@10 at each weight ─▶ chosen settings

A weight of 1 is dense search, and 0 is keyword search. Fusing two rankings needs no model, so every weight of
a grid is tried. For each passage length the documents are embedded again. All modes search the same passages,
so the length is chosen first, by dense search and by hybrid search with the default weight. The weight is
chosen second.

The chosen weight is the one nearest to the default among all weights that are at most one standard error
worse than the best (the rule of Breiman and others 1984, section 3.4.3). Smaller differences may be due to
chance. Another length means embedding every long document again, so it must gain two standard errors.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.manifest import FUSION, Mode, SearchDefaults
from models.search.fusion import DENSE_WEIGHT, get_mode, get_weight
from models.search.passages import learned_tokens, usual_tokens
from training.evaluation.encoding import encode_once
from training.evaluation.modes import WordIndex, candidates, fused, get_passages
from training.evaluation.retrieval import Collection, judge
from training.evaluation.scorable import Scorable
from training.retraining.gate.verdict import JUDGED

WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_LENGTHS = (64, 128, 512)  # tokens of a passage that are tried, beside the usual ones and all that are read
MIN_QUERIES = 20  # of a collection; with fewer the standard error is wider than what weights differ by
_DEPTH = 10  # hits that nDCG@10 looks at


class Setting(NamedTuple):
    weight: float  # of the vectors
    passage_tokens: int | None = None

    def __str__(self) -> str:
        length = f", passages of {self.passage_tokens} tokens" if self.passage_tokens else ""
        return f"weight {self.weight:g}{length}"


USUAL = Setting(DENSE_WEIGHT)  # of a collection for which nothing was learned

# Titles and known items are made of the text's own words, so they lean to words: on MLQA they chose a weight
# with which people's questions found 2.6 points less. So they choose the usual one, or none. Vectors of text
# that the model cannot read mean nothing, so there they may choose any.
OF_TEXT_ONLY = (DENSE_WEIGHT, 1.0)


class Tuned(NamedTuple):
    """The learned settings of one collection, with the scores and the number of queries behind them."""

    chosen: SearchDefaults
    ndcg10: dict[str, float]  # the mean at each setting, over the queries that it was chosen with
    queries: int


def tune(
    searches: Sequence[Collection],
    model: Scorable,
    get_weights: Callable[[str], Sequence[float]] = lambda _: WEIGHTS,
) -> dict[str, Tuned]:
    """Learns the settings of each collection that has enough queries.

    Args:
        searches: Searches with queries that neither train nor judge.
        model: The active model.
        get_weights: Function from a collection to the weights to try, which include DENSE_WEIGHT and 1.

    """
    lengths = list_lengths(model.reads)

    def settings(collection: str) -> list[Setting]:
        return [Setting(weight, tokens) for tokens in lengths for weight in get_weights(collection)]

    queried: dict[str, list[list[float]]] = {}
    for search in searches:
        for _, collection, figures in by_collection(search, model, settings):
            queried.setdefault(collection, []).append(figures)
    return {
        collection: choose(
            np.array(rows).reshape(len(rows), len(lengths), -1), lengths, get_weights(collection)
        )
        for collection, rows in sorted(queried.items())
        if len(rows) >= MIN_QUERIES
    }


def tune_by_text(
    searches: Mapping[str, Collection], model: Scorable, unread: Container[str]
) -> dict[str, Tuned]:
    """Learns the settings of each collection from searches that are made of text.

    Args:
        searches: Searches by name, such as titles and known items.
        model: The active model.
        unread: Collections whose documents the model cannot read.

    """
    made = [search for name, search in searches.items() if name != JUDGED]
    return tune(made, model, lambda collection: WEIGHTS if collection in unread else OF_TEXT_ONLY)


def list_lengths(reads: int) -> tuple[int | None, ...]:
    """Returns the passage lengths to try, in tokens. The first is None, which means the default length.

    Args:
        reads: Maximum length of the model in tokens, or 0 if documents are not split.

    """
    tried = dict.fromkeys(tokens for tokens in (*_LENGTHS, reads) if 0 < tokens <= reads)
    return None, *(tokens for tokens in tried if tokens != usual_tokens(reads))


def choose(
    ndcg10: NDArray[np.float64], lengths: Sequence[int | None], weights: Sequence[float] = WEIGHTS
) -> Tuned:
    """Chooses the settings of a collection.

    Args:
        ndcg10: nDCG@10 of each query, shape (q, lengths, weights).
        lengths: The passage lengths.
        weights: The weights.

    """
    everyday = [weights.index(1.0), weights.index(DENSE_WEIGHT)]
    length = _clearly_best(ndcg10[:, :, everyday].mean(axis=2))
    far = [abs(weight - DENSE_WEIGHT) for weight in weights]
    weight = weights[_nearest(ndcg10[:, length], far)]
    mode: Mode = "dense" if weight == 1 else "lexical" if weight == 0 else "hybrid"
    means = ndcg10.mean(axis=0)
    found = {
        str(Setting(each, tokens)): round(float(mean), 4)
        for tokens, row in zip(lengths, means, strict=True)
        for each, mean in zip(weights, row, strict=True)
    }
    tokens = lengths[length] if weight else None
    chosen = SearchDefaults(mode=mode, weight=weight, fusion=FUSION, passage_tokens=tokens)
    return Tuned(chosen, found, len(ndcg10))


def _clearly_best(ndcg10: NDArray[np.float64]) -> int:
    """Returns the index of the best column that gains two standard errors over the first, or else 0.

    `ndcg10` has shape (q, n).
    """
    gained = ndcg10 - ndcg10[:, :1]
    means = np.where(gained.mean(axis=0) > 2 * _errors(gained), gained.mean(axis=0), 0.0)
    return int(means.argmax())


def _nearest(ndcg10: NDArray[np.float64], far: Sequence[float]) -> int:
    """Returns the column with the smallest `far` among all within one standard error of the best column.

    `ndcg10` has shape (q, n).
    """
    lost = ndcg10[:, [ndcg10.mean(axis=0).argmax()]] - ndcg10
    alike = np.flatnonzero(lost.mean(axis=0) <= _errors(lost)).tolist()
    return min(alike, key=lambda at: (round(far[at], 6), at))


def _errors(differences: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the standard error of each column's mean, shape (n,). Infinite for a single query."""
    count, width = differences.shape
    return differences.std(axis=0, ddof=1) / np.sqrt(count) if count > 1 else np.full(width, np.inf)


def by_collection(
    search: Collection, model: Scorable, settings: Callable[[str], Sequence[Setting]]
) -> Iterator[tuple[str, str, list[float]]]:
    """Yields each query with its collection, and the nDCG@10 with each of the collection's `settings`."""
    for collection, part in search.parts():
        queried = settings(collection)
        # Equal scores are ranked as in evaluation/retrieval.py: an answer is no better for standing first.
        ids = sorted(part.documents, reverse=True)
        contents = [part.documents[id] for id in ids]
        queries = [*part.queries.values()]
        vectors, split = model.encode_queries(queries), cache(model.split)
        lengths = [*dict.fromkeys(setting.passage_tokens for setting in queried)]
        texts = chain.from_iterable(split(content, tokens) for tokens in lengths for content in contents)
        encode = encode_once(model.encode_documents, texts)
        with closing(WordIndex([content.whole for content in contents])) as words:
            splits = [get_passages(contents, split, encode, tokens) for tokens in lengths]
            found = candidates(queries, vectors, splits, words)
            for (query, text), (near, worded) in zip(part.queries.items(), found, strict=True):
                relevant, figures, cover = part.relevant[query], [], words.get_cover(text, worded)
                for weight, tokens in queried:
                    nearest = near[lengths.index(tokens)] if weight else {}
                    ranked = fused(nearest, worded, weight, model.unrelated, cover, _DEPTH)
                    figures.append(judge([ids[at] for at in ranked], relevant)["ndcg10"])
                yield query, collection, figures


def modes(learned: SearchDefaults | None, mode: Mode | None) -> tuple[Setting, ...]:
    """Returns the settings of dense search, of hybrid search, and of a search that names no mode."""
    tokens = learned_tokens(learned)
    return Setting(1.0, tokens), Setting(get_weight(learned), tokens), get_setting(learned, mode)


def get_setting(learned: SearchDefaults | None, mode: Mode | None = None) -> Setting:
    """Returns the settings of a search that names no mode. `mode` is the default mode of the service."""
    mode = mode or get_mode(learned)
    weights = {"dense": 1.0, "hybrid": get_weight(learned), "lexical": 0.0}
    return Setting(weights[mode], learned_tokens(learned))

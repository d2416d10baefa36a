"""Learn a collection's search: its default mode, the weight of the vectors, and the length of its passages.

    held-out queries ─▶ candidates of each length, by vectors and by words ─▶ nDCG@10 at each weight ─▶ chosen

A weight of 1 is dense search and 0 is search by words alone. Fusing costs no model, so every weight of the
grid is tried; each length embeds the documents once more. Every mode searches the same passages, so their
length is chosen first, by dense search and hybrid search of the usual weight together; then the weight.

The weight is not the best on these few queries, but the nearest to the usual one among those that are as good
as the best within one standard error of their difference (the rule of Breiman and others 1984, section
3.4.3): what differs by less is luck. Another length embeds every long document anew, so it must gain two
standard errors.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.manifest import Mode, SearchDefaults
from models.search.fusion import DENSE_WEIGHT, get_weight
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


USUAL = Setting(weight=1.0)  # of a collection for which nothing was learned

# Titles and known items are made of the text's own words, so they lean to words: on MLQA they chose a weight
# with which people's questions found 2.6 points less. So they choose the usual one, or none. Vectors of text
# that the model cannot read mean nothing, so there they may choose any.
OF_TEXT_ONLY = (DENSE_WEIGHT, 1.0)


class Tuned(NamedTuple):
    """The learned search of one collection, and what it rests on."""

    chosen: SearchDefaults
    ndcg10: dict[str, float]  # the mean at each setting, over the queries that it was chosen with
    queries: int


def tune(
    searches: Sequence[Collection],
    model: Scorable,
    get_weights: Callable[[str], Sequence[float]] = lambda _: WEIGHTS,
) -> dict[str, Tuned]:
    """The search that each collection's queries ask for; collections with too few of them are left out.

    searches: of queries that neither train nor judge. get_weights: a collection's, to choose from, with
    DENSE_WEIGHT and 1.
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
    """The search that titles and known items ask for, by the names of `searches`.

    unread: collections whose documents the model cannot read.
    """
    made = [search for name, search in searches.items() if name != JUDGED]
    return tune(made, model, lambda collection: WEIGHTS if collection in unread else OF_TEXT_ONLY)


def list_lengths(reads: int) -> tuple[int | None, ...]:
    """Tokens of a passage to choose from, None for the usual, which is first.

    reads: tokens, of the model; 0 where no document is split.
    """
    tried = dict.fromkeys(tokens for tokens in (*_LENGTHS, reads) if 0 < tokens <= reads)
    return None, *(tokens for tokens in tried if tokens != usual_tokens(reads))


def choose(
    ndcg10: NDArray[np.float64], lengths: Sequence[int | None], weights: Sequence[float] = WEIGHTS
) -> Tuned:
    """(q, lengths, weights) nDCG@10 of each query at each setting -> the one to serve."""
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
    chosen = SearchDefaults(mode=mode, weight=weight, passage_tokens=lengths[length] if weight else None)
    return Tuned(chosen, found, len(ndcg10))


def _clearly_best(ndcg10: NDArray[np.float64]) -> int:
    """(q, n) figures -> the best of those that gain two standard errors over the first, or the first."""
    gained = ndcg10 - ndcg10[:, :1]
    means = np.where(gained.mean(axis=0) > 2 * _errors(gained), gained.mean(axis=0), 0.0)
    return int(means.argmax())


def _nearest(ndcg10: NDArray[np.float64], far: Sequence[float]) -> int:
    """(q, n) figures -> the least `far` of those that lose at most a standard error to the best."""
    lost = ndcg10[:, [ndcg10.mean(axis=0).argmax()]] - ndcg10
    alike = np.flatnonzero(lost.mean(axis=0) <= _errors(lost)).tolist()
    return min(alike, key=lambda at: (round(far[at], 6), at))


def _errors(differences: NDArray[np.float64]) -> NDArray[np.float64]:
    """(q, n) -> (n,) standard errors of the means; one query shows nothing."""
    count, width = differences.shape
    return differences.std(axis=0, ddof=1) / np.sqrt(count) if count > 1 else np.full(width, np.inf)


def by_collection(
    search: Collection, model: Scorable, settings: Callable[[str], Sequence[Setting]]
) -> Iterator[tuple[str, str, list[float]]]:
    """Each query with its collection, and its nDCG@10 at each of the collection's `settings`."""
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
            for query, (near, worded) in zip(part.queries, found, strict=True):
                relevant, figures = part.relevant[query], []
                for weight, tokens in queried:
                    nearest = near[lengths.index(tokens)] if weight else {}
                    ranked = fused(nearest, worded, weight, _DEPTH)
                    figures.append(judge([ids[at] for at in ranked], relevant)["ndcg10"])
                yield query, collection, figures


def modes(learned: SearchDefaults | None, mode: Mode | None) -> tuple[Setting, ...]:
    """The settings of dense search, of hybrid search, and of one that names no mode."""
    tokens = learned_tokens(learned)
    return Setting(1.0, tokens), Setting(get_weight(learned), tokens), get_setting(learned, mode)


def get_setting(learned: SearchDefaults | None, mode: Mode | None = None) -> Setting:
    """The setting of a search that names no mode; mode: the service's own for it."""
    mode = mode or (learned.mode if learned else "dense")
    weights = {"dense": 1.0, "hybrid": get_weight(learned), "lexical": 0.0}
    return Setting(weights[mode], learned_tokens(learned))

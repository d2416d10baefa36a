"""Compare rankings by cross-validation over judged queries. Start at `cross_validate` and `learn`.

    new questions           nearly equal queries, and queries that share an answer, are in the same fold
    questions as they come  folds are drawn by query, so answers recur as in a log

Each query is scored by a ranking that was fitted without that query. The ranking's memory has only training
queries.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.search.ranking import Ranking
from training.evaluation.paired import Interval
from training.evaluation.significance import of_mean
from training.ranking.examples import Example, build_memory, score_candidates
from training.ranking.fitting import (
    FOLDS,
    THRESHOLDS,
    Procedure,
    Weights,
    add_memory,
    can_boost,
    fit,
)

NEW, COMING = "new questions", "questions as they come"
LARGEST = 0.1  # Share of the queries that may be connected before folds are drawn by query.
SMALL = 10  # Queries that may be connected, even if they are a large share.

_MORE = 50  # Judged queries whose gain is predicted.
_SHARES, _SEEDS = (0.5, 0.75, 1.0), 3  # Of the judged queries and of the folds, for that.
_CHOOSING = 3  # Folds that choose a procedure, so that 400 queries take less than a minute.
LIKELY, CERTAIN = 0.8, 0.95  # Probabilities that an interval contains the true difference.

CANDIDATE_ORDER = Ranking(weights={})  # Gives all candidates the same score.

Fit = Callable[[Sequence[Example]], Ranking]
# By name: NEW and COMING.
Rows = Mapping[str, "Comparison"]
Folds = Mapping[str, Sequence["Fold"]]


class Comparison(NamedTuple):
    """Scores of the same queries by two orders, shape (q,) unless noted.

    Attributes:
        chance: Mean nDCG@10 of random orders of each query's candidates.
        before: nDCG@10 of each query by the first order.
        after: nDCG@10 by the second order.
        groups: Group of each query. Queries of one group are connected, so they are not independent.
        ranks: The position of the first relevant hit of each query by both orders, or 0, shape (q, 2).
        examples: The queries.
        hits: The candidates of each query by the second order, best first.
    """

    chance: NDArray[np.float64]
    before: NDArray[np.float64]
    after: NDArray[np.float64]
    groups: NDArray[np.int64]
    ranks: NDArray[np.int64]
    examples: Sequence[Example] = ()
    hits: Sequence[Sequence[str]] = ()

    @property
    def gain(self) -> float:
        return float(np.mean(self.after - self.before))

    @property
    def independent(self) -> int:
        """The number of independent queries."""
        return len(np.unique(self.groups))

    def interval(self, level: float = CERTAIN) -> Interval:
        return of_mean(self.before, self.after, level=level, groups=self.groups)


class Fold(NamedTuple):
    """A part of the queries, which a ranking that was fitted to the others scores.

    Attributes:
        train: The other queries.
        test: Positions of the queries of this part.
        ranking: The ranking. By default, the one that keeps the order of the candidates.
    """

    train: Sequence[Example]
    test: Sequence[int]
    ranking: Ranking = CANDIDATE_ORDER

    def fit(self, fit: Fit) -> Fold:
        """Returns the fold with a ranking that is fitted to its training queries."""
        return self._replace(ranking=fit(self.train))


def keep_order(_: Sequence[Example]) -> Ranking:
    """Returns a ranking that keeps the order of the candidates."""
    return CANDIDATE_ORDER


def cross_validate(examples: Sequence[Example], fit: Fit) -> Rows:
    """Compares a ranking with the order of the candidates, for both kinds of questions."""
    return compare_all(examples, fit_folds(examples, fit))


def fit_folds(examples: Sequence[Example], fit: Fit) -> Folds:
    """Draws folds for both kinds of questions, and fits a ranking in each."""
    folds = {name: [*draw_folds(examples, name)] for name in (NEW, COMING)}
    return change_all(folds, lambda fold: fold.fit(fit))


def change_all(folds: Folds, change: Callable[[Fold], Fold]) -> Folds:
    return {name: [*map(change, some)] for name, some in folds.items()}


def compare_all(examples: Sequence[Example], folds: Folds) -> Rows:
    """Calls `compare` for both kinds of questions."""
    return {name: compare(examples, some) for name, some in folds.items()}


def compare(examples: Sequence[Example], folds: Iterable[Fold]) -> Comparison:
    """Compares the rankings of folds with the order of the candidates.

    Args:
        examples: Judged queries. Only those that judge and have an answer are scored.
        folds: From `draw_folds`, with their rankings.
    """
    columns = np.zeros((3, len(examples)))
    ranks = np.zeros((len(examples), 2), np.int64)
    hits: dict[int, list[str]] = {}
    for fold in folds:
        memory = build_memory(fold.train)
        for at in fold.test:
            example = examples[at]
            if not (example.judges and example.relevant):
                continue
            hybrid, scores = np.zeros(len(example.ids)), score_candidates(example, fold.ranking, memory)
            if fold.ranking.reranker is not None:
                scores = example.rerank(scores, fold.ranking.reranker)
            columns[:, at] = example.chance, example.score(hybrid), example.score(scores)
            ranks[at] = example.rank(hybrid), example.rank(scores)
            hits[at] = [example.ids[place] for place in np.argsort(-scores, kind="stable").tolist()]
    scored = sorted(hits)
    chance, before, after = columns[:, scored]
    others = [examples[at] for at in scored], [hits[at] for at in scored]
    return Comparison(chance, before, after, _find_groups(examples)[scored], ranks[scored], *others)


def learn(
    examples: Sequence[Example],
    prior: Weights,
    mean_query: Sequence[float] | None = None,
    *,
    late: bool = False,
) -> Ranking:
    """Fits a ranking. Cross-validation within `examples` chooses its memory."""
    return fit(examples, prior, choose(examples, prior, late=late), mean_query)


def choose(examples: Sequence[Example], prior: Weights, *, late: bool = False) -> Procedure:
    """Chooses whether a ranking has a memory of its own, and from which nearness.

    All rankings have trees if LightGBM is installed, because with few queries, chance would choose between
    procedures (docs/decisions/ranking.md).
    """
    plain = partial(fit, prior=prior, procedure=Procedure(None, trees=False, late=late))

    def compare_memories(name: str) -> Iterator[Comparison]:
        folds = [fold.fit(plain) for fold in islice(draw_folds(examples, name), _CHOOSING)]
        before = compare(examples, folds).after
        for threshold in THRESHOLDS:
            remembering = [fold.fit(partial(add_memory, fold.ranking, threshold=threshold)) for fold in folds]
            yield compare(examples, remembering)._replace(before=before)

    found = zip(THRESHOLDS, compare_memories(COMING), compare_memories(NEW), strict=True)
    gains = {threshold: coming.gain for threshold, coming, new in found if pays(coming, new)}
    threshold = max(gains, key=gains.__getitem__, default=None)
    return Procedure(threshold, can_boost(), late=late)


def pays(coming: Comparison, new: Comparison) -> bool:
    """Returns whether memory gains on questions as they come, and does not lose on new ones, both likely."""
    return coming.interval(LIKELY).low > 0 and new.interval(LIKELY).high >= 0


def predict(examples: Sequence[Example], prior: Weights) -> str:
    """Returns a sentence about the gain by further judged queries, from a learning curve.

    Half, three quarters and all of the training queries are cross-validated. A line over the logarithm of
    their number is fitted to the gains, and continued. The fit is linear in the gains, so each query has its
    own prediction. Their mean has an interval by paired.py.
    """
    fitting = partial(fit, prior=prior, procedure=choose(examples, prior))
    gains = []
    for share in _SHARES:
        count = round(share * len(examples) * (FOLDS - 1) / FOLDS)
        drawn = [limit(draw_folds(examples, COMING, seed), count, seed) for seed in range(_SEEDS)]
        rows = [compare(examples, [fold.fit(fitting) for fold in folds]) for folds in drawn]
        gains.append(np.mean([row.after - row.before for row in rows], axis=0))
    logs = np.log(_SHARES) - np.mean(np.log(_SHARES))
    brings = logs @ np.array(gains) / (logs @ logs) * np.log1p(_MORE / len(examples))  # Of each query.
    if not len(brings):
        return "no judged query may judge, so nothing can be predicted."
    interval = of_mean(np.zeros(len(brings)), brings, level=LIKELY, groups=rows[0].groups)
    curve = " → ".join(f"{100 * float(gain.mean()):+.1f}" for gain in gains)
    mean, low, high = (f"{100 * float(each):+.1f}" for each in (brings.mean(), *interval))
    return (
        f"half, three quarters and all of the {len(examples):,} judged queries gain {curve} points of "
        f"nDCG@10. {_MORE} more may bring {mean} (between {low} and {high}). This is not certain: it "
        "continues a line."
    )


def limit(folds: Iterable[Fold], count: int, seed: int) -> Iterator[Fold]:
    """Yields the folds with at most `count` training queries, drawn at random."""
    random = np.random.default_rng(seed)
    for fold in folds:
        drawn = random.permutation(len(fold.train))[:count]
        yield fold._replace(train=[fold.train[at] for at in drawn])


def draw_folds(examples: Sequence[Example], name: str, seed: int = 0) -> Iterator[Fold]:
    """Draws five folds.

    With NEW, connected queries are in the same fold, and training queries lose the answers of test queries.
    """
    pieces = _find_groups(examples) if name == NEW else np.arange(len(examples))
    labels, number = np.unique(pieces, return_inverse=True)
    of_query = (np.random.default_rng(seed).permutation(len(labels)) % FOLDS)[number]
    for fold in range(FOLDS):
        test = np.flatnonzero(of_query == fold).tolist()
        train = [examples[at] for at in np.flatnonzero(of_query != fold).tolist()]
        if name == NEW:
            answers = {id for at in test for id in examples[at].relevant}
            train = [each.without(answers) for each in train]
        if test:
            yield Fold(train, test)


def _find_groups(examples: Sequence[Example]) -> NDArray[np.int64]:
    return find_groups([each.relevant for each in examples], [each.alike or each.query for each in examples])


def find_groups(answers: Sequence[Iterable[str]], alike: Sequence[str]) -> NDArray[np.int64]:
    """Returns the group of each query, shape (q,). Connected queries are in one group.

    Nearly equal queries are connected, and so are queries that share an answer. If a group has more than a
    tenth of all queries, it is divided: queries with the same answers and nearly equal queries stay together.
    The numbers of such divided groups are at least q.

    Args:
        answers: Ids of the relevant documents of each query.
        alike: A text for each query, the same for nearly equal queries.
    """
    groups = _connect([[*ids, (name,)] for ids, name in zip(answers, alike, strict=True)])
    pieces = _connect([[frozenset(ids), (name,)] for ids, name in zip(answers, alike, strict=True)])
    count = len(groups)
    large = np.bincount(groups, minlength=1) > max(SMALL, LARGEST * count)
    return np.where(large[groups], count + pieces, groups)


def _connect(links: Sequence[Sequence[Hashable]]) -> NDArray[np.int64]:
    """Returns a number for each query, shape (q,). Queries with a common link have the same number."""
    from scipy.cluster.hierarchy import DisjointSet  # noqa: PLC0415  a quarter of a second

    connected, first = DisjointSet(range(len(links))), dict[Hashable, int]()
    for at, some in enumerate(links):
        for link in some:
            connected.merge(at, first.setdefault(link, at))
    numbers: dict[int, int] = {}
    return np.array([numbers.setdefault(connected[at], len(numbers)) for at in range(len(links))], np.int64)

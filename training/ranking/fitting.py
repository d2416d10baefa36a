"""Fit a ranking to judged queries. Start at `fit`.

    judged queries ─▶ features, with memory of the other queries ─▶ linear model ─┬─▶ Ranking
                                                                 └─▶ trees ───────┘

The linear model minimizes the cross-entropy between the gains of a query's candidates, divided by their sum,
and the softmax of their scores (Cao et al. 2007, ListNet). If clicks judge a query, a candidate without a
gain weighs as much as the probability that users have examined it (Liang et al. 2016, "Modeling User Exposure
in Recommendation"). The weights of the model are pulled towards a prior. The trees are LambdaMART (Burges
2010) by LightGBM. No setting was chosen by the figures that are reported.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.search.features import FEATURES, MEMORY, NO_MEMORY, Features, Memory
from models.search.ranking import Ranking, Trees, get_default, standardize, standardize_late
from models.tokens.late import LATE
from training.ranking.examples import Example, build_memory, remember

log = logging.getLogger(__name__)

MIN_QUERIES = 20  # Judged queries. With fewer, the default ranking is better than an own one.
THRESHOLDS = (0.5, 0.7, 0.9)  # Nearness from which a judged query can be remembered.
FOLDS = 5
_STRENGTH = 3.0  # Of the pull towards the prior, divided by the number of queries.
_FEW = 150  # Below this number of queries, the trees are smaller.
_LABELS = 4  # The label of the most relevant document of a query.
_MEMORY = len(FEATURES) - len(MEMORY)

Weights = Mapping[str, float]


class Procedure(NamedTuple):
    """The choices of a fit.

    Attributes:
        threshold: Judged queries with a larger nearness (`Memory.recall`) are remembered, with learned
            weights. None: the memory of the prior.
        trees: Whether trees are added to the linear model.
        late: Whether the linear model and the trees use late interaction.
    """

    threshold: float | None
    trees: bool
    late: bool = False

    @classmethod
    def of(cls, ranking: Ranking) -> Procedure:
        """Returns the procedure by which a ranking was fitted, without trees if LightGBM is missing."""
        threshold = ranking.memory_threshold if ranking.memory_threshold in THRESHOLDS else None
        return cls(threshold, ranking.trees is not None and can_boost(), late=bool(ranking.late))


class _Learnable(NamedTuple):
    """The candidates of a query.

    Attributes:
        features: With memory, shape (n, f).
        scaled: Standardized, shape (n, f).
        late: Features of late interaction, standardized, shape (n, len(LATE)). 0 if unknown.
        gains: Shape (n,).
        weights: Weights in the loss, shape (n,), 1 for candidates with a gain.
    """

    features: Features
    scaled: Features
    late: Features
    gains: NDArray[np.float64]
    weights: NDArray[np.float64]

    @property
    def inputs(self) -> Features:
        """The inputs of the linear model without memory: `scaled`, then `late`."""
        return np.hstack([self.scaled[:, :_MEMORY], self.late])

    @property
    def given(self) -> NDArray[np.float64]:
        """Logarithms of the weights, which are added to the scores in the softmax, shape (n,)."""
        return np.log(np.maximum(self.weights, 1e-9))


def fit(
    examples: Sequence[Example],
    prior: Weights,
    procedure: Procedure,
    mean_query: Sequence[float] | None = None,
) -> Ranking:
    """Fits a ranking.

    Args:
        examples: The judged queries.
        prior: Weights that pull the fitted weights towards them.
        procedure: How to fit. `cross_validation.choose` chooses the memory.
        mean_query: The mean query by which the feature `hub` was computed. None: `hub` is 0 in `examples`,
            and the next ranking can use the mean of these queries.
    """
    rows = _learnable(examples)
    names = FEATURES[:_MEMORY] + (LATE if procedure.late else ())
    alone = [(row.inputs[:, : len(names)], row.gains, row.given) for row in rows]
    learned = fit_linear(alone, np.array([prior.get(name, 0.0) for name in names]))
    weights = {name: round(float(weight), 6) for name, weight in zip(names, learned, strict=True)}
    mean = np.mean([each.vector for each in examples], axis=0) if examples else np.zeros(0)
    own = [float(value) for value in mean / (np.linalg.norm(mean) or 1)]
    ranking = Ranking(
        weights=weights | {name: prior.get(name, 0.0) for name in MEMORY},
        trees=_fit_trees(rows, late=procedure.late) if procedure.trees and rows else None,
        mean_query=[*(mean_query or own)],
        memory_threshold=get_default().memory_threshold,
        queries=len(examples),
    )
    if procedure.threshold is None:
        return ranking
    return add_memory(ranking, examples, procedure.threshold)


def add_memory(ranking: Ranking, examples: Sequence[Example], threshold: float) -> Ranking:
    """Returns a ranking with a memory of its own.

    Memory is learned on top of the linear model. So a new question, which recalls nothing, has the same order
    as without memory.

    Args:
        ranking: A ranking with the memory of the prior.
        examples: The judged queries to which it was fitted.
        threshold: Judged queries with a larger nearness are remembered.
    """
    weights = np.array([ranking.weights.get(name, 0.0) for name in (*FEATURES, *LATE)])
    others = np.append(weights[:_MEMORY], weights[len(FEATURES) :])
    rows = [
        (row.scaled[:, _MEMORY:], row.gains, row.inputs @ others + row.given)
        for row in _learnable(examples, build_memory(examples), threshold)
    ]
    learned = [round(float(weight), 6) for weight in fit_linear(rows, weights[_MEMORY : len(FEATURES)])]
    remembering = ranking.weights | dict(zip(MEMORY, learned, strict=True))
    return ranking.model_copy(update={"weights": remembering, "memory_threshold": threshold})


def _learnable(
    examples: Sequence[Example], memory: Memory = NO_MEMORY, threshold: float = 0.0
) -> list[_Learnable]:
    """Returns the candidates of each query with a gain.

    A query recalls neither itself nor the queries of its fold.

    Args:
        examples: The queries.
        memory: Memory of these queries.
        threshold: Threshold for `remember`.
    """
    folds = [frozenset(range(fold, len(examples), FOLDS)) for fold in range(FOLDS)]
    rows = []
    for at, example in enumerate(examples):
        if not example.gains.any():
            continue
        features = remember(example, memory, threshold, folds[at % FOLDS])
        late = np.full((len(features), len(LATE)), np.nan) if example.late is None else example.late
        scaled = standardize(features), standardize_late(late)
        rows.append(_Learnable(features, *scaled, example.gains, example.weights))
    return rows


def fit_linear(
    rows: Sequence[tuple[Features, NDArray[np.float64], NDArray[np.float64]]],
    prior: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Returns the weights of the linear model, shape (f,).

    Args:
        rows: Three arrays for each query: standardized features, shape (n, f), gains, shape (n,), at least
            one above 0, and scores, shape (n,), to which the scores of the model are added.
        prior: Weights with which the search begins, and towards which the result is pulled, shape (f,).
    """
    from scipy.optimize import minimize  # noqa: PLC0415  a second
    from scipy.special import log_softmax, softmax  # noqa: PLC0415

    if not rows:
        return prior
    width = max(len(gains) for _, gains, _ in rows)
    inputs = np.zeros((len(rows), width, len(prior)))
    targets, given = np.zeros((len(rows), width)), np.full((len(rows), width), -np.inf)
    for row, (features, gains, scores) in enumerate(rows):
        inputs[row, : len(gains)] = features
        targets[row, : len(gains)] = gains / gains.sum()
        given[row, : len(gains)] = scores
    flat = inputs.reshape(-1, len(prior))

    def loss(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        scores = (flat @ weights).reshape(given.shape) + given
        logarithms = np.where(targets > 0, log_softmax(scores, axis=1), 0)
        slopes = (softmax(scores, axis=1) - targets).ravel() @ flat
        pull = weights - prior
        strength = _STRENGTH / len(rows)
        value = -float((targets * logarithms).sum()) / len(rows) + strength * float(pull @ pull)
        return value, slopes / len(rows) + 2 * strength * pull

    found: NDArray[np.float64] = minimize(loss, prior, jac=True, method="L-BFGS-B").x
    return found


@cache
def can_boost() -> bool:
    """Returns whether LightGBM can be loaded. Its package needs the system's library libgomp."""
    try:
        import lightgbm  # noqa: F401, PLC0415
    except (ImportError, OSError) as error:
        log.warning("Rankings are learned without trees: LightGBM cannot be loaded (%s).", error)
        return False
    return True


def _fit_trees(rows: Sequence[_Learnable], *, late: bool) -> Trees:
    """Returns trees that do not use the features of memory."""
    seen = np.arange(len(FEATURES)) < _MEMORY
    inputs = [np.hstack([row.features * seen, row.scaled * seen, row.late * late]) for row in rows]
    return convert(boost([(each, row.gains, row.weights) for each, row in zip(inputs, rows, strict=True)]))


def boost(rows: Sequence[tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]]) -> Any:
    """Returns LightGBM's model of LambdaMART trees.

    Args:
        rows: For each query: the inputs of `Trees.score`, gains, and weights, shape (n,).
    """
    import lightgbm  # noqa: PLC0415  half a second

    few = len(rows) < _FEW
    settings = {
        "objective": "lambdarank",
        "learning_rate": 0.05,
        "num_leaves": 4 if few else 7,
        "min_data_in_leaf": 30,
        "feature_fraction": 0.7,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "lambda_l2": 5,
        "lambdarank_truncation_level": 15,
        "max_bin": 63,
        "label_gain": [*range(_LABELS + 1)],
        "num_threads": 1,
        "deterministic": True,
        "seed": 0,
        "verbose": -1,
    }
    labels = np.concatenate([np.rint(_LABELS * gains / gains.max()) for _, gains, _ in rows])
    inputs, weights = (np.concatenate([row[at] for row in rows]) for at in (0, 2))
    groups = [len(gains) for _, gains, _ in rows]
    data = lightgbm.Dataset(inputs, labels, group=groups, weight=weights)
    return lightgbm.train(settings, data, num_boost_round=60 if few else 120)


def convert(model: Any) -> Trees:
    """Returns the trees of a LightGBM model as plain arrays."""
    nodes: list[list[Any]] = []  # feature, threshold, left, right, value
    roots = [_add(tree["tree_structure"], nodes) for tree in model.dump_model()["tree_info"]]
    feature, threshold, left, right, value = (list(column) for column in zip(*nodes, strict=True))
    return Trees(roots=roots, feature=feature, threshold=threshold, left=left, right=right, value=value)


def _add(node: Mapping[str, Any], nodes: list[list[Any]]) -> int:
    """Adds a node and its children to `nodes`. Returns the position of the node."""
    at = len(nodes)
    nodes.append([0, 0.0, at, at, node.get("leaf_value", 0.0)])
    if "split_feature" in node:
        nodes[at][:2] = node["split_feature"], node["threshold"]
        nodes[at][2] = _add(node["left_child"], nodes)
        nodes[at][3] = _add(node["right_child"], nodes)
    return at

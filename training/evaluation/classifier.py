"""Logistic regression on frozen features: fitted to its optimum, its l2 chosen on held-out examples.

Over a matrix W (d, C) and a free bias b (C,) it minimises

    mean over examples of -log softmax(x W + b)[label]  +  l2 / 2 · |W|²

to which Adam with weight decay l2 converges too, if it is not stopped early. All training sets of a
cross-validation are fitted together: they differ only in which examples take part, so that a step for all of
them is two products of matrices. scipy's L-BFGS ends at a loss that is less than 1e-9 above the least one.

Not here: which sets there are, and which examples train or test (transfer.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]  # (n,), from 0 to C - 1

# The span of SentEval's weight decay, in half decades (Conneau & Kiela 2018). Strongest first: a fit starts
# from the one before, and of equally good ones the strongest is taken.
L2 = tuple(10 ** (-exponent / 2) for exponent in range(4, 11))
FOLDS = 10
SEED = 1111
# The relative gain of a step and the steepest slope at which a fit ends; 20 steps are remembered.
_END = {"ftol": 1e-14, "gtol": 1e-7, "maxcor": 20, "maxiter": 10_000, "maxfun": 10_000}


class Classifier(NamedTuple):
    basis: Basis
    weights: Floats  # (d + 1, C), the bias last
    l2: float
    accuracy: float  # on the held-out examples that chose l2

    def predict(self, x: Floats) -> Labels:
        """(n, d) -> (n,)."""
        predicted: Labels = np.argmax(self.basis.features(x) @ self.weights, axis=1)
        return predicted


class Basis(NamedTuple):
    """Features along principal directions from their mean, and 1 as the last one, for the bias.

    Neither moving nor turning changes what is predicted, since the bias is free and |W|² is the same in any
    direction; but it leaves L-BFGS little to do. One factor for all brings the mean squared
    distance from the mean to 1: l2 then means the same whatever length a model gives its vectors.
    """

    mean: Floats  # (d,)
    axes: Floats  # (d, d)

    @classmethod
    def of(cls, x: Floats) -> Basis:
        mean = x.mean(axis=0)
        spread, directions = np.linalg.eigh((x - mean).T @ (x - mean) / len(x))
        return cls(mean, directions / np.sqrt(max(spread.sum(), np.finfo(float).tiny)))

    def features(self, x: Floats) -> Floats:
        """(n, d) -> (n, d + 1)."""
        return np.hstack([(x - self.mean) @ self.axes, np.ones((len(x), 1))])


def stratified(labels: Labels, folds: int = FOLDS, seed: int = SEED) -> Labels:
    """The fold of each example, from 0. Folds differ by at most 1 in size, and in how many have a label."""
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    fold = np.empty(len(labels), np.int64)
    fold[order] = np.arange(len(labels)) % folds
    return fold


def fit_by_folds(x: Floats, labels: Labels, classes: int) -> Classifier:
    """(n, d), (n,) -> fitted to all examples, with the l2 that predicts best across stratified folds."""
    basis = Basis.of(x)
    features = basis.features(x)
    fold = stratified(labels)
    parts = np.column_stack([*(fold != held for held in range(FOLDS)), np.ones(len(fold), bool)])

    def accuracy(weights: Floats) -> float:
        right = 0
        for held in range(FOLDS):
            among = fold == held
            predicted = np.argmax(features[among] @ weights[:, held], axis=1)
            right += int((predicted == labels[among]).sum())
        return right / len(labels)

    return _best(basis, Loss(features, labels, classes, parts), accuracy)


def fit_by_dev(x: Floats, labels: Labels, classes: int, dev: Floats, dev_labels: Labels) -> Classifier:
    """(n, d), (n,) -> fitted to them, with the l2 that predicts best on (m, d), (m,)."""
    basis = Basis.of(x)
    features = basis.features(dev)

    def accuracy(weights: Floats) -> float:
        return float((np.argmax(features @ weights[:, -1], axis=1) == dev_labels).mean())

    everyone = np.ones((len(labels), 1), bool)
    return _best(basis, Loss(basis.features(x), labels, classes, everyone), accuracy)


def _best(basis: Basis, loss: Loss, accuracy: Callable[[Floats], float]) -> Classifier:
    weights = loss.zeros()
    best = Classifier(basis, weights[:, -1], 0.0, -1.0)
    for l2 in L2:
        weights = minimum(loss, l2, weights)
        found = accuracy(weights)
        if found > best.accuracy:
            best = Classifier(basis, weights[:, -1], l2, found)
    return best


class Loss:
    """The mean loss of m training sets at once: (n, p) features, (n,) labels, (n, m) who takes part.

    Weights and what is shaped like them are (p, m, C); logits and probabilities are (n, m, C).
    """

    def __init__(self, features: Floats, labels: Labels, classes: int, parts: NDArray[np.bool_]) -> None:
        self._x = features
        self._share = (parts / parts.sum(axis=0))[:, :, None]
        self._target = np.eye(classes)[labels][:, None, :]
        self.shape = (features.shape[1], parts.shape[1], classes)
        self.penalised = np.ones((features.shape[1], 1, 1))  # the bias, which comes last, is not
        self.penalised[-1] = 0
        self.spread = (features**2).mean(axis=0)[:, None, None]

    def zeros(self) -> Floats:
        return np.zeros(self.shape)

    def at(self, weights: Floats, l2: float) -> tuple[float, Floats]:
        """The sum of the sets' losses with their penalties, and its gradient."""
        logits = (self._x @ weights.reshape(len(weights), -1)).reshape(-1, *self.shape[1:])
        logits -= logits.max(axis=2, keepdims=True)
        probabilities = np.exp(logits)
        total = probabilities.sum(axis=2, keepdims=True)
        each = np.log(total) - (logits * self._target).sum(axis=2, keepdims=True)
        wrong = self._share * (probabilities / total - self._target)
        decayed = l2 * self.penalised * weights
        value = float((self._share * each).sum() + (decayed * weights).sum() / 2)
        return value, (self._x.T @ wrong.reshape(len(wrong), -1)).reshape(self.shape) + decayed


def minimum(loss: Loss, l2: float, start: Floats) -> Floats:
    """Each training set's weights at the least loss, from weights that may be anything: it is convex."""
    # In units of the curvature where all weights are 0, the loss bends alike in every direction.
    scale = 1 / np.sqrt(loss.spread / 4 + l2 * loss.penalised)

    def scaled(flat: Floats) -> tuple[float, Floats]:
        value, gradient = loss.at(flat.reshape(loss.shape) * scale, l2)
        return value, (gradient * scale).ravel()

    found = minimize(scaled, (start / scale).ravel(), jac=True, method="L-BFGS-B", options=_END)
    weights: Floats = found.x.reshape(loss.shape) * scale
    return weights

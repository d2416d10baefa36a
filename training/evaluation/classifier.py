"""Logistic regression on frozen features: fitted to its optimum, its l2 chosen on held-out examples.

Over a matrix W (d, C) and a free bias b (C,) it minimises

    mean over examples of -log softmax(x W + b)[label]  +  l2 / 2 · |W|²

to which Adam with weight decay l2 converges too, if it is not stopped early. All training sets of a
cross-validation are fitted together: they differ only in which examples take part, so that a step for all of
them is two products of matrices. Newton's method, its steps by conjugate gradients (Nocedal & Wright,
Numerical Optimization, 7.1), is exact up to a loss that is below 1e-9 above the least one.

Which sets there are, and which examples train or test, is not known here (transfer.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]  # (n,), from 0 to C - 1

# The span of SentEval's weight decay, in half decades (Conneau & Kiela 2018). Strongest first: a fit starts
# from the one before, and of equally good ones the strongest is taken.
L2 = tuple(10 ** (-exponent / 2) for exponent in range(4, 11))
FOLDS = 10
SEED = 1111
_SMALL = 1e-9  # nats: what another step would gain
_ROUGH = 0.1  # of the gradient may be left when a step's direction is good enough
_ROUNDING = 1e-20  # a gradient whose scaled square is below this has no direction


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
    direction; but it leaves conjugate gradients little to do. One factor for all brings the mean squared
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
        self._transposed = np.ascontiguousarray(features.T)
        self._squares = self._transposed**2
        self._share = (parts / parts.sum(axis=0))[:, :, None]
        self._target = np.eye(classes)[labels][:, None, :]
        self._shape = (features.shape[1], parts.shape[1], classes)
        self.penalised = np.ones((features.shape[1], 1, 1))  # the bias, which comes last, is not
        self.penalised[-1] = 0

    def zeros(self) -> Floats:
        return np.zeros(self._shape)

    def logits(self, weights: Floats) -> Floats:
        _, sets, classes = self._shape
        return (self._x @ weights.reshape(len(weights), -1)).reshape(-1, sets, classes)

    def value(self, logits: Floats) -> tuple[Floats, Floats]:
        """(m,) losses without the penalty, and the probabilities."""
        shifted = logits - logits.max(axis=2, keepdims=True)
        probabilities = np.exp(shifted)
        total = probabilities.sum(axis=2, keepdims=True)
        each = np.log(total) - (shifted * self._target).sum(axis=2, keepdims=True)
        return (self._share * each).sum(axis=(0, 2)), probabilities / total

    def gradient(self, probabilities: Floats) -> Floats:
        return self._back(self._transposed, self._share * (probabilities - self._target))

    def diagonal(self, probabilities: Floats) -> Floats:
        """The diagonal of the second derivative."""
        return self._back(self._squares, self._share * probabilities * (1 - probabilities))

    def curvature(self, probabilities: Floats, change: Floats) -> Floats:
        """The second derivative times a direction, given as the change of the logits that it makes."""
        apart = change - (probabilities * change).sum(axis=2, keepdims=True)
        return self._back(self._transposed, self._share * probabilities * apart)

    def _back(self, features: Floats, weighted: Floats) -> Floats:
        return (features @ weighted.reshape(len(weighted), -1)).reshape(self._shape)


def minimum(loss: Loss, l2: float, start: Floats) -> Floats:
    """Each training set's weights at the least loss, from weights that may be anything: it is convex."""
    penalty = l2 * loss.penalised
    weights, logits = start, loss.logits(start)
    value, probabilities = loss.value(logits)
    value += _penalty(penalty, weights)
    searching = np.ones(len(value), bool)
    while searching.any():
        gradient = loss.gradient(probabilities) + penalty * weights
        direction, change = _direction(loss, penalty, probabilities, gradient, searching)
        gain = -_dot(gradient, direction)
        step = searching.astype(float)
        while True:
            tried = weights + _each(step) * direction
            tried_logits = logits + _each(step) * change
            tried_value, probabilities = loss.value(tried_logits)
            tried_value += _penalty(penalty, tried)
            too_far = tried_value > value - 1e-4 * step * gain + 1e-3 * _SMALL  # rounding is no rise
            if not too_far.any():
                break
            step = np.where(too_far, step / 2, step)
        weights, logits, value = tried, tried_logits, tried_value
        searching &= gain > _SMALL
    return weights


def _direction(
    loss: Loss, penalty: Floats, probabilities: Floats, gradient: Floats, searching: NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """Newton's, roughly, by conjugate gradients scaled by the diagonal; and how it moves the logits."""
    scale = loss.diagonal(probabilities) + penalty + np.finfo(float).tiny
    found = np.zeros_like(gradient)
    change = np.zeros_like(probabilities)
    left = -gradient
    towards = left / scale
    size = _dot(left, towards)
    enough = np.maximum(_ROUGH**2 * size, _ROUNDING)
    while (moving := searching & (size > enough)).any():
        along = loss.logits(towards)
        bent = loss.curvature(probabilities, along) + penalty * towards
        length = _each(np.divide(size, _dot(towards, bent), out=np.zeros_like(size), where=moving))
        found += length * towards
        change += length * along
        left -= length * bent
        scaled = left / scale
        now = _dot(left, scaled)
        towards = scaled + _each(np.divide(now, size, out=np.zeros_like(size), where=moving)) * towards
        size = now
    return found, change


def _penalty(penalty: Floats, weights: Floats) -> Floats:
    return _dot(penalty * weights, weights) / 2


def _dot(a: Floats, b: Floats) -> Floats:
    """(p, m, C) twice -> (m,)."""
    dot: Floats = np.einsum("pmc,pmc->m", a, b)
    return dot


def _each(of_set: Floats) -> Floats:
    """(m,) -> what multiplies (·, m, C)."""
    return of_set[None, :, None]

"""The classifier, against the written-out loss minimised by somebody else, and folds that can be counted."""

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from training.evaluation.classifier import (
    FOLDS,
    L2,
    Basis,
    Classifier,
    Floats,
    Labels,
    Loss,
    fit_by_dev,
    fit_by_folds,
    minimum,
    stratified,
)


def noisy(n: int, d: int, classes: int, *, seed: int = 0, mean: float = 0) -> tuple[Floats, Labels]:
    """Features of unlike spread, and labels that follow them in part."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(n, d)) * np.geomspace(1, 0.1, d)
    labels = np.argmax(x @ generator.normal(size=(d, classes)) + generator.gumbel(size=(n, classes)), axis=1)
    return x + mean, labels


def unit(x: Floats) -> Floats:
    """With a mean squared distance from the mean of 1: neither moved nor turned."""
    scaled: Floats = x / np.sqrt(((x - x.mean(0)) ** 2).sum(1).mean())
    return scaled


def reference(x: Floats, labels: Labels, classes: int, l2: float) -> tuple[float, Floats, Floats]:
    """The least loss, and the weights and biases there."""
    n, d = x.shape

    def loss(flat: Floats) -> tuple[float, Floats]:
        weights, bias = flat[: d * classes].reshape(d, classes), flat[d * classes :]
        logits = x @ weights + bias
        wrong = (softmax(logits, axis=1) - np.eye(classes)[labels]) / n
        value = -log_softmax(logits, axis=1)[range(n), labels].mean() + l2 / 2 * (weights**2).sum()
        return value, np.concatenate([(x.T @ wrong + l2 * weights).ravel(), wrong.sum(0)])

    options = {"maxiter": 100_000, "maxfun": 100_000, "ftol": 1e-15, "gtol": 1e-8, "maxcor": 50}
    found = minimize(loss, np.zeros((d + 1) * classes), jac=True, method="L-BFGS-B", options=options)
    return float(found.fun), found.x[: d * classes].reshape(d, classes), found.x[d * classes :]


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("l2", [L2[0], L2[-1]])
def test_every_training_set_is_fitted_to_the_least_loss(classes: int, l2: float) -> None:
    x, labels = noisy(150, 6, classes, mean=3)
    parts = np.column_stack([np.arange(150) % 3 != 0, np.arange(150) < 90, np.ones(150, bool)])
    features = Basis.of(x).features(x)
    loss = Loss(features, labels, classes, parts)
    weights = minimum(loss, l2, loss.zeros())
    for at, part in enumerate(parts.T):
        least, expected, bias = reference(unit(x)[part], labels[part], classes, l2)
        logits = features[part] @ weights[:, at]
        found = -log_softmax(logits, axis=1)[range(part.sum()), labels[part]].mean()
        found += l2 / 2 * (weights[:-1, at] ** 2).sum()
        assert found == pytest.approx(least, abs=1e-9)
        # The features were moved and turned, which must not change what the classifier says.
        probabilities = softmax(unit(x)[part] @ expected + bias, axis=1)
        assert softmax(logits, axis=1) == pytest.approx(probabilities, abs=2e-4)


def test_two_points_have_the_weights_worked_out_by_hand() -> None:
    # At -1 and 1 the logits differ by 2a for weights -a and a: the derivative of log(1 + exp(-2a)) + l2 a²
    # is 0 where a (1 + exp(2a)) = 1 / l2, so a is 1 for this l2.
    loss = Loss(np.array([[-1.0, 1], [1, 1]]), np.array([0, 1]), 2, np.ones((2, 1), bool))
    weights = minimum(loss, 1 / (1 + math.exp(2)), loss.zeros())
    assert weights[:, 0] == pytest.approx(np.array([[-1, 1], [0, 0]]), abs=1e-5)


def test_the_start_does_not_matter_not_even_one_from_which_a_whole_step_leads_away() -> None:
    x, labels = noisy(60, 4, 2)
    loss = Loss(Basis.of(x).features(x), labels, 2, np.ones((60, 1), bool))
    far = 30 * np.random.default_rng(1).normal(size=loss.zeros().shape)
    found, expected = (minimum(loss, L2[-1], start)[:-1] for start in (far, loss.zeros()))
    assert found == pytest.approx(expected, abs=0.01 * np.abs(expected).max())


def test_the_l2_is_the_one_that_predicts_best_across_folds() -> None:
    x, labels = noisy(120, 10, 3, seed=4)
    fold = stratified(labels)
    accuracies = []
    for l2 in L2:
        right = 0
        for held in range(FOLDS):
            _, weights, bias = reference(unit(x)[fold != held], labels[fold != held], 3, l2)
            predicted = np.argmax(unit(x)[fold == held] @ weights + bias, axis=1)
            right += int((predicted == labels[fold == held]).sum())
        accuracies.append(right / len(labels))
    assert len(set(accuracies)) > 2
    found = fit_by_folds(x, labels, 3)
    assert found.accuracy == max(accuracies)
    assert found.l2 == L2[int(np.argmax(accuracies))]
    _, weights, bias = reference(unit(x), labels, 3, found.l2)
    assert np.array_equal(found.predict(x), np.argmax(unit(x) @ weights + bias, axis=1))


def test_the_l2_is_the_one_that_predicts_dev_best() -> None:
    x, labels = noisy(60, 12, 2, seed=2)
    dev, dev_labels = noisy(500, 12, 2, seed=2)
    scale = unit(x)[0, 0] / x[0, 0]
    accuracies = []
    for l2 in L2:
        _, weights, bias = reference(unit(x), labels, 2, l2)
        accuracies.append((np.argmax(dev * scale @ weights + bias, axis=1) == dev_labels).mean())
    assert len(set(accuracies)) > 2
    found = fit_by_dev(x, labels, 2, dev, dev_labels)
    assert (found.l2, found.accuracy) == (L2[int(np.argmax(accuracies))], max(accuracies))


def test_what_is_separable_is_learned_and_among_equals_the_strongest_l2_is_taken() -> None:
    labels = np.arange(30) % 3
    x = 10 * np.eye(3)[labels] + np.random.default_rng(0).normal(size=(30, 3))
    found = fit_by_folds(x, labels, 3)
    assert (found.accuracy, found.l2) == (1, max(L2))
    assert np.array_equal(found.predict(10 * np.eye(3)), [0, 1, 2])


def test_neither_the_vectors_length_nor_their_place_changes_anything() -> None:
    x, labels = noisy(100, 5, 2)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))[0]
    moved = 1000 * x @ turn - 70
    one, other = fit_by_folds(x, labels, 2), fit_by_folds(moved, labels, 2)
    assert (one.l2, one.accuracy) == (other.l2, other.accuracy)
    assert np.array_equal(one.predict(x), other.predict(moved))


def test_a_label_that_a_training_set_lacks_is_never_predicted_by_it() -> None:
    x, labels = noisy(60, 4, 3)
    features = Basis.of(x).features(x)
    loss = Loss(features, labels, 3, (labels != 2)[:, None])
    weights = minimum(loss, L2[0], loss.zeros())
    assert np.isfinite(weights).all()
    assert set(np.argmax(features @ weights[:, 0], axis=1)) == {0, 1}


def test_one_vector_for_everything_gives_the_commonest_label() -> None:
    found: Classifier = fit_by_folds(np.ones((50, 3)), np.arange(50) % 5 // 3, 2)
    assert found.accuracy == 0.6
    assert not found.predict(np.ones((4, 3))).any()


@pytest.mark.parametrize("sizes", [(100, 100), (57, 33, 12, 1), (9, 4)])
def test_folds_share_out_each_label_and_are_the_same_every_time(sizes: tuple[int, ...]) -> None:
    labels = np.random.default_rng(3).permutation(np.repeat(np.arange(len(sizes)), sizes))
    fold = stratified(labels)
    assert np.array_equal(fold, stratified(labels))
    assert not np.array_equal(fold, stratified(labels, seed=1112))
    for among in (np.ones(len(labels), bool), *(labels == label for label in range(len(sizes)))):
        counts = np.bincount(fold[among], minlength=FOLDS)
        assert len(counts) == FOLDS
        assert counts.max() - counts.min() <= 1


def test_folds_are_shuffled() -> None:
    fold = stratified(np.zeros(200, np.int64))
    assert len(set(itertools.pairwise(fold))) > 60  # of 100 pairs of neighbours; in turn, there would be 10

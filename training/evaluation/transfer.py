"""Transfer and clustering: test if the classes of labeled sentences can be predicted from their vectors.

`transfer` fits a logistic regression to the vectors, with the protocols of SentEval (Conneau & Kiela 2018):

    MR CR SUBJ MPQA    ten stratified folds, each predicted from the other nine; l2 is chosen by ten folds
                       within the nine
    TREC MRPC          l2 chosen by ten stratified folds of train; scored on test
    SST2 SICK-E        l2 chosen on dev; scored on test

Here l2 is the strength of the regularization. The features of MRPC and SICK-E are [|u - v|; u * v] of the two
vectors u and v. Vectors are not normalized, except by the model. There are four differences from SentEval:
the folds, a fit to the optimum instead of Adam with early stopping, no penalty on the bias, and a last fit on
all training examples. l2 applies to features that are scaled to a total variance of 1. Accuracies may differ
from SentEval by some tenths of a point.

`clustering` compares k-means clusters with the classes, as is usual for short texts (Xu et al. 2017; Zhang et
al. 2021, PairSupCon). Each cluster gets its own class, for the best accuracy (Kuhn 1955).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.progress import Say, counted, silent
from training.evaluation.encoding import Encode
from training.evaluation.geometry import directions
from training.evaluation.sts import Floats
from training.evaluation.tasks import Examples, Task

Labels = NDArray[np.int64]  # (n,), from 0 to the number of classes - 1

# The range of SentEval's weight decay in half decades. The strongest comes first and wins ties.
L2 = tuple(10 ** (-exponent / 2) for exponent in range(4, 11))
FOLDS = 10
STARTS = 10  # runs of k-means; our choice
_SEED = 1111
_ITERATIONS = 1000  # maximum steps of Newton's method; about ten are enough

_NESTED = f"nested {FOLDS}-fold cross-validation"
_FOLDS = f"l2 by {FOLDS}-fold cross-validation on train, scored on test"
_DEV = "l2 by dev, scored on test"


class Classifier(NamedTuple):
    """A fitted logistic regression."""

    model: Any  # sklearn's LogisticRegressionCV
    mean: Floats  # (d,), of the training features
    scale: float  # factor for the features minus the mean
    l2: float
    accuracy: float  # on the held-out examples that chose l2

    def predict(self, x: Floats) -> Labels:
        """Predicts the labels, shape (n,), of features of shape (n, d)."""
        predicted: Labels = self.model.predict((x - self.mean) * self.scale)
        return predicted


def transfer(task: Task, encode: Encode, say: Say = silent) -> dict[str, Any]:
    """Fits a linear classifier to the vectors of a task's sentences. Returns accuracy and other figures."""
    from sklearn.metrics import f1_score  # noqa: PLC0415  its import takes a second

    say(f"fitting classifiers for {task.title}")
    features = {}
    undefined = 0
    for name, split in task.splits.items():
        features[name], missing = _features(split, encode)
        undefined += missing
    if "test" not in task.splits:
        protocol, tested = _NESTED, task.splits["all"]
        predicted, fitted = nested(features["all"], tested.labels, stratified(tested.labels))
    else:
        tested = task.splits["test"]
        given = features["train"], task.splits["train"].labels
        if "dev" in task.splits:
            protocol, one = _DEV, fit(*given, (features["dev"], task.splits["dev"].labels))
        else:
            protocol, one = _FOLDS, fit(*given)
        predicted, fitted = one.predict(features["test"]), [one]
    return {
        "accuracy": float((predicted == tested.labels).mean()),
        # Of the label 1; only for pairs of two classes.
        "f1": float(f1_score(tested.labels, predicted, zero_division=0))
        if len(tested.sides) == len(task.classes) == 2
        else None,
        "examples": len(tested.labels),  # predicted
        # On the held-out examples that chose l2. The mean if several classifiers were fitted.
        "dev": float(np.mean([each.accuracy for each in fitted])),
        "l2": [each.l2 for each in fitted],  # as chosen, for each classifier
        "undefined": undefined,  # examples with a vector that is not finite, which counts as 0
        "protocol": protocol,
        "remarks": task.remarks,  # reasons why the figure cannot be compared with others
    }


def nested(x: Floats, labels: Labels, fold: Labels) -> tuple[Labels, list[Classifier]]:
    """Cross-validates a classifier: fits one per fold, on the examples of all other folds.

    Args:
        x: Features, shape (n, d).
        labels: Labels, shape (n,).
        fold: Number of each example's fold, shape (n,).

    Returns:
        The predicted label of each example, shape (n,), and the classifiers.

    """
    predicted = np.empty_like(labels)
    fitted = []
    folds = int(fold.max()) + 1
    for held in counted(range(folds), "folds", folds, "fitting"):
        tested = fold == held
        fitted += [fit(x[~tested], labels[~tested])]
        predicted[tested] = fitted[-1].predict(x[tested])
    return predicted, fitted


def fit(x: Floats, labels: Labels, dev: tuple[Floats, Labels] | None = None) -> Classifier:
    """Fits a classifier with the l2 that predicts held-out examples best.

    Args:
        x: Features, shape (n, d).
        labels: Labels, shape (n,).
        dev: Features and labels of held-out examples. None means cross-validation within `x`.

    Returns:
        The classifier, fitted to all examples in `x`.

    """
    from sklearn.linear_model import LogisticRegressionCV  # noqa: PLC0415  its import takes a second
    from sklearn.model_selection import PredefinedSplit  # noqa: PLC0415
    from threadpoolctl import threadpool_limits  # noqa: PLC0415

    # l2 has the same meaning for vectors of any length if the mean squared distance from the mean is 1.
    mean, scale = x.mean(axis=0), float(1 / np.sqrt(max(x.var(axis=0).sum(), np.finfo(float).tiny)))
    # A softmax over two classes has half the penalty of the single weight vector that sklearn fits for them.
    halves = 2 if labels.max() < 2 else 1
    inverses = [halves / (l2 * len(x)) for l2 in L2]
    fold = stratified(labels)
    if dev:
        fold = np.repeat([-1, 0], [len(x), len(dev[0])])
        x, labels = np.vstack([x, dev[0]]), np.concatenate([labels, dev[1]])
    model = LogisticRegressionCV(
        Cs=inverses,
        l1_ratios=(0,),
        cv=PredefinedSplit(fold),
        scoring="accuracy",
        solver="newton-cg",
        max_iter=_ITERATIONS,
        refit=not dev,
        use_legacy_attributes=False,
    )
    # The products are small. Several threads would spend ten times as much time on waiting for each other.
    with threadpool_limits(1):
        model.fit((x - mean) * scale, labels)
    accuracies = model.scores_.mean(axis=(0, 1))
    return Classifier(model, mean, scale, L2[int(accuracies.argmax())], float(accuracies.max()))


def stratified(labels: Labels, seed: int = _SEED) -> Labels:
    """Assigns each example a fold, numbered from 0. Returns shape (n,).

    Folds differ by at most 1 in size and in the count of each label.
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    fold = np.empty(len(labels), np.int64)
    fold[order] = np.arange(len(labels)) % FOLDS
    return fold


def clustering(task: Task, encode: Encode, say: Say = silent) -> dict[str, Any]:
    """Clusters the sentences of all splits by k-means on unit vectors. Returns accuracy and counts."""
    from sklearn.cluster import KMeans  # noqa: PLC0415  its import takes a second

    say(f"clustering {task.title}")
    texts = [text for split in task.splits.values() for side in split.sides for text in side]
    labels = np.concatenate([split.labels for split in task.splits.values()])
    units = directions(encode(texts))
    undefined = int(np.isnan(units).any(axis=1).sum())  # vectors without a direction, which count as 0
    classes = len(task.classes)
    found = KMeans(classes, n_init=STARTS, random_state=_SEED).fit_predict(np.nan_to_num(units))
    accuracy = agreement(found, labels, classes)  # 1 / classes or a little more by chance
    return {"accuracy": accuracy, "classes": classes, "sentences": len(texts), "undefined": undefined}


def agreement(found: Labels, labels: Labels, classes: int) -> float:
    """Returns the accuracy of clusters as class labels, with the best assignment of clusters to classes."""
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415
    from sklearn.metrics import confusion_matrix  # noqa: PLC0415

    counts = confusion_matrix(labels, found, labels=np.arange(classes))
    return float(counts[linear_sum_assignment(counts, maximize=True)].sum() / len(labels))


def _features(split: Examples, encode: Encode) -> tuple[Floats, int]:
    """Encodes the examples of a split.

    Returns:
        The feature matrix, shape (n, d), or (n, 2 d) for pairs of sentences, and the number of examples with
        a vector that is not finite. Their features are 0.

    """
    sides = [encode(texts).astype(np.float64) for texts in split.sides]
    if len(sides) == 1:
        x = sides[0]
    else:
        left, right = sides
        x = np.hstack([np.abs(left - right), left * right])
    undefined = ~np.isfinite(x).all(axis=1)
    x[undefined] = 0
    return x, int(undefined.sum())

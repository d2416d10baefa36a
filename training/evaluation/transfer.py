"""Transfer: how well a linear classifier on frozen vectors tells sentiment, kinds of question, paraphrases.

After SentEval (Conneau & Kiela 2018), with its protocols:

    MR CR SUBJ MPQA    ten stratified folds; each is predicted by a classifier that was fitted to the other
                       nine, its l2 chosen by ten folds of those nine
    TREC MRPC          l2 chosen by ten stratified folds of train; test predicted
    SST2 SICK-E        l2 chosen on dev; test predicted

The features of MRPC and SICK-E are [|u - v|; u * v] of the two vectors u and v. Vectors are taken as the
model gives them, so of length 1 where it is served so. Other than SentEval: the folds are drawn by another
generator, the classifier is fitted to its optimum and not by Adam stopped early, its bias is not decayed, l2
counts from features of unit variance in total, and a last fit holds nothing back. Accuracies may differ by
some tenths of a point for that.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from models.words.progress import Say, counted, silent
from training.evaluation.classifier import (
    FOLDS,
    Classifier,
    Floats,
    Labels,
    fit_by_dev,
    fit_by_folds,
    stratified,
)
from training.evaluation.encoding import Encode
from training.evaluation.tasks import Examples, Task

_NESTED = f"nested {FOLDS}-fold cross-validation"
_FOLDS = f"l2 by {FOLDS}-fold cross-validation on train, scored on test"
_DEV = "l2 by dev, scored on test"


class Accuracy(NamedTuple):
    accuracy: float  # from 0 to 1
    f1: float | None  # of the label 1; only for pairs of two classes
    examples: int  # that were predicted
    dev: float  # accuracy on the held-out examples that chose l2, the mean where it was chosen more than once
    l2: list[float]  # as chosen, once for each classifier
    undefined: int  # predicted or trained on with a vector that was no number and counted as 0
    protocol: str
    remarks: list[str]  # what keeps the figure from being compared with others


def transfer(task: Task, encode: Encode, say: Say = silent) -> Accuracy:
    """Raise what `encode` raises."""
    say(f"fitting classifiers for {task.title}")
    classes = len(task.classes)
    features = {}
    undefined = 0
    for name, split in task.splits.items():
        features[name], missing = _features(split, encode)
        undefined += missing
    if "test" not in task.splits:
        protocol, tested = _NESTED, task.splits["all"]
        fold = stratified(tested.labels)
        predicted, fitted = nested(features["all"], tested.labels, classes, fold)
    else:
        tested = task.splits["test"]
        given = features["train"], task.splits["train"].labels, classes
        if "dev" in task.splits:
            protocol, one = _DEV, fit_by_dev(*given, features["dev"], task.splits["dev"].labels)
        else:
            protocol, one = _FOLDS, fit_by_folds(*given)
        predicted, fitted = one.predict(features["test"]), [one]
    return Accuracy(
        accuracy=float((predicted == tested.labels).mean()),
        f1=f1(predicted, tested.labels) if len(tested.sides) == 2 and classes == 2 else None,
        examples=len(tested.labels),
        dev=float(np.mean([each.accuracy for each in fitted])),
        l2=[each.l2 for each in fitted],
        undefined=undefined,
        protocol=protocol,
        remarks=task.remarks,
    )


def nested(x: Floats, labels: Labels, classes: int, fold: Labels) -> tuple[Labels, list[Classifier]]:
    """Each example's label as predicted without its fold, and the classifiers, by fold."""
    predicted = np.empty_like(labels)
    fitted = []
    folds = int(fold.max()) + 1
    for held in counted(range(folds), "folds", folds, "fitting"):
        tested = fold == held
        fitted += [fit_by_folds(x[~tested], labels[~tested], classes)]
        predicted[tested] = fitted[-1].predict(x[tested])
    return predicted, fitted


def f1(predicted: Labels, labels: Labels) -> float:
    """F1 of the label 1: 2 true / (2 true + false positives + false negatives), 0 where it never occurs."""
    true = int(((predicted == 1) & (labels == 1)).sum())
    either = int((predicted == 1).sum() + (labels == 1).sum())
    return 2 * true / either if either else 0.0


def _features(split: Examples, encode: Encode) -> tuple[Floats, int]:
    """(n, d), or (n, 2 d) for pairs; and for how many examples a vector was no number."""
    sides = [encode(texts).astype(np.float64) for texts in split.sides]
    if len(sides) == 1:
        x = sides[0]
    else:
        left, right = sides
        x = np.hstack([np.abs(left - right), left * right])
    undefined = ~np.isfinite(x).all(axis=1)
    x[undefined] = 0
    return x, int(undefined.sum())

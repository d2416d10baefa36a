"""Transfer: accuracies worked out by hand, and a test fold that nothing was chosen or fitted with."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from models.store import Store
from tests.evaldata import FOLDER, needs
from training.evaluation.classifier import L2, Labels, stratified
from training.evaluation.encoding import Vectors
from training.evaluation.tasks import Examples, Task, load
from training.evaluation.transfer import f1, nested, transfer


def encode(sentences: list[str]) -> Vectors:
    """A sentence is its vector, in figures."""
    return np.array([[float(figure) for figure in sentence.split()] for sentence in sentences], np.float32)


def split(rows: Sequence[tuple[int, *tuple[str, ...]]]) -> Examples:
    labels, *sides = zip(*rows, strict=True)
    return Examples(np.array(labels), tuple(list(side) for side in sides))


def task(**splits: Examples) -> Task:
    return Task("toy", "TOY", ("0", "1"), splits, ["a remark"])


LINE = [(int(at > 0), f"{at} 1") for at in (-5, -4, -3, -2, -1, 1, 2, 3, 4, 5)] * 3
# The last one is labelled wrongly, so three of four.
LINE_TEST = [(0, "-9 1"), (0, "-2 1"), (1, "2 1"), (0, "9 1")]


def test_train_and_test_are_scored_with_l2_by_folds() -> None:
    said: list[str] = []
    found = transfer(task(train=split(LINE), test=split(LINE_TEST)), encode, said.append)
    assert (found.accuracy, found.f1, found.examples, found.dev) == (0.75, None, 4, 1)
    assert found.l2 == [max(L2)]
    assert found.protocol == "l2 by 10-fold cross-validation on train, scored on test"
    assert found.remarks == ["a remark"]
    assert said == ["fitting classifiers for TOY"]


def test_a_dev_split_chooses_l2() -> None:
    dev = split([(0, "-3 1"), (1, "3 1"), (1, "-4 1"), (0, "-1 1"), (1, "5 1")])
    found = transfer(task(train=split(LINE), dev=dev, test=split(LINE_TEST)), encode)
    assert (found.accuracy, found.dev, found.examples) == (0.75, 0.8, 4)
    assert found.protocol == "l2 by dev, scored on test"


def test_without_a_test_split_every_example_is_predicted_once() -> None:
    # 2 of 32 examples sit where the other label is, and each is predicted without itself.
    wrong = [(1, "-2.5 1"), (0, "2.5 1")]
    found = transfer(task(all=split(LINE + wrong)), encode)
    assert (found.accuracy, found.examples) == (30 / 32, 32)
    assert len(found.l2) == 10
    assert found.protocol == "nested 10-fold cross-validation"


@pytest.mark.parametrize(
    ("alike", "unlike", "tested"),
    [
        # Only |u - v| tells them apart, and not u - v, whose sign is the other one in the test.
        ([("1", "1"), ("4", "4")], [("1", "3"), ("3", "5")], [("3", "3"), ("3", "1")]),
        # Only u * v does: |u - v| is always 1.
        ([("7", "8"), ("9", "8")], [("0", "1"), ("2", "1")], [("8", "7"), ("1", "2")]),
    ],
    ids=["difference", "product"],
)
def test_pairs_are_told_apart_by_distance_and_product(
    alike: list[tuple[str, str]], unlike: list[tuple[str, str]], tested: list[tuple[str, str]]
) -> None:
    train = [(1, *pair) for pair in alike] * 10 + [(0, *pair) for pair in unlike] * 10
    found = transfer(
        task(train=split(train), test=split([(1, *tested[0]), (0, *tested[1]), (0, *tested[0])])), encode
    )
    # The third is predicted 1 and labelled 0: one true, one false positive, no false negative.
    assert (found.accuracy, found.f1) == pytest.approx((2 / 3, 2 / 3))


def test_f1_is_of_the_label_1() -> None:
    predicted, labels = np.array([1, 1, 1, 0, 0, 0]), np.array([1, 1, 0, 1, 0, 0])
    assert f1(predicted, labels) == pytest.approx(4 / 6)
    assert f1(np.zeros(3, np.int64), np.zeros(3, np.int64)) == 0
    assert f1(np.zeros(3, np.int64), np.ones(3, np.int64)) == 0


def test_a_vector_that_is_no_number_counts_as_0_and_is_told() -> None:
    found = transfer(task(train=split([*LINE, (0, "nan 1")]), test=split([*LINE_TEST, (1, "inf 0")])), encode)
    assert (found.undefined, found.examples, found.accuracy) == (2, 5, 0.6)
    assert found.dev > 0.9


def test_labels_of_the_test_fold_change_neither_what_is_chosen_nor_what_is_predicted() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 20))
    labels: Labels = (x[:, 0] + generator.normal(size=200) > 0).astype(np.int64)
    fold = stratified(labels)
    predicted, fitted = nested(x, labels, 2, fold)
    for held in (0, 7):
        turned = np.where(fold == held, 1 - labels, labels)
        again, refitted = nested(x, turned, 2, fold)
        assert np.array_equal(again[fold == held], predicted[fold == held])
        assert refitted[held].l2 == fitted[held].l2
        assert refitted[held].accuracy == fitted[held].accuracy
        assert np.array_equal(refitted[held].weights, fitted[held].weights)
        assert any(not np.array_equal(a.weights, b.weights) for a, b in zip(refitted, fitted, strict=True))


def test_vectors_of_the_test_fold_change_nothing_either() -> None:
    generator = np.random.default_rng(0)
    x, labels = generator.normal(size=(100, 10)), generator.integers(0, 2, 100)
    fold = stratified(labels)
    _, fitted = nested(x, labels, 2, fold)
    _, refitted = nested(np.where((fold == 3)[:, None], 50 * x + 9, x), labels, 2, fold)
    assert np.array_equal(refitted[3].weights, fitted[3].weights)
    assert not np.array_equal(refitted[4].weights, fitted[4].weights)


def test_labels_at_random_cannot_be_predicted() -> None:
    # The classifier can learn these by heart, so whatever leaked would show.
    generator = np.random.default_rng(1)
    x, labels = generator.normal(size=(200, 80)), np.arange(200) % 2
    predicted, fitted = nested(x, labels, 2, stratified(labels))
    assert (fitted[0].predict(x) == labels).mean() > 0.75
    assert abs((predicted == labels).mean() - 0.5) < 0.11  # three standard errors


@pytest.mark.long
@needs("trec")
def test_the_default_model_on_trec(default_models_dir: Path) -> None:
    store = Store(default_models_dir)
    encoder = store.open(store.versions()[0].version, threads=1)
    tasks, _ = load(FOLDER)
    found = transfer(tasks["trec"], lambda texts: encoder.encode(texts).vectors)
    assert found.examples == 500
    assert found.remarks == []
    assert found.accuracy == pytest.approx(0.904, abs=0.008)
    assert found.dev == pytest.approx(0.856, abs=0.003)

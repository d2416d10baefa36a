"""Transfer and clustering: known accuracies, and classifiers that never see the fold that tests them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from models.store import ModelStore
from tests.evaldata import FOLDER, needs
from tests.training.evaluation.pairs import write
from training.evaluation.encoding import Vectors
from training.evaluation.report.table import table
from training.evaluation.sts import Floats
from training.evaluation.suites import score
from training.evaluation.tasks import Examples, Task, load
from training.evaluation.transfer import (
    FOLDS,
    L2,
    Labels,
    agreement,
    fit,
    nested,
    stratified,
    transfer,
)


def encode(sentences: list[str]) -> Vectors:
    """Returns the vectors that the sentences name: `-5 1` is (-5, 1)."""
    return np.array([[float(figure) for figure in sentence.split()] for sentence in sentences], np.float32)


def split(rows: Sequence[tuple[int, *tuple[str, ...]]]) -> Examples:
    labels, *sides = zip(*rows, strict=True)
    return Examples(np.array(labels), tuple(list(side) for side in sides))


def task(**splits: Examples) -> Task:
    return Task("TOY", ("0", "1"), splits, ["a remark"])


LINE = [(int(at > 0), f"{at} 1") for at in (-5, -4, -3, -2, -1, 1, 2, 3, 4, 5)] * 3
# The last label is wrong, so the accuracy is 3/4.
LINE_TEST = [(0, "-9 1"), (0, "-2 1"), (1, "2 1"), (0, "9 1")]


def test_train_and_test_are_scored_with_l2_by_folds() -> None:
    said: list[str] = []
    found = transfer(task(train=split(LINE), test=split(LINE_TEST)), encode, said.append)
    assert (found["accuracy"], found["f1"], found["examples"], found["dev"]) == (0.75, None, 4, 1)
    assert found["l2"] == [max(L2)]
    assert found["protocol"] == "l2 by 10-fold cross-validation on train, scored on test"
    assert found["remarks"] == ["a remark"]
    assert said == ["fitting classifiers for TOY"]


def test_a_dev_split_chooses_l2() -> None:
    dev = split([(0, "-3 1"), (1, "3 1"), (1, "-4 1"), (0, "-1 1"), (1, "5 1")])
    found = transfer(task(train=split(LINE), dev=dev, test=split(LINE_TEST)), encode)
    assert (found["accuracy"], found["dev"], found["examples"]) == (0.75, 0.8, 4)
    assert found["protocol"] == "l2 by dev, scored on test"


def test_without_a_test_split_every_example_is_predicted_once() -> None:
    # Two of 32 examples lie among those of the other label. A prediction never uses the example itself.
    wrong = [(1, "-2.5 1"), (0, "2.5 1")]
    found = transfer(task(all=split(LINE + wrong)), encode)
    assert (found["accuracy"], found["examples"]) == (30 / 32, 32)
    assert len(found["l2"]) == 10
    assert found["protocol"] == "nested 10-fold cross-validation"


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
    test = split([(1, *tested[0]), (0, *tested[1]), (0, *tested[0])])
    found = transfer(task(train=split(train), test=test), encode)
    # The third is predicted 1 and labelled 0: one true, one false positive, no false negative.
    assert (found["accuracy"], found["f1"]) == pytest.approx((2 / 3, 2 / 3))


def test_a_vector_that_is_no_number_counts_as_0_and_is_told() -> None:
    found = transfer(task(train=split([*LINE, (0, "nan 1")]), test=split([*LINE_TEST, (1, "inf 0")])), encode)
    assert (found["undefined"], found["examples"], found["accuracy"]) == (2, 5, 0.6)
    assert found["dev"] > 0.9


def test_neither_labels_nor_vectors_of_the_test_fold_change_its_classifier() -> None:
    x, labels = noisy(90, 10, seed=0)
    fold = stratified(labels) % 2
    predicted, fitted = nested(x, labels, fold)
    other = np.where((fold == 1)[:, None], 50 * x + 9, x), np.where(fold == 1, 1 - labels, labels)
    for changed in ((other[0], labels), (x, other[1])):
        again, refitted = nested(changed[0], changed[1], fold)
        assert (refitted[1].l2, refitted[1].accuracy) == (fitted[1].l2, fitted[1].accuracy)
        assert np.array_equal(refitted[1].model.coef_, fitted[1].model.coef_)
        assert not np.array_equal(refitted[0].model.coef_, fitted[0].model.coef_)
    assert np.array_equal(again[fold == 1], predicted[fold == 1]), "the labels alone were changed"


@pytest.mark.long
def test_labels_at_random_cannot_be_predicted() -> None:
    # The classifier can learn these by heart, so any leak would show.
    x, labels = np.random.default_rng(1).normal(size=(200, 80)), np.arange(200) % 2
    predicted, fitted = nested(x, labels, stratified(labels) % 4)
    assert (fitted[0].predict(x) == labels).mean() > 0.7
    assert abs((predicted == labels).mean() - 0.5) < 0.11  # three standard errors


def noisy(n: int, d: int, seed: int) -> tuple[Floats, Labels]:
    """Returns features with different spreads, and labels that depend on them and on noise."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(n, d)) * np.geomspace(1, 0.1, d)
    return x, (x.sum(axis=1) + generator.normal(size=n) > 0).astype(np.int64)


def test_among_equally_good_l2_the_strongest_is_taken() -> None:
    labels = np.arange(30) % 3
    x = 10 * np.eye(3)[labels] + np.random.default_rng(0).normal(size=(30, 3))
    found = fit(x, labels)
    assert (found.accuracy, found.l2) == (1, max(L2))
    assert np.array_equal(found.predict(10 * np.eye(3)), [0, 1, 2])


def test_the_l2_is_the_one_that_predicts_dev_best_and_dev_is_not_trained_on() -> None:
    x, labels = noisy(60, 12, seed=2)
    dev, dev_labels = noisy(500, 12, seed=3)
    found = fit(x, labels, (dev, dev_labels))
    assert found.accuracy == (found.predict(dev) == dev_labels).mean()
    train, held = ((each - found.mean) * found.scale for each in (x, dev))
    inverses = [2 / (l2 * len(x)) for l2 in L2]
    models = [LogisticRegression(C=C, solver="newton-cg", tol=1e-6).fit(train, labels) for C in inverses]
    accuracies = [model.score(held, dev_labels) for model in models]
    assert len(set(accuracies)) > 2
    assert found.l2 == L2[int(np.argmax(accuracies))]
    assert found.accuracy == max(accuracies)


def test_length_and_place_of_the_vectors_change_nothing() -> None:
    x, labels = noisy(100, 5, seed=0)
    moved = 1000 * x - 70
    one, other = fit(x, labels), fit(moved, labels)
    assert (one.l2, one.accuracy) == (other.l2, other.accuracy)
    assert np.array_equal(one.predict(x), other.predict(moved))


def test_equal_vectors_get_the_commonest_label() -> None:
    found = fit(np.ones((50, 3)), np.arange(50) % 5 // 3)
    assert found.accuracy == pytest.approx(0.6)
    assert not found.predict(np.ones((4, 3))).any()


@pytest.mark.parametrize("sizes", [(100, 100), (57, 33, 12, 1), (9, 4)])
def test_folds_share_out_each_label_and_are_always_the_same(sizes: tuple[int, ...]) -> None:
    labels = np.random.default_rng(3).permutation(np.repeat(np.arange(len(sizes)), sizes))
    fold = stratified(labels)
    assert np.array_equal(fold, stratified(labels))
    assert not np.array_equal(fold, stratified(labels, seed=1112))
    for among in (np.ones(len(labels), bool), *(labels == label for label in range(len(sizes)))):
        counts = np.bincount(fold[among], minlength=FOLDS)
        assert len(counts) == FOLDS
        assert counts.max() - counts.min() <= 1


def test_each_cluster_stands_for_the_class_that_agrees_best() -> None:
    labels = np.array([0, 0, 0, 1, 1, 2, 2])
    assert agreement(np.array([2, 2, 2, 0, 0, 1, 1]), labels, 3) == 1, "names of clusters mean nothing"
    # Cluster 0 has three of class 0 and two of class 1; two clusters may not stand for one class.
    assert agreement(np.array([0, 0, 0, 0, 0, 1, 2]), labels, 3) == pytest.approx(4 / 7)
    assert agreement(np.zeros(7, np.int64), labels, 3) == pytest.approx(3 / 7)


def first_letter(texts: list[str]) -> Vectors:
    """Returns vectors: a text's first letter decides the direction, and its number of letters the length."""
    return np.array([np.eye(8)[ord(text[0]) - ord("a")] * len(text) for text in texts], np.float32)


def trec(folder: Path) -> Path:
    sentences = ("ABBR a x", "DESC b x y", "ENTY c x", "HUM d", "LOC e x y z", "NUM f")
    rows = [tuple(sentence.split(" ", 1)) for sentence in sentences]
    write(folder / "trec" / "train.tsv.gz", rows * 3, "coarse text")
    write(folder / "trec" / "test.tsv.gz", [*rows, ("NUM", "a x")], "coarse text")
    return folder


def test_the_suite_clusters_the_sentences_of_all_splits(tmp_path: Path) -> None:
    found = score(first_letter, trec(tmp_path), ["clustering"])
    accuracy = pytest.approx(24 / 25)  # one NUM lies with ABBR
    expected = {"accuracy": accuracy, "classes": 6, "sentences": 25, "undefined": 0}
    assert found["clustering"]["trec"] == expected
    assert found["clustering"] == score(first_letter, tmp_path, ["clustering"])["clustering"]
    assert "transfer" not in found
    line = next(line for line in table(found).splitlines() if line.startswith("TREC"))
    assert line.split() == ["TREC", "96.00", "6", "25"]


def sick(folder: Path) -> Path:
    """Writes a SICK set in which the first letters of two sentences determine their relation."""
    pairs = ("a x,a y", "b x,b y"), ("a x,b y", "b x,a y"), ("c x,d y", "d x,c y")
    relations = zip(pairs, ("ENTAILMENT", "NEUTRAL", "CONTRADICTION"), strict=True)
    rows = [(*pair.split(","), relation) for each, relation in relations for pair in each]
    for split in ("train", "trial", "test"):
        write(folder / "sick" / f"{split}.tsv.gz", rows * 6, "sentence1 sentence2 entailment")
    return folder


def test_sick_e_is_not_part_of_the_mean_and_may_be_absent(tmp_path: Path) -> None:
    alone = score(first_letter, trec(tmp_path), ["transfer"])
    assert "sicke" not in alone["transfer"]
    assert "sicke" not in alone["absent"]
    found = score(first_letter, sick(tmp_path), ["transfer"])
    assert found["transfer"]["sicke"]["accuracy"] == 1
    assert found["transfer"]["sicke"]["f1"] is None, "there are three classes"
    assert found["transfer"]["sicke"]["protocol"] == "l2 by dev, scored on test"
    assert found["transfer_mean"] == alone["transfer_mean"]


@pytest.mark.long
@needs("trec")
def test_the_default_model_on_trec(default_models_dir: Path) -> None:
    store = ModelStore(default_models_dir)
    encoder = store.open(store.versions()[0].version, threads=1)
    tasks, _ = load(FOLDER)
    found = transfer(tasks["trec"], lambda texts: encoder.encode(texts).vectors)
    assert found["examples"] == 500
    assert found["remarks"] == []
    assert found["accuracy"] == pytest.approx(0.904, abs=0.008)
    assert found["dev"] == pytest.approx(0.856, abs=0.003)

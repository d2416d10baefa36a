"""Clusters against classes: pairings worked out by hand, and clouds that k-means must find."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.training.evaluation.pairs import write
from training.evaluation.clustering import agreement, clusters
from training.evaluation.encoding import Vectors
from training.evaluation.report.table import table
from training.evaluation.suites import score


def test_each_cluster_stands_for_the_class_that_agrees_best() -> None:
    labels = np.array([0, 0, 0, 1, 1, 2, 2])
    assert agreement(np.array([2, 2, 2, 0, 0, 1, 1]), labels, 3) == 1, "names of clusters mean nothing"
    # Cluster 0 has three of class 0 and two of class 1; two clusters may not stand for one class.
    assert agreement(np.array([0, 0, 0, 0, 0, 1, 2]), labels, 3) == pytest.approx(4 / 7)
    assert agreement(np.zeros(7, np.int64), labels, 3) == pytest.approx(3 / 7)


def test_clouds_far_apart_are_found_whatever_the_start() -> None:
    random = np.random.default_rng(0)
    centres = np.eye(6)[:5] * 10
    labels = np.repeat(np.arange(5), 40)
    found = clusters(centres[labels] + random.normal(size=(200, 6)) * 0.3, 5)
    assert agreement(found, labels, 5) == 1
    again = clusters(centres[labels] + np.random.default_rng(0).normal(size=(200, 6)) * 0.3, 5)
    assert np.array_equal(found, again)


def encode(texts: list[str]) -> Vectors:
    """A direction for each first letter; the length says nothing."""
    return np.array([np.eye(8)[ord(text[0]) - ord("a")] * len(text) for text in texts], np.float32)


def trec(folder: Path) -> Path:
    rows = [
        ("ABBR", "a x"),
        ("DESC", "b x y"),
        ("ENTY", "c x"),
        ("HUM", "d"),
        ("LOC", "e x y z"),
        ("NUM", "f"),
    ]
    write(folder / "trec" / "train.tsv.gz", rows * 3, "coarse text")
    write(folder / "trec" / "test.tsv.gz", [*rows, ("NUM", "a x")], "coarse text")
    return folder


def test_the_suite_clusters_the_sentences_of_all_splits(tmp_path: Path) -> None:
    found = score(encode, trec(tmp_path), ["clustering"])
    assert found["clustering"]["trec"] == {
        "accuracy": pytest.approx(24 / 25),  # one NUM lies with ABBR
        "classes": 6,
        "sentences": 25,
        "undefined": 0,
    }
    assert "transfer" not in found
    line = next(line for line in table(found).splitlines() if line.startswith("TREC"))
    assert line.split() == ["TREC", "96.00", "6", "25"]


def sick(folder: Path, **labels: str) -> Path:
    """The features of a pair tell its relation apart: the same first letter, the next, or another."""
    rows = [
        (*each, relation)
        for each, relation in (
            (("a x", "a y"), "ENTAILMENT"),
            (("b x", "b y"), "ENTAILMENT"),
            (("a x", "b y"), "NEUTRAL"),
            (("b x", "a y"), "NEUTRAL"),
            (("c x", "d y"), "CONTRADICTION"),
            (("d x", "c y"), "CONTRADICTION"),
        )
    ]
    for split in ("train", "trial", "test"):
        write(folder / "sick" / f"{split}.tsv.gz", rows * 6, "sentence1 sentence2 entailment")
    return folder


def test_sick_e_stands_beside_the_mean_and_is_not_missed(tmp_path: Path) -> None:
    alone = score(encode, trec(tmp_path), ["transfer"])
    assert "sicke" not in alone["transfer"]
    assert "sicke" not in alone["absent"]
    found = score(encode, sick(tmp_path), ["transfer"])
    assert found["transfer"]["sicke"]["accuracy"] == 1
    assert found["transfer"]["sicke"]["f1"] is None, "there are three classes"
    assert found["transfer"]["sicke"]["protocol"] == "l2 by dev, scored on test"
    assert found["transfer_mean"] == alone["transfer_mean"]

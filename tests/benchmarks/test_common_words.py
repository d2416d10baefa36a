"""The share of common words, and what a score has beyond it."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import rankdata

from benchmarks.common_words import compared, correlations, shares
from training.evaluation.data import Pairs


def test_a_share_is_of_different_words_in_any_case_and_of_none_without_words() -> None:
    left, right = ["The cat, the dog", "a b", "", "Élan 7"], ["THE DOG sleeps", "c d", "…", "élan, 7!"]
    assert shares(Pairs(left, right, np.zeros(4), [""] * 4, 0)).tolist() == [2 / 4, 0.0, 0.0, 1.0]


def test_what_is_beyond_the_words_is_the_correlation_of_what_they_leave_of_both_ranks() -> None:
    generator = np.random.default_rng(3)
    share = generator.integers(0, 9, 400) / 8  # with many ties
    meaning = generator.normal(size=400)
    gold, cosine = share + meaning, 2 * share + 0.5 * meaning + generator.normal(size=400)

    def rest(values: np.ndarray) -> np.ndarray:
        """Of the ranks, after a line through those of the share."""
        x, y = rankdata(share), rankdata(values)
        return y - np.polyval(np.polyfit(x, y, 1), x)

    expected = np.corrcoef(rest(cosine), rest(gold))[0, 1]
    assert correlations(cosine, gold, share)[2] == pytest.approx(expected)
    assert 0.2 < expected < 0.8
    only_words = share + 0.3 * generator.normal(size=400)
    assert abs(correlations(only_words, gold, share)[2]) < 0.1 < correlations(only_words, gold, share)[0]
    assert math.isnan(correlations(np.exp(share), gold, share)[2]), "nothing is left of the share itself"


def test_a_row_for_the_words_and_one_for_a_model(tmp_path: Path, tiny_source: Path) -> None:
    (tmp_path / "stsb").mkdir()
    rows = ("4\ta cat\ta cat", "3\ta cat\ta river", "1\ta river\tmy password", "2\tthe market\ta bridge")
    for split in ("dev", "test"):
        text = "\n".join(("score\tsentence1\tsentence2", *rows))
        (tmp_path / "stsb" / f"{split}.tsv.gz").write_bytes(gzip.compress(text.encode()))
    words, model = compared([str(tiny_source)], tmp_path)
    assert words == ["common words", *["94.9", "100.0", ""] * 2], "ranks 4, 3, 1.5, 1.5"
    assert model[0] == str(tiny_source)
    assert all(-100 <= float(figure) <= 100 for figure in model[1:])

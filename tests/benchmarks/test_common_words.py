"""The share of common words, and what a score has beyond it."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import rankdata, spearmanr

from benchmarks.common_words import compared, correlations, rarity, shares
from benchmarks.workloads import WIKIPEDIA
from models.encoder import Encoder
from training.evaluation.data import Pairs
from training.evaluation.sts import Floats


def test_a_share_is_of_different_words_in_any_case_and_of_none_without_words() -> None:
    left, right = ["The cat, the dog", "a b", "", "Élan 7"], ["THE DOG sleeps", "c d", "…", "élan, 7!"]
    pairs = Pairs(left, right, np.zeros(4), [""] * 4, 0)
    assert shares(pairs, lambda _: 1.0).tolist() == [2 / 4, 0.0, 0.0, 1.0]
    weight = rarity(["The cat", "the the dog", "the", "a cat sleeps"])
    assert [weight(word) for word in ("the", "cat", "dog", "never")] == pytest.approx(
        [math.log(5 / 3.5), math.log(5 / 2.5), math.log(5 / 1.5), math.log(5 / 0.5)]
    )
    the, once = weight("the"), weight("dog")
    assert shares(pairs, weight)[0] == pytest.approx((the + once) / (the + once + weight("cat") + once))


def test_what_is_beyond_the_words_is_the_correlation_of_what_they_leave_of_both_ranks() -> None:
    generator = np.random.default_rng(3)
    share = generator.integers(0, 9, 400) / 8  # with many ties
    meaning = generator.normal(size=400)
    gold, cosine = share + meaning, 2 * share + 0.5 * meaning + generator.normal(size=400)

    def rest(values: Floats) -> Floats:
        """Of the ranks, after a line through those of the share."""
        x, y = rankdata(share), rankdata(values)
        fitted: Floats = np.polyval(np.polyfit(x, y, 1), x)
        left: Floats = y - fitted
        return left

    expected = np.corrcoef(rest(cosine), rest(gold))[0, 1]
    assert correlations(cosine, gold, share)[2] == pytest.approx(expected)
    assert 0.2 < expected < 0.8
    only_words = share + 0.3 * generator.normal(size=400)
    assert abs(correlations(only_words, gold, share)[2]) < 0.1 < correlations(only_words, gold, share)[0]
    assert math.isnan(correlations(np.exp(share), gold, share)[2]), "nothing is left of the share itself"


def test_a_row_for_each_count_of_words_and_one_for_a_model(
    tmp_path: Path, tiny_source: Path, tiny_models_dir: Path
) -> None:
    def written(name: str, *rows: str) -> None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(gzip.compress("\n".join(rows).encode()))

    head = "score\tsentence1\tsentence2"
    pairs = ("4\ta cat\ta cat", "3\ta cat\ta river", "1\ta river\tmy password", "2\tthe market\ta bridge")
    written("stsb/dev.tsv.gz", head, *pairs)
    written("stsb/test.tsv.gz", head, *pairs[:2], "5\tmy cat\tmy bridge")
    written(WIKIPEDIA, "sentence", "a cat", "a river", "a bridge", "my cat")
    weighted, plain, model = compared([str(tiny_source)], tmp_path)
    # Ranks of dev: 4, 3, 1.5, 1.5 beside 4, 3, 1, 2. Of test: 3, 1, 2 beside 2, 1, 3; "my" is rarer than "a".
    assert weighted == ["common words, weighted", "94.9", "100.0", "", "50.0", "100.0", ""]
    assert plain == ["common words", "94.9", "100.0", "", "0.0", "86.6", "-100.0"]
    encoder = Encoder.open(next(tiny_models_dir.glob("2*")))
    left, right = (encoder.encode([row.split("\t")[at] for row in pairs]).vectors for at in (1, 2))
    expected = spearmanr((left * right).sum(1), [4, 3, 1, 2]).statistic
    assert model[:2] == [str(tiny_source), f"{100 * expected:.1f}"]

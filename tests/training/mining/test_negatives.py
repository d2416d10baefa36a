"""Which candidates become negatives: each rule with cosines by hand, and all rules with a real model."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from models.publishing.publish import publish
from models.store import ModelStore
from tests.training.evaluation.pairs import EAST, encode
from training.errors import TrainingError
from training.mining import neighbors
from training.mining.negatives import Mined, Rules, mine_negatives
from training.mining.neighbors import highest, mutual_nearest, unit_vectors
from training.mining.pairs import Labelled
from training.text.corpus import Corpus

# A text is its cosine with the anchor. The positive has 0.8, so the ceiling is 0.76.
CANDIDATES = ["0.8", "0.99", "0.77", "0.75", "0.1", "0.5", EAST, "-0.3"]


def mined(rules: Rules, positives: list[str] | None = None) -> tuple[list[str], Counter[str]]:
    counts = Counter[str]()
    labelled = Labelled({EAST: positives or ["0.8"]}, CANDIDATES, 0, 0)
    rows = list(mine_negatives(labelled, encode, encode, rules, counts))
    for row in rows:
        assert row.anchor == EAST
        assert row.score_positive == pytest.approx(float(row.positive), abs=1e-6)
        assert row.score_negatives == pytest.approx([*map(float, row.negatives)], abs=1e-6)
    return [negative for row in rows for negative in row.negatives], counts


def test_the_hardest_below_the_margin_come_first() -> None:
    negatives, counts = mined(Rules(count=3))
    # 0.99 would be a false negative: it is closer to the anchor than the known answer is. 0.77 is too close.
    assert negatives == ["0.75", "0.5", "0.1"]
    assert counts == Counter(pairs=1, triples=3, above_margin=2)


def test_without_a_margin_what_is_no_closer_is_taken_and_a_wider_one_drops_more() -> None:
    assert mined(Rules(count=2, margin=0))[0] == ["0.77", "0.75"]
    negatives, counts = mined(Rules(count=1, margin=0.5))  # 0.4
    assert (negatives, counts["above_margin"]) == (["0.1"], 4)


def test_the_margin_of_a_negative_score_is_below_it() -> None:
    labelled = Labelled({EAST: ["-0.5"]}, ["-0.49", "-0.51", "-0.53"], 0, 0)
    found = list(mine_negatives(labelled, encode, encode, Rules(count=2), Counter[str]()))  # -0.5 - 0.025
    assert [row.negatives for row in found] == [("-0.53",)]


def test_every_known_positive_is_left_out_for_each_of_them() -> None:
    negatives, counts = mined(Rules(count=1), ["0.8", "0.75", "-0.3"])
    # Ceilings 0.76, 0.7125 and -0.315; no candidate is below the last.
    assert negatives == ["0.5", "0.5"]
    assert (counts["pairs"], counts["triples"], counts["short"], counts["none"]) == (3, 2, 1, 1)


def test_scores_may_be_bounded() -> None:
    negatives, counts = mined(Rules(count=5, min_score=0))
    assert negatives == ["0.75", "0.5", "0.1"]
    assert (counts["above_margin"], counts["short"], counts["none"]) == (2, 1, 0)


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ({"count": 0}, "--count must be from 1 to 10, not 0"),
        ({"count": 11}, "--count must be from 1 to 10, not 11"),
        ({"margin": 1}, "--margin must be at least 0 and below 1, not 1"),
        ({"margin": float("nan")}, "--margin must be"),
        ({"min_score": 1}, "--min-score must be from -1 to below 1, not 1"),
    ],
)
def test_numbers_that_cannot_be_meant_are_refused(rules: dict[str, int], reason: str) -> None:
    with pytest.raises(TrainingError, match=reason):
        Rules(**rules)


@pytest.mark.parametrize("block", [1, 100, 1 << 24])
def test_a_real_model_gives_what_brute_force_gives(
    tiny_source: Path, tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(neighbors, "_BLOCK", block)
    store = ModelStore(tmp_path / "models")
    encoder = store.open(publish(store, tiny_source).version)
    every = corpus.texts
    positives = {every[at]: [every[at + 20], every[at + 40]] for at in range(20)}
    labelled = Labelled(positives, list(every[10:]), 0, 0)
    rules = Rules(count=4, margin=0.02)

    def vectors(texts: list[str]) -> np.ndarray:
        return encoder.encode(texts).vectors

    expected = []
    for anchor, answers in positives.items():
        texts = [*labelled.candidates, *answers]
        of = {text: float(vectors([anchor])[0] @ vectors([text])[0]) for text in texts}
        ranked = sorted(set(labelled.candidates) - {anchor, *answers}, key=lambda text: -of[text])
        for answer in answers:
            below = [text for text in ranked if of[text] <= 0.98 * of[answer]]
            hardest = tuple(below[:4])
            scores = tuple(of[text] for text in hardest)
            expected += [Mined(anchor, answer, hardest, of[answer], scores)] if hardest else []
    found = list(mine_negatives(labelled, vectors, vectors, rules, Counter[str]()))
    assert [row[:3] for row in found] == [row[:3] for row in expected]
    for row, other in zip(found, expected, strict=True):
        assert np.allclose([row[3], *row[4]], [other[3], *other[4]], atol=1e-5)
    assert sum(len(row.negatives) for row in found) > 100


def test_of_equal_cosines_the_first_place_is_taken() -> None:
    cosines = np.array([0.5, 0.9, 0.5, 0.5, 0.1], np.float32)
    allowed = np.array([True, False, True, True, True])
    assert highest(cosines, allowed, 2) == [0, 2]
    assert highest(cosines, allowed, 9) == [0, 2, 3, 4]


def test_nearest_is_mutual_or_no_pair() -> None:
    # On a circle at 0, 10, 15, 40 and 42 degrees: 0 has 10 as the nearest, which has 15.
    angles = np.radians([0, 10, 15, 40, 42])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    found = list(mutual_nearest(vectors))
    assert [pair[:2] for pair in found] == [(1, 2), (3, 4)]
    assert [pair[2] for pair in found] == pytest.approx(np.cos(np.radians([5, 2])), abs=1e-6)
    assert list(mutual_nearest(vectors[:1])) == []


def test_a_vector_without_a_direction_names_its_text() -> None:
    with pytest.raises(TrainingError, match="no direction to the text 'nowhere'"):
        unit_vectors(encode, ["0.5", "nowhere"])
    assert unit_vectors(lambda texts: 3 * encode(texts), ["0.6"])[0] == pytest.approx([0.6, 0.8])

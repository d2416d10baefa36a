"""Shingles, signatures and bands against Python's own sets and the formulas worked by hand."""

import random

import numpy as np
import pytest

from tests.training.conftest import WORDS
from training.mining.minhash import PERMUTATIONS, band_keys, banding, jaccard, shingles, signatures


def windows(text: str) -> set[str]:
    """The reference: 5 characters at a time, as Python cuts them."""
    plain = " ".join(text.split()).casefold()
    return {plain[at : at + 5] for at in range(max(1, len(plain) - 4))}


def exact(first: str, second: str) -> float:
    one, other = windows(first), windows(second)
    return len(one & other) / len(one | other)


def mutations(count: int, words: int = 30) -> list[tuple[str, str]]:
    """Pairs of texts from nearly equal to unrelated."""
    chance = random.Random(1)
    pairs = []
    for _ in range(count):
        text = chance.choices(WORDS, k=words)
        changed = chance.random()
        pairs.append(
            (" ".join(text), " ".join(w if chance.random() > changed else chance.choice(WORDS) for w in text))
        )
    return pairs


def test_shingles_are_five_characters_at_a_time() -> None:
    assert len(shingles("abcdef")) == 2
    assert len(shingles("aaaaaaaaaa")) == 1  # distinct ones
    assert jaccard(shingles("abcdef"), shingles("abcdeg")) == pytest.approx(1 / 3)  # abcde of three
    assert jaccard(shingles("abcdef"), shingles("ghijkl")) == 0


@pytest.mark.parametrize("text", ["a", "abcd", "天地", "abcde"])
def test_a_text_shorter_than_a_shingle_is_one(text: str) -> None:
    assert len(shingles(text)) == 1
    assert jaccard(shingles(text), shingles(text + "x")) in (0, 0.5)


def test_white_space_and_case_are_no_difference() -> None:
    assert np.array_equal(shingles(" The  cat\tSleeps\n"), shingles("the cat sleeps"))


def test_jaccard_is_that_of_the_sets() -> None:
    for first, second in mutations(100):
        assert jaccard(shingles(first), shingles(second)) == pytest.approx(exact(first, second))


def test_an_estimate_is_within_its_standard_error() -> None:
    pairs = mutations(600)
    signed = [signatures(side) for side in zip(*pairs, strict=True)]
    similarity = np.array([exact(*pair) for pair in pairs])
    usable = (similarity > 0.05) & (similarity < 0.95)
    assert usable.sum() > 400
    errors = ((signed[0] == signed[1]).mean(axis=1) - similarity)[usable]
    z = errors / np.sqrt(similarity * (1 - similarity) / PERMUTATIONS)[usable]
    # A standard normal number, 400 times and more: its mean has the error 1/20, its spread 1/28.
    assert abs(z.mean()) < 0.2
    assert 0.8 < z.std() < 1.2
    assert abs(z).max() < 4.5


def test_a_signature_does_not_depend_on_the_texts_beside_it() -> None:
    texts = [*(first for first, _ in mutations(3)), "a", "天地人語" * 20_000, "b c"]  # more than one chunk
    together = signatures(texts)
    assert together.shape == (len(texts), PERMUTATIONS)
    for text, signature in zip(texts, together, strict=True):
        assert np.array_equal(signatures([text])[0], signature)


@pytest.mark.parametrize(("threshold", "bands", "rows"), [(0.9, 12, 10), (0.7, 32, 4), (1.0, 1, 128)])
def test_bands_are_the_longest_that_find_99_in_100(threshold: float, bands: int, rows: int) -> None:
    # By hand for 0.9: 0.9^10 = 0.3487 and 1 - 0.6513^12 = 0.9942; 0.9^11 = 0.3138 and 1 - 0.6862^11 = 0.984.
    assert banding(threshold) == (bands, rows)


def test_keys_are_equal_where_a_band_is() -> None:
    pairs = mutations(200)
    texts = [text for pair in pairs for text in pair]
    bands, rows = 16, 4
    keys = band_keys(texts, bands, rows)
    signed = signatures(texts)[:, : bands * rows].reshape(len(texts), bands, rows)
    same = (signed[::2] == signed[1::2]).all(axis=2)
    assert 100 < same.sum() < same.size - 100
    assert np.array_equal(keys[::2] == keys[1::2], same)

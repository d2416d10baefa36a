"""Near-duplicates: planted copies are dropped, other texts stay, and a dropped text resembles a kept one."""

import random

import pytest

from tests.training.conftest import WORDS
from training.errors import TrainingError
from training.mining.dedupe import banding, jaccard, near_duplicates, shingles


def windows(text: str) -> set[str]:
    """Returns the reference shingles: all runs of five characters of the normalized text."""
    plain = " ".join(text.split()).casefold()
    return {plain[at : at + 5] for at in range(max(1, len(plain) - 4))}


def exact(first: str, second: str) -> float:
    one, other = windows(first), windows(second)
    return len(one & other) / len(one | other)


def test_jaccard_is_the_similarity_of_the_sets_of_shingles() -> None:
    assert jaccard(shingles("abcdef"), shingles("abcdeg")) == pytest.approx(1 / 3)  # abcde of three
    assert jaccard(shingles(" The  cat\tSleeps\n"), shingles("the cat sleeps")) == 1
    assert [len(shingles(text)) for text in ("", "a", "天地", "abcde", "aaaaaaaaaa")] == [1] * 5
    chance = random.Random(1)
    for at in range(100):
        text = chance.choices(WORDS, k=30)
        changed = [word if chance.random() > at / 100 else chance.choice(WORDS) for word in text]
        pair = " ".join(text), " ".join(changed)
        assert jaccard(*map(shingles, pair)) == pytest.approx(exact(*pair))


@pytest.mark.parametrize(("threshold", "bands", "rows"), [(0.9, 12, 10), (0.7, 32, 4), (1.0, 1, 128)])
def test_bands_are_the_longest_that_find_99_in_100(threshold: float, bands: int, rows: int) -> None:
    # By hand for 0.9: 0.9^10 = 0.3487 and 1 - 0.6513^12 = 0.9942; 0.9^11 = 0.3138 and 1 - 0.6862^11 = 0.984.
    assert banding(threshold) == (bands, rows)


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.9])
def test_pairs_just_above_the_threshold_are_found(threshold: float) -> None:
    chance = random.Random(5)
    pairs: list[tuple[str, str]] = []
    while len(pairs) < 100:
        text = letters(chance, 300)
        cut = chance.randrange(3, 100)
        pair = text, letters(chance, cut) + text[cut:]
        if threshold <= exact(*pair) < threshold + 0.02:
            pairs.append(pair)
    found = near_duplicates([text for pair in pairs for text in pair], threshold)
    assert {(each.first, each.place) for each in found} <= {(2 * at, 2 * at + 1) for at in range(100)}
    assert len(found) >= 96, "with RECALL 0.99 five misses have a chance of 0.3 %"


def test_a_long_text_is_compared_as_a_whole() -> None:
    text = letters(random.Random(6), 50_000)
    (found,) = near_duplicates([text, "another text", text[:30_000] + "#" + text[30_001:]])
    assert (found.place, found.first) == (2, 0)
    assert found.similarity == pytest.approx(1, abs=0.001)


def letters(chance: random.Random, count: int) -> str:
    return "".join(chance.choices("abcdefghijklmnopqrstuvwxyz ", k=count))


def brute_force(texts: list[str], threshold: float) -> list[tuple[int, int]]:
    """Returns pairs (dropped, kept). Compares every text with all texts kept before it."""
    kept: list[int] = []
    dropped = []
    for place, text in enumerate(texts):
        first = next((at for at in kept if exact(texts[at], text) >= threshold), None)
        if first is None:
            kept.append(place)
        else:
            dropped.append((place, first))
    return dropped


def test_planted_near_duplicates_are_found_and_nothing_else() -> None:
    chance = random.Random(2)
    texts = [letters(chance, 200) for _ in range(500)]
    planted = {}
    for at in range(0, 500, 10):  # one character of 200: 191 of 201 shingles, 0.95
        changed = texts[at][:100] + "#" + texts[at][101:]
        planted[len(texts)] = (at, 191 / 201)
        texts.append(changed)
    for at in range(5, 500, 10):  # four of them, apart: 176 of 216, 0.81, which is below the threshold
        near = list(texts[at])
        for place in (40, 80, 120, 160):
            near[place] = "#"
        texts.append("".join(near))
    found = near_duplicates(texts, 0.9)
    assert {d.place: d.first for d in found} == {place: at for place, (at, _) in planted.items()}
    for duplicate in found:
        assert duplicate.similarity == pytest.approx(planted[duplicate.place][1], abs=0.01)


@pytest.mark.parametrize("threshold", [0.6, 0.8, 0.9, 1.0])
def test_texts_of_one_mould_are_told_apart_as_by_brute_force(threshold: float) -> None:
    chance = random.Random(3)
    texts = [
        f"Error {chance.randrange(60)} in module {chance.randrange(6)}: the connection was closed by the host"
        for _ in range(300)
    ]
    found = [(d.place, d.first) for d in near_duplicates(texts, threshold)]
    expected = brute_force(texts, threshold)
    assert 30 < len(expected) < 300
    # Not necessarily equal: MinHash may miss a pair, of those right at the threshold one in a hundred.
    assert len(set(found) ^ set(expected)) <= 0.03 * len(expected)


def test_a_copy_in_another_case_or_spacing_is_dropped_for_the_first() -> None:
    assert near_duplicates(["The cat sleeps.", "a dog runs", "the CAT  sleeps.\n"]) == [(2, 0, 1.0)]
    assert near_duplicates(["ab", "cd", "ab", "AB"]) == [(2, 0, 1.0), (3, 0, 1.0)]


def test_a_chain_of_small_differences_does_not_drop_what_resembles_nothing_kept() -> None:
    chance = random.Random(4)
    text = letters(chance, 200)
    chain = [text]
    for step in range(6):  # each has a similarity of 0.95 to its predecessor
        chain.append(chain[-1][: 20 + 30 * step] + "#" + chain[-1][21 + 30 * step :])
    found = near_duplicates(chain, 0.9)
    dropped = {duplicate.place for duplicate in found}
    assert exact(chain[0], chain[-1]) < 0.9
    assert 0 not in dropped
    assert 0 < len(dropped) < len(chain) - 1
    for duplicate in found:
        assert duplicate.first not in dropped
        assert exact(chain[duplicate.first], chain[duplicate.place]) >= 0.9


def test_no_text_and_one_text_have_no_near_duplicate() -> None:
    assert near_duplicates([]) == []
    assert near_duplicates(["alone"]) == []


@pytest.mark.parametrize("threshold", [0, -1, 1.1, float("nan")])
def test_a_threshold_must_be_a_similarity(threshold: float) -> None:
    with pytest.raises(TrainingError, match="--threshold must be above 0 and at most 1"):
        near_duplicates(["a"], threshold)

"""Near-duplicates: planted ones are found, others are kept, and each is compared with a text that stays."""

import random

import pytest

from tests.training.mining.test_minhash import exact
from training.errors import TrainingError
from training.mining.dedupe import near_duplicates


def letters(chance: random.Random, count: int) -> str:
    return "".join(chance.choices("abcdefghijklmnopqrstuvwxyz ", k=count))


def brute_force(texts: list[str], threshold: float) -> list[tuple[int, int]]:
    """(dropped, kept): every text against every kept one, in their order."""
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
    for step in range(6):  # each 0.95 of the one before it
        chain.append(chain[-1][: 20 + 30 * step] + "#" + chain[-1][21 + 30 * step :])
    found = near_duplicates(chain, 0.9)
    dropped = {duplicate.place for duplicate in found}
    assert exact(chain[0], chain[-1]) < 0.9  # so the last is no near-duplicate of the first
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

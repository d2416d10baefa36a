"""Views that leave words out: whole ones, of either way to write them, and never all."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from tests.training.vocabularies import (
    alike,
    between,
    opened,
    rows_of,
    seeded,
    sentences,
    tokens_in,
)
from training.methods.views import Crop, Delete, Repeat, View
from training.text.lexicon import Lexicon


def words_of(lexicon: Lexicon, text: str) -> list[list[int]]:
    """The ids of each word, as the tokenizer itself counts words."""
    encoding = opened(lexicon).encode(text, add_special_tokens=False)
    pairs = zip(encoding.word_ids, encoding.ids, strict=True)
    return [[id for _, id in group] for _, group in itertools.groupby(pairs, key=lambda pair: pair[0])]


def chosen_words(words: list[list[int]], ids: list[int]) -> list[int]:
    """Which of the words, all different, `ids` is made of, in their order. Fails when one is cut."""
    found, left, firsts = [], ids, [word[0] for word in words]
    for at, word in enumerate(words):
        if left[: len(word)] == word and (len(left) == len(word) or left[len(word)] in firsts):
            found.append(at)
            left = left[len(word) :]
    assert not left, "a part of a word"
    return found


SENTENCE = "bankokori sleeping sunning garden numbers jorfis, reset"


@pytest.mark.parametrize("view", [Delete(0.5), Delete(0.0), Delete(1.0), Crop(0.5)])
def test_words_of_several_pieces_go_or_stay_whole(wordpiece: Lexicon, view: View) -> None:
    words = words_of(wordpiece, SENTENCE)
    assert [len(word) for word in words] != [1] * 8
    assert len(words) == 8
    tokens = tokens_in(wordpiece, *[SENTENCE] * 200)
    found = [chosen_words(words, row) for row in between(view(tokens, seeded(), wordpiece))]
    assert all(found)
    assert {at for chosen in found for at in chosen} == set(range(8))


@pytest.mark.parametrize(("view", "kept"), [(Delete(0.5), range(1, 9)), (Delete(0.0), [7]), (Crop(0.5), [4])])
def test_byte_level_words_are_those_between_spaces(
    byte_pairs: Lexicon, view: View, kept: Sequence[int]
) -> None:
    text = "the rivers, stonewall of markets letters; xyz engines"
    tokenizer = opened(byte_pairs)
    assert len(tokens_in(byte_pairs, text).ids) > 20
    tokens = tokens_in(byte_pairs, *[text] * 200)
    seen = set()
    for row in rows_of(view(tokens, seeded(), byte_pairs)):
        assert (row[0], row[-1]) == (0, 2)
        left = tokenizer.decode(row[1:-1]).split()
        places = [text.split().index(word) for word in left]  # an error for half a word
        assert places == sorted(set(places))
        assert len(places) in kept
        seen |= set(places)
    assert seen == set(range(8))


def test_at_rate_0_exactly_one_word_is_deleted_and_any_of_them_alike(wordpiece: Lexicon) -> None:
    words = words_of(wordpiece, SENTENCE)
    tokens = tokens_in(wordpiece, *[SENTENCE] * 2000)
    kept = [chosen_words(words, row) for row in between(Delete(0.0)(tokens, seeded(), wordpiece))]
    assert {len(chosen) for chosen in kept} == {7}
    gone = Counter(28 - sum(chosen) for chosen in kept)
    assert alike([gone[word] for word in range(8)])


def test_the_rate_is_the_expected_share_and_one_word_always_stays(wordpiece: Lexicon) -> None:
    for words in (1, 3, 10):
        tokens = sentences(wordpiece, words, 4000)
        left = [len(row) for row in between(Delete(0.6)(tokens, seeded(), wordpiece))]
        assert min(left) == 1
        expected = [stats.binom.pmf(n, words, 0.4) for n in range(words + 1)]
        expected[1] += expected[0]  # what would have left nothing leaves one
        assert np.mean(left) == pytest.approx(
            np.dot(range(words + 1), expected), rel=0.03 if words > 1 else 0
        )
    assert [len(row) for row in between(Delete(1.0)(tokens, seeded(), wordpiece))] == [1] * 4000


def test_texts_without_words_are_left_as_they_are(wordpiece: Lexicon) -> None:
    tokens = tokens_in(wordpiece, "", "☃", "")
    for view in (Delete(0.5), Delete(0.0), Crop(0.1), Repeat(0.5)):
        assert rows_of(view(tokens, seeded(), wordpiece)) == rows_of(tokens)


@pytest.mark.parametrize(("keep", "length"), [(0.1, 1), (0.5, 4), (0.7, 6), (0.9, 7), (1.0, 8)])
def test_a_crop_is_one_piece_of_that_share_beginning_anywhere(
    wordpiece: Lexicon, keep: float, length: int
) -> None:
    words = words_of(wordpiece, SENTENCE)
    tokens = tokens_in(wordpiece, *[SENTENCE] * 2000)
    kept = [chosen_words(words, row) for row in between(Crop(keep)(tokens, seeded(), wordpiece))]
    assert all(chosen == list(range(chosen[0], chosen[0] + length)) for chosen in kept)
    first = Counter(chosen[0] for chosen in kept)
    assert alike([first[at] for at in range(8 - length + 1)])


def test_texts_of_a_batch_do_not_change_each_other(wordpiece: Lexicon) -> None:
    """Each row alone with its own words: nothing of a neighbour comes in, whatever its length."""
    tokens = tokens_in(wordpiece, "the rivers, stones", "green ☃ paper", "cat", "", SENTENCE)
    for view in (Delete(0.5), Crop(0.5)):
        for seed in range(20):
            for old, new in zip(rows_of(tokens), rows_of(view(tokens, seeded(seed), wordpiece)), strict=True):
                left = iter(old)
                assert all(id in left for id in new)  # a subsequence

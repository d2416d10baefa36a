"""Views do what their papers say. Tests compare the tokens before and after a view."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from scipy import stats

from models.sources.template import with_template
from models.tokens.tokenizer import Tokenizer
from tests.training.vocabularies import (
    CLS,
    MASK,
    SEP,
    alike,
    between,
    build_rows,
    lexicon_of,
    opened,
    seeded,
    sentences,
    source_with,
    tokens_in,
)
from training.errors import TrainingError
from training.methods.recipe import AnyView
from training.methods.views import Crop, Cutoff, Delete, Mask, Repeat, Same, Shuffle, Template, View
from training.text.lexicon import Lexicon

TEMPLATE = 'the "{}" is [MASK].'
VIEW: dict[str, View] = {
    "same": Same(),
    "mask": Mask(0.5),
    "repeat": Repeat(0.5),
    "delete": Delete(0.5),
    "crop": Crop(0.5),
    "template": Template(TEMPLATE),
    "cutoff": Cutoff(tokens=0.2, features=0.3),
    "shuffle": Shuffle(),
}
# A word of several pieces, an unknown one, a [MASK] of the text's own, one word alone, and no word at all.
TEXTS = (
    "the rivers, stones and bankokori",
    "green ☃ paper windows",
    "how [MASK] runs",
    "cat",
    "",
    "dogs open the gardens with my password",
)


def test_every_view_of_a_recipe_is_tested_here() -> None:
    known = get_args(get_args(AnyView)[0])
    assert {name: type(view) for name, view in VIEW.items()} == {view.name: view for view in known}


@pytest.mark.parametrize("name", VIEW)
@pytest.mark.parametrize("kind", ["wordpiece", "byte_pairs"])
def test_a_view_is_pure_and_keeps_each_text_and_its_special_tokens(
    name: str, kind: str, request: pytest.FixtureRequest
) -> None:
    lexicon: Lexicon = request.getfixturevalue(kind)
    tokens, copy = (tokens_in(lexicon, *TEXTS) for _ in range(2))
    view = VIEW[name]
    for seed in range(20):
        found = view(tokens, seeded(seed), lexicon)
        assert torch.equal(tokens.ids, copy.ids)
        assert torch.equal(tokens.starts, copy.starts)
        assert len(found) == len(TEXTS)
        assert int(found.starts[-1]) == len(found.ids)
        again = view(tokens, seeded(seed), lexicon)
        assert torch.equal(found.ids, again.ids)  # a function of the generator
        for old, new in zip(build_rows(tokens), build_rows(found), strict=True):
            assert (new[0], new[-1]) == (old[0], old[-1])
            if name not in ("mask", "template"):  # those add specials of their own
                special = set(lexicon.special)
                assert [id for id in new if id in special] == [id for id in old if id in special]


def test_masking_is_as_bert_s_and_its_targets_are_the_ids_that_were_there(wordpiece: Lexicon) -> None:
    tokens = sentences(wordpiece, 20, 4000)
    found = Mask(0.15)(tokens, seeded(), wordpiece)
    assert found.targets is not None
    assert torch.equal(found.starts, tokens.starts)
    chosen = found.targets != -100
    assert torch.equal(found.targets[chosen], tokens.ids[chosen])
    assert torch.equal(found.ids[~chosen], tokens.ids[~chosen])
    assert not (chosen & wordpiece.is_special[tokens.ids]).any()
    masked, kept = found.ids == MASK, chosen & (found.ids == tokens.ids)
    other = chosen & ~masked & ~kept
    n = len(wordpiece.ordinary)
    by_chance = 0.1 / n  # "any token" is now and then the token itself
    for count, of, share in (
        (chosen, 80_000, 0.15),
        (masked, int(chosen.sum()), 0.8),
        (other, int(chosen.sum()), 0.1 - by_chance),
        (kept, int(chosen.sum()), 0.1 + by_chance),
    ):
        assert abs(int(count.sum()) - share * of) < 4 * (of * share * (1 - share)) ** 0.5
    assert not wordpiece.is_special[found.ids[other]].any()
    spread = torch.bincount(found.ids[other], minlength=wordpiece.size)[wordpiece.ordinary]
    assert alike(spread.tolist())


def test_at_rate_1_everything_but_special_tokens_is_a_target(wordpiece: Lexicon) -> None:
    tokens = tokens_in(wordpiece, *TEXTS)
    found = Mask(1.0)(tokens, seeded(), wordpiece)
    assert found.targets is not None
    special = torch.tensor([id in wordpiece.special for id in tokens.ids.tolist()])
    assert special.sum() == 2 * len(TEXTS) + 2  # the unknown word and the text's own [MASK] as well
    assert torch.equal(found.targets == -100, special)
    assert torch.equal(found.ids[special], tokens.ids[special])
    untouched = Mask(0.0)(tokens, seeded(), wordpiece)
    assert untouched.targets is not None
    assert torch.equal(untouched.ids, tokens.ids)
    assert set(untouched.targets.tolist()) == {-100}


def test_masking_without_a_mask_token_is_refused(wordpiece: Lexicon) -> None:
    without = Lexicon(wordpiece.size, (CLS,), (SEP,), None, wordpiece.special, wordpiece.tokenizer)
    with pytest.raises(TrainingError, match=r"has no \[MASK\] token"):
        Mask(0.15)(tokens_in(wordpiece, "cat"), seeded(), without)


def doubled(old: list[int], new: list[int]) -> list[int]:
    """Returns the positions in `old` of tokens that `new` repeats. Adjacent tokens of `old` must differ."""
    groups = [(id, len(list(group))) for id, group in itertools.groupby(new)]
    assert [id for id, _ in groups] == old
    assert {size for _, size in groups} <= {1, 2}
    return [place for place, (_, size) in enumerate(groups) if size == 2]


@pytest.mark.parametrize(("words", "most"), [(1, 1), (3, 2), (8, 3), (23, 8)])
def test_repetition_doubles_from_none_to_as_many_tokens_as_the_paper_says(
    wordpiece: Lexicon, words: int, most: int
) -> None:
    # At most max(2, 0.32 x length) tokens double: 2, 3 and 8 of 5, 10 and 25 tokens, special ones included.
    # A text of one word doubles at most that word.
    tokens = sentences(wordpiece, words, 3000)
    found = Repeat(0.32)(tokens, seeded(), wordpiece)
    places = [doubled(*rows) for rows in zip(between(tokens), between(found), strict=True)]
    counts = Counter(map(len, places))
    assert sorted(counts) == list(range(most + 1))
    # In a text of one word, a draw of 2 doubles one word.
    expected = [1000, 2000] if words == 1 else [3000 / (most + 1)] * (most + 1)
    assert stats.chisquare([counts[count] for count in range(most + 1)], expected).pvalue > 1e-3
    where = Counter(place for of_text in places for place in of_text)
    assert alike([where[place] for place in range(words)])


def test_a_template_gives_the_ids_worked_out_by_hand(wordpiece: Lexicon) -> None:
    id_of = opened(wordpiece).token_to_id
    found = Template(TEMPLATE)(tokens_in(wordpiece, "river stones", "cat"), seeded(), wordpiece)
    expected = ("[CLS]", "the", '"', "river", "stone", "##s", '"', "is", "[MASK]", ".", "[SEP]")
    assert build_rows(found)[0] == list(map(id_of, expected))
    assert build_rows(found)[1] == list(map(id_of, ("[CLS]", "the", '"', "cat", *expected[6:])))


@pytest.mark.parametrize("kind", ["wordpiece", "byte_pairs"])
def test_a_template_gives_what_the_published_tokenizer_gives(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    lexicon: Lexicon = request.getfixturevalue(kind)
    template = "this river of '{}' means [MASK]!"
    written, _ = with_template(lexicon.tokenizer, template)
    (tmp_path / "tokenizer.json").write_text(json.dumps(written))
    published = Tokenizer(tmp_path / "tokenizer.json", 512).tokenize(TEXTS)
    found = Template(template)(tokens_in(lexicon, *TEXTS), seeded(), lexicon)
    assert build_rows(found) == [list(tokens.ids) for tokens in published]


def test_a_template_s_bias_has_the_positions_that_its_tokens_have_around_each_text(
    wordpiece: Lexicon,
) -> None:
    view = Template(TEMPLATE)
    tokens = view(tokens_in(wordpiece, "river stones", "cat", "", "dog", "the red cat"), seeded(), wordpiece)
    bias, of_text = view.bias(tokens, wordpiece)
    id_of = opened(wordpiece).token_to_id
    empty = list(map(id_of, ("[CLS]", "the", '"', '"', "is", "[MASK]", ".", "[SEP]")))
    assert build_rows(bias) == [empty] * 3  # texts of 0, 1 and 3 tokens
    assert of_text.tolist() == [2, 1, 0, 1, 2]
    assert bias.positions is not None
    places = [[0, 1, 2, *range(at, at + 5)] for at in (3, 4, 6)]
    assert bias.positions.reshape(3, 8).tolist() == places
    for row, of in enumerate(of_text.tolist()):  # The same positions as in the text's own row.
        whole = torch.arange(int(tokens.lengths[row]))
        assert places[of] == [*whole[:3], *whole[-5:]]


@pytest.mark.parametrize("view", [Mask(1.0), Repeat(1.0), Delete(1.0), Delete(0.0), Crop(0.1)])
def test_the_words_of_a_base_s_own_template_are_left_alone(
    tiny_source: Path, tmp_path: Path, view: View
) -> None:
    written, _ = with_template(json.loads((tiny_source / "tokenizer.json").read_bytes()), TEMPLATE)
    lexicon = lexicon_of(source_with(tmp_path / "base", written))
    before, after = lexicon.affixes
    assert (len(before), len(after)) == (3, 5)
    tokens = tokens_in(lexicon, "the cat is green", "the cat")
    found = view(tokens, seeded(), lexicon)
    assert found.ids.tolist() != tokens.ids.tolist()
    for row in build_rows(found):
        assert row[:3] == list(before)
        assert row[-5:] == list(after)


def find_terms(lexicon: Lexicon, text: str) -> list[list[int]]:
    """Returns the token ids of each word. The tokenizer decides what a word is."""
    encoding = opened(lexicon).encode(text, add_special_tokens=False)
    pairs = zip(encoding.word_ids, encoding.ids, strict=True)
    return [[id for _, id in group] for _, group in itertools.groupby(pairs, key=lambda pair: pair[0])]


def chosen_words(words: list[list[int]], ids: list[int]) -> list[int]:
    """Returns the positions of the words that make up `ids`. Fails if a word is cut. `words` must differ."""
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
    words = find_terms(wordpiece, SENTENCE)
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
    for row in build_rows(view(tokens, seeded(), byte_pairs)):
        assert (row[0], row[-1]) == (0, 2)
        left = tokenizer.decode(row[1:-1]).split()
        places = [text.split().index(word) for word in left]  # an error for half a word
        assert places == sorted(set(places))
        assert len(places) in kept
        seen |= set(places)
    assert seen == set(range(8))


def test_at_rate_0_exactly_one_word_is_deleted_and_any_of_them_alike(wordpiece: Lexicon) -> None:
    words = find_terms(wordpiece, SENTENCE)
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
        mean = np.dot(range(words + 1), expected)
        assert np.mean(left) == pytest.approx(mean, rel=0.03 if words > 1 else 0)
    assert [len(row) for row in between(Delete(1.0)(tokens, seeded(), wordpiece))] == [1] * 4000


def test_texts_without_words_are_left_as_they_are(wordpiece: Lexicon) -> None:
    tokens = tokens_in(wordpiece, "", "☃", "")
    for view in (Delete(0.5), Delete(0.0), Crop(0.1), Repeat(0.5)):
        assert build_rows(view(tokens, seeded(), wordpiece)) == build_rows(tokens)


@pytest.mark.parametrize(("keep", "length"), [(0.1, 1), (0.5, 4), (0.7, 6), (0.9, 7), (1.0, 8)])
def test_a_crop_is_one_piece_of_that_share_beginning_anywhere(
    wordpiece: Lexicon, keep: float, length: int
) -> None:
    words = find_terms(wordpiece, SENTENCE)
    tokens = tokens_in(wordpiece, *[SENTENCE] * 2000)
    kept = [chosen_words(words, row) for row in between(Crop(keep)(tokens, seeded(), wordpiece))]
    assert all(chosen == list(range(chosen[0], chosen[0] + length)) for chosen in kept)
    first = Counter(chosen[0] for chosen in kept)
    assert alike([first[at] for at in range(8 - length + 1)])


def test_texts_of_a_batch_do_not_change_each_other(wordpiece: Lexicon) -> None:
    """Each row has only its own tokens, in order, whatever the lengths of its neighbors."""
    tokens = tokens_in(wordpiece, "the rivers, stones", "green ☃ paper", "cat", "", SENTENCE)
    for view in (Delete(0.5), Crop(0.5)):
        for seed in range(20):
            found = view(tokens, seeded(seed), wordpiece)
            for old, new in zip(build_rows(tokens), build_rows(found), strict=True):
                left = iter(old)
                assert all(id in left for id in new)  # a subsequence

"""Crops and clozes: their places and contents, and texts that are too short."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tests.tiny import tiny_source as make_tiny_source
from tests.training.recipe_cases import WORDS, given_of
from tests.training.run_cases import losses
from tests.training.vocabularies import build_rows
from training.errors import NothingToLearn, TrainingError
from training.methods.recipe import load_recipe
from training.methods.sources import sentences
from training.papers.crops import Cloze, Crops, a_cloze, two_crops
from training.runs.command import train
from training.runs.options import Options
from training.text.corpus import Corpus

CROPS, ICT = Crops(singles="leave_out"), Cloze(kept=0.1)
CLS, SEP = 2, 3


def test_sentences_end_where_passages_do_and_short_ones_go_with_the_next() -> None:
    text = 'The river is at the bridge. "Is it open?" No!\nSee Fig. 2 of the long letter here.'
    text += " 猫は庭の橋の上で眠る。End."
    assert sentences(text) == [
        "The river is at the bridge.",
        ' "Is it open?" No!\nSee Fig.',  # 17 bytes and then 8: together enough
        " 2 of the long letter here.",
        " 猫は庭の橋の上で眠る。End.",
    ]
    assert sentences("short") == ["short"]
    assert sentences("") == [""]


@given(st.text(alphabet="ab .!?\n。é", max_size=300))
def test_sentences_are_the_whole_text(text: str) -> None:
    assert "".join(sentences(text)) == text


list_lengths = st.lists(st.integers(1, 20), min_size=1, max_size=30)


@given(list_lengths, st.integers(20, 60), st.integers(0, 2**32))
def test_crops_are_runs_of_sentences_that_fit_and_differ(lengths: list[int], room: int, seed: int) -> None:
    first, second = two_crops(lengths, (room, room), np.random.default_rng(seed))
    for crop in (first, second):
        assert list(crop) == list(range(crop[0], crop[-1] + 1))
        assert 0 <= crop[0] <= crop[-1] < len(lengths)
        assert sum(lengths[at] for at in crop) <= room
    assert (first == second) == (len(lengths) == 1)


def test_any_sentence_begins_a_crop_and_any_number_that_fits_follows() -> None:
    """Two of the sentences 0, 1 and 2 fit. Crops 0, 01, 1 and 12 have probability 1/6 each, and 2 has 1/3."""
    draws = np.random.default_rng(0)
    firsts = [tuple(two_crops([5, 5, 5], (10, 10), draws)[0]) for _ in range(6000)]
    counts = [firsts.count(crop) for crop in [(0,), (0, 1), (1,), (1, 2), (2,)]]
    assert sum(counts) == 6000
    assert stats.chisquare(counts, [1000, 1000, 1000, 1000, 2000]).pvalue > 1e-3


@given(list_lengths.filter(lambda found: len(found) > 1), st.integers(20, 60), st.integers(0, 2**32))
def test_a_cloze_is_a_sentence_and_what_stands_around_it(lengths: list[int], room: int, seed: int) -> None:
    for kept in (0.0, 1.0):
        [unit], rest = a_cloze(kept, lengths, (room, room), np.random.default_rng(seed))
        assert rest
        assert set(rest) != {unit}
        assert sum(lengths[at] for at in rest) <= room
        around = sorted({*rest, unit})
        assert around == list(range(around[0], around[-1] + 1))
        first, last = around[0], around[-1]
        if unit not in rest:  # no more fits on either side
            assert first == 0 or sum(lengths[at] for at in rest) + lengths[first - 1] > room
            assert last == len(lengths) - 1 or sum(lengths[at] for at in rest) + lengths[last + 1] > room
        if kept == 0:
            assert unit not in rest


def test_a_sentence_is_kept_in_one_draw_of_ten() -> None:
    draws = np.random.default_rng(0)
    found = [a_cloze(0.1, [5] * 8, (40, 40), draws) for _ in range(5000)]
    kept = sum(unit[0] in rest for unit, rest in found)
    assert abs(kept - 500) < 4 * (5000 * 0.1 * 0.9) ** 0.5
    assert all(len(rest) == (8 if unit[0] in rest else 7) for unit, rest in found)


def test_of_a_long_document_the_rest_is_the_passage_around_the_sentence() -> None:
    draws = np.random.default_rng(0)
    where = set()
    for _ in range(300):
        [unit], rest = a_cloze(0.0, [10] * 1000, (30, 30), draws)
        assert len(rest) == 3
        if 3 <= unit < 997:
            where.add(sum(at < unit for at in rest))
    assert where == {0, 1, 2, 3}


def documents(count: int, of_sentences: int = 5) -> list[str]:
    """Returns documents whose sentences have nine tokens: the document's own word, seven others, a period."""
    draw = random.Random(1)
    return [
        " ".join(
            " ".join([WORDS[at % len(WORDS)], *draw.choices(WORDS, k=7)]) + "." for _ in range(of_sentences)
        )
        for at in range(count)
    ]


def test_a_batch_by_hand(tiny_source: Path) -> None:
    """Recomputes the rows of step 7 from the order of documents and the random draws of the step."""
    texts = documents(6)
    base = given_of(tiny_source, texts, longest=34)
    tokenizer = base.tokenizer
    found = CROPS.build(base).batch(7)
    order = list(base.corpus.texts)
    seen = [order[at] for at in np.random.default_rng([3, 0, 0]).permutation(6)]
    of_round = np.random.default_rng([3, 0, 3]).permutation(6)[4:]  # steps 6 and 7 are the fourth round
    draws = np.random.default_rng([3, 2, 7])
    columns: tuple[list[list[int]], ...] = [], []
    for at in of_round:
        parts = [part + "." for part in seen[at].split(".")[:-1]]
        for column, crop in zip(columns, two_crops([9] * 5, (32, 32), draws), strict=True):
            text = "".join(parts[crop[0] : crop[-1] + 1])
            column.append(list(tokenizer.tokenize([text])[0].ids))
    assert [build_rows(column) for column in found.columns] == list(columns)
    assert found.texts.shape == (2, 2)


@pytest.mark.parametrize("source", [CROPS, ICT])
def test_a_batch_follows_from_the_seed_and_its_step(source: Crops | Cloze, tiny_source: Path) -> None:
    base = given_of(tiny_source, documents(10), longest=34)
    one, again = source.build(base), source.build(base)
    steps = [[build_rows(column) for column in one.batch(step).columns] for step in range(6)]
    assert [len(step[0]) for step in steps] == [4, 4, 2] * 2
    assert [build_rows(column) for column in again.batch(4).columns] == steps[4]
    other = source.build(base._replace(seed=4)).batch(4)
    assert [build_rows(column) for column in other.columns] != steps[4]
    rounds = [sorted(map(tuple, steps[at][0] + steps[at + 1][0] + steps[at + 2][0])) for at in (0, 3)]
    assert rounds[0] != rounds[1]


@pytest.mark.parametrize("source", [CROPS, ICT])
def test_a_long_document_is_read_to_its_end(source: Crops | Cloze, tiny_source: Path) -> None:
    """Even 300 words without a sentence end are cut into full rows."""
    words = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]
    end = "window forest harbour"
    texts = [" ".join(words * 30) + f" {end}", *documents(3, 60)]
    base = given_of(tiny_source, texts, longest=34)
    last = list(base.tokenizer.tokenize([end])[0].ids)[1:-1]
    batches = [source.build(base).batch(step) for step in range(200)]
    rows = [row for batch in batches for column in batch.columns for row in build_rows(column)]
    assert all(row[0] == CLS and row[-1] == SEP for row in rows)
    assert max(map(len, rows)) <= 34
    assert any(row[-4:-1] == last for row in rows)


def test_texts_of_a_single_sentence_are_left_out_or_stand_twice(tiny_source: Path) -> None:
    texts = [*documents(3), "the river", "a stone bridge"]
    base = given_of(tiny_source, texts, longest=34)
    source = CROPS.build(base)
    assert source.distinct() == 3
    assert source.remark == "2 texts of a single sentence left out"
    twice = Crops(singles="twice").build(base)
    assert (twice.distinct(), twice.remark) == (5, "")
    batches = [twice.batch(step) for step in range(2)]
    pairs = [tuple(row) for batch in batches for row in batch.texts.tolist()]
    assert sum(first == second for first, second in pairs) == 2
    with pytest.raises(NothingToLearn, match=r"^0 of 2 texts have 2 sentences or more, .*Give longer texts"):
        ICT.build(given_of(tiny_source, texts[3:], longest=34))


def test_equal_crops_of_two_documents_are_no_negatives(tiny_source: Path) -> None:
    shared = "The same words close every letter here. And the bridge is in the garden now."
    base = given_of(tiny_source, [shared, f"{shared} "], batch=2, longest=34)
    batch = CROPS.build(base).batch(0)
    rows = [tuple(row) for column in batch.columns for row in build_rows(column)]
    numbers = batch.texts.T.flatten().tolist()
    assert {(rows[i] == rows[j]) == (numbers[i] == numbers[j]) for i in range(4) for j in range(4)} == {True}
    assert len(set(numbers)) < 4


def test_prompts_stand_before_each_text_as_in_service(tmp_path: Path) -> None:
    folder = make_tiny_source(tmp_path / "base")
    base = given_of(folder, documents(4), prompt="red: ", search_prompt="blue: ", longest=34)
    red, blue = (list(row.ids)[:-1] for row in base.tokenizer.tokenize(["red: ", "blue: "]))
    for source, prompts in ((CROPS, (red, red)), (ICT, (blue, red))):
        for column, prompt in zip(source.build(base).batch(0).columns, prompts, strict=True):
            assert all(row[: len(prompt)] == prompt and len(row) <= 34 for row in build_rows(column))
    with pytest.raises(TrainingError, match=r"A row of 11 tokens leaves 7 for text .*Raise `max_length`"):
        CROPS.build(base._replace(longest=11))


def test_a_run_says_what_it_leaves_out(tmp_path: Path, tiny_source: Path) -> None:
    said: list[str] = []
    corpus = Corpus.of([*documents(6), "the river"], "documents")
    options = Options(steps=1, precision="fp32", threads=1, say=said.append)
    result = train(load_recipe("crops"), corpus, tiny_source, tmp_path / "out", options)
    assert "1 text of a single sentence left out" in said
    assert losses(result).keys() == {1}

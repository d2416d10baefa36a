"""Which texts each step sees."""

from __future__ import annotations

from pathlib import Path

from models.tokenizer import Tokenizer
from training.corpus import Corpus
from training.sources import Given, Rows


def test_each_round_sees_every_text_once_in_another_order(corpus: Corpus, tiny_source: Path) -> None:
    tokenizer = Tokenizer(tiny_source / "tokenizer.json", 32)
    lines = Rows(Given(corpus, tokenizer, batch=24, steps=9, seed=1))
    rounds = [
        [row for step in range(3 * n, 3 * n + 3) for row in lines.batch(step).texts[:, 0].tolist()]
        for n in range(3)
    ]
    assert [len(lines.batch(step).texts) for step in range(3)] == [24, 24, 16]
    assert all(sorted(rows) == list(range(64)) for rows in rounds)
    assert rounds[0] != rounds[1] != rounds[2]
    tokens = lines.batch(4).columns[0]  # asked for again, out of order: the same, and the right texts
    texts = [tokens.ids[a:b].tolist() for a, b in zip(tokens.starts, tokens.starts[1:], strict=False)]
    expected = {tuple(row.ids) for row in tokenizer.tokenize(corpus.texts)}
    assert {tuple(row) for row in texts} <= expected
    assert lines.batch(4).texts[:, 0].tolist() == rounds[1][24:48]


def test_only_what_the_steps_will_see_is_tokenised(corpus: Corpus, tiny_source: Path) -> None:
    tokenizer = Tokenizer(tiny_source / "tokenizer.json", 32)
    few = Rows(Given(corpus, tokenizer, batch=8, steps=3, seed=1))
    many = Rows(Given(corpus, tokenizer, batch=8, steps=100, seed=1))
    assert (len(few), len(many)) == (24, 64)
    for step in range(3):
        assert few.batch(step).columns[0].ids.tolist() == many.batch(step).columns[0].ids.tolist()


def test_texts_that_are_equal_at_the_training_length_count_as_equal(tiny_source: Path) -> None:
    tokenizer = Tokenizer(tiny_source / "tokenizer.json", 4)
    corpus = Corpus.of(["cat dog river", "cat dog stone", "dog cat"], "texts")
    lines = Rows(Given(corpus, tokenizer, batch=3, steps=1, seed=0))
    batch = lines.batch(0)
    numbers = batch.texts[:, 0].tolist()
    assert len(set(numbers)) == lines.distinct() == 2
    assert sorted(numbers.count(number) for number in set(numbers)) == [1, 2]

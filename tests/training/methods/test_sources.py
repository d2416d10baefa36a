"""Sources: the rows of each step, the prompts of their texts, and texts that are split into sentences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from models.tokens.tokenizer import Tokenizer
from tests.tiny import tiny_source
from tests.training.vocabularies import build_rows
from training.methods.loading import load_encoder
from training.methods.objectives import NO_TEXT
from training.methods.recipe import load_recipe
from training.methods.sources import (
    Given,
    LabelledPairs,
    LikeLengths,
    Lines,
    Pieces,
    Rows,
    TextPairs,
    Triples,
    split_pieces,
    steps_of_a_round,
)
from training.text.corpus import Corpus


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


def test_only_what_the_steps_will_see_is_tokenized(corpus: Corpus, tiny_source: Path) -> None:
    tokenizer = Tokenizer(tiny_source / "tokenizer.json", 32)
    few = Rows(Given(corpus, tokenizer, batch=8, steps=3, seed=1))
    many = Rows(Given(corpus, tokenizer, batch=8, steps=100, seed=1))
    assert (few.distinct(), many.distinct()) == (24, 64)
    for step in range(3):
        assert few.batch(step).columns[0].ids.tolist() == many.batch(step).columns[0].ids.tolist()


@pytest.mark.parametrize("steps", [2, 3, 5, 8])
def test_a_short_training_reads_the_rows_that_come_first(steps: int, tiny_source: Path) -> None:
    """The first `corpus.first` rows have priority, and mix with other rows. The seed decides the order."""
    tokenizer = Tokenizer(tiny_source / "tokenizer.json", 32)
    first = [f"a cat and {at} rivers" for at in range(10)]
    rows = [(text, "dog", "stone") for text in (*first, *(f"a dog and {at} rivers" for at in range(20)))]
    corpus = Corpus.of_rows(((row, None) for row in rows), "rows", {*first})
    assert corpus.first == 10
    assert {*corpus.texts[:30:3]} == {*first}
    written = {tuple(tokenizer.tokenize([row[0]])[0].ids): row[0] for row in rows}

    def read(corpus: Corpus, seed: int) -> list[str]:
        source = Triples().build(Given(corpus, tokenizer, batch=4, steps=steps, seed=seed))
        batches = [build_rows(source.batch(step).columns[0]) for step in range(steps)]
        return [written[tuple(ids)] for batch in batches for ids in batch]

    found = read(corpus, 1)
    assert len({*found} & {*first}) == min(10, 4 * steps)
    assert len(found) == min(30, 4 * steps)
    assert found == read(corpus, 1) != read(corpus, 2)
    assert found[:10] != sorted(found[:10])
    if steps > 5:
        assert found == read(replace(corpus, first=0), 1), "a training that reads all has no other order"
        assert {*found[:10]} != {*first}


def test_texts_that_are_equal_at_the_training_length_count_as_equal(tiny_source: Path) -> None:
    tokenizer = Tokenizer(tiny_source / "tokenizer.json", 4)
    corpus = Corpus.of(["cat dog river", "cat dog stone", "dog cat"], "texts")
    lines = Rows(Given(corpus, tokenizer, batch=3, steps=1, seed=0))
    batch = lines.batch(0)
    numbers = batch.texts[:, 0].tolist()
    assert len(set(numbers)) == lines.distinct() == 2
    assert sorted(numbers.count(number) for number in set(numbers)) == [1, 2]


def test_what_stands_in_a_row_stays_together_with_its_label(tiny_source: Path) -> None:
    tokenizer = Tokenizer(tiny_source / "tokenizer.json", 32)
    words = "river stone market letter engine".split()
    rows = [((word, f"the {word}", f"no {word}"), at % 3) for at, word in enumerate(words)]
    label_of = dict(rows)
    source = LabelledPairs().build(Given(Corpus.of_rows(rows, "rows"), tokenizer, batch=2, steps=6, seed=1))
    written = {tuple(tokenizer.tokenize([text])[0].ids): text for row, _ in rows for text in row}
    seen = []
    for step in range(3):
        batch = source.batch(step)
        columns = [[written[tuple(ids)] for ids in build_rows(column)] for column in batch.columns]
        found = list(zip(*columns, strict=True))
        assert batch.labels is not None
        assert batch.labels.tolist() == [label_of[row] for row in found]
        assert batch.texts.shape == (len(found), 3)
        seen += found
    assert sorted(seen) == sorted(label_of)


def test_equal_texts_have_equal_numbers_in_whatever_column_they_stand(tiny_source: Path) -> None:
    tokenizer = Tokenizer(tiny_source / "tokenizer.json", 32)
    rows = [("cat", "dog"), ("dog", "river"), ("river", "River"), ("cat", "stone")]
    corpus = Corpus.of_rows(((row, None) for row in rows), "rows")
    source = TextPairs().build(Given(corpus, tokenizer, batch=4, steps=1, seed=0))
    batch = source.batch(0)
    ids = [build_rows(column) for column in batch.columns]
    get_number: dict[tuple[int, ...], int] = {}
    for column, texts in enumerate(ids):
        for row, text in enumerate(texts):
            number = int(batch.texts[row, column])
            assert get_number.setdefault(tuple(text), number) == number
    assert len(get_number) == len(set(get_number.values())) == source.distinct() == 4  # River is river here


def test_the_prompt_stands_before_every_text_of_a_row(tiny_source: Path) -> None:
    tokenizer = Tokenizer(tiny_source / "tokenizer.json", 32)
    corpus = Corpus.of_rows([(("cat", "dog"), None), (("river", "stone"), None)], "rows")
    source = TextPairs().build(Given(corpus, tokenizer, batch=2, steps=1, seed=0, prompt="the red: "))
    found = [tuple(row) for column in source.batch(0).columns for row in build_rows(column)]
    texts = [f"the red: {word}" for word in ("cat", "dog", "river", "stone")]
    assert sorted(found) == sorted(tuple(tokens.ids) for tokens in tokenizer.tokenize(texts))


def test_a_query_has_the_prompt_of_queries_and_its_documents_theirs(tiny_source: Path) -> None:
    tokenizer = Tokenizer(tiny_source / "tokenizer.json", 32)
    rows = [("cat", "dog", "river", "stone"), ("market", "letter", "engine")]
    corpus = Corpus.of_rows(((row, None) for row in rows), "rows")
    base = Given(corpus, tokenizer, batch=2, steps=1, seed=0, prompt="the red: ", search_prompt="my blue: ")
    for source, first in ((Triples(queries=True), "my blue: "), (Triples(), "the red: ")):
        batch = source.build(base).batch(0)
        columns = [build_rows(column) for column in batch.columns]
        expected = [
            [first + row[0], *(f"the red: {text}" for text in row[1:]), *[""] * (4 - len(row))]
            for row in rows
        ]
        ids = [[list(tokens.ids) for tokens in tokenizer.tokenize(row)] for row in expected]
        assert sorted(zip(*columns, strict=True)) == sorted(map(tuple, ids))
        assert sorted((batch.texts == NO_TEXT).sum(1).tolist()) == [0, 1]
        assert source.build(base).distinct() == 7


def test_the_order_follows_from_the_seed_and_the_shelf_from_the_folder(
    corpus: Corpus, tiny_source: Path, tmp_path: Path
) -> None:
    tokenizer = Tokenizer(tiny_source / "tokenizer.json", 32)
    plain = Given(corpus, tokenizer, batch=16, steps=8, seed=1)
    kept = plain._replace(folder=tmp_path, threads=2)
    first = [Lines().build(plain).batch(step) for step in range(8)]
    for source in (Lines().build(kept), Lines().build(kept)):  # tokenized, then found there
        for step in reversed(range(8)):
            batch = source.batch(step)
            assert torch.equal(batch.columns[0].ids, first[step].columns[0].ids)
            assert torch.equal(batch.texts, first[step].texts)
            assert batch.labels is None
    other = Lines().build(plain._replace(seed=2)).batch(0)
    assert build_rows(other.columns[0]) != build_rows(first[0].columns[0])


@pytest.mark.parametrize(("rows", "batch", "steps"), [(1, 4, 1), (4, 4, 1), (5, 4, 2), (9, 2, 5)])
def test_the_steps_of_a_round_see_each_row(rows: int, batch: int, steps: int, tiny_source: Path) -> None:
    assert steps_of_a_round(rows, batch) == steps
    tokenizer = Tokenizer(tiny_source / "tokenizer.json", 8)
    corpus = Corpus.of_rows((((f"{n}", "a", "b"), None) for n in range(rows)), "rows")
    source = Triples().build(Given(corpus, tokenizer, batch, 2 * steps, seed=0))
    anchors = [row for step in range(steps) for row in build_rows(source.batch(step).columns[0])]
    assert sorted(anchors) == sorted(
        list(tokens.ids) for tokens in tokenizer.tokenize([f"{n}" for n in range(rows)])
    )


LONG = "The river runs under the bridge. The market opens when the bridge closes."
SHORT = "the cat sleeps in the garden"


def test_a_text_is_there_whole_and_in_sentences_and_equal_pieces_once() -> None:
    corpus = Corpus.of([LONG, SHORT, "The river runs under the bridge."], "texts")
    found = split_pieces(corpus)
    assert set(found.texts) == {
        LONG,
        "The river runs under the bridge.",
        "The market opens when the bridge closes.",
        SHORT,
    }
    assert len(found) == 4
    assert found.digest == corpus.digest


def test_a_title_on_its_own_line_is_a_piece() -> None:
    found = split_pieces(
        Corpus.of(["Bridges over the river Letter\nThe river runs under the bridge."], "texts")
    )
    assert "Bridges over the river Letter" in found.texts


def test_every_second_piece_has_the_prompt_of_a_query(tmp_path: Path) -> None:
    base = tiny_source(tmp_path / "base", prompts={"query": "find ", "document": "read "})
    encoder, _ = load_encoder(base, load_recipe("simcse-unsup"), torch.device("cpu"))
    corpus = Corpus.of(["red stone", "green stone", "blue stone", "blue river"], "texts")
    tokenizer = encoder.tokenizer(32)
    given = Given(corpus, tokenizer, 4, 1, 0, prompt="read ", search_prompt="find ")
    seen = Pieces().build(given).batch(0).columns[0]
    found = {tuple(seen.select(torch.tensor([row])).ids.tolist()) for row in range(4)}
    texts = [f"{'find' if at % 2 else 'read'} {text}" for at, text in enumerate(corpus.texts)]
    assert found == {tuple(tokens.ids) for tokens in tokenizer.tokenize(texts)}


def test_batches_are_of_like_length_and_hold_each_text_once() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 1000)
    rounds = LikeLengths(lengths, 8, 3)
    for number in range(2):
        steps = [rounds.rows(step) for step in range(125 * number, 125 * (number + 1))]
        assert sorted(np.concatenate(steps)) == [*range(1000)]
        spread = [np.ptp(lengths[rows]) for rows in steps]
        assert np.median(spread) < 5 < np.median([np.ptp(lengths[at : at + 8]) for at in range(0, 1000, 8)])
        assert np.abs(np.diff([lengths[rows].mean() for rows in steps])).mean() > 10  # in a random order
    again = LikeLengths(lengths, 8, 3)
    np.testing.assert_array_equal(again.rows(130), rounds.rows(130))

"""The source of whole texts and single sentences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tests.tiny import tiny_source
from training.methods.loading import load_encoder
from training.methods.recipe import load_recipe
from training.methods.sources import Given, LikeLengths, Pieces, pieces_of
from training.text.corpus import Corpus

LONG = "The river runs under the bridge. The market opens when the bridge closes."
SHORT = "the cat sleeps in the garden"


def test_a_text_is_there_whole_and_in_sentences_and_equal_pieces_once() -> None:
    corpus = Corpus.of([LONG, SHORT, "The river runs under the bridge."], "texts")
    found = pieces_of(corpus)
    assert set(found.texts) == {
        LONG,
        "The river runs under the bridge.",
        "The market opens when the bridge closes.",
        SHORT,
    }
    assert len(found) == 4
    assert found.digest == corpus.digest


def test_a_title_on_its_own_line_is_a_piece() -> None:
    found = pieces_of(Corpus.of(["Bridges over the river Letter\nThe river runs under the bridge."], "texts"))
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

"""Facts about the ids of WordPiece, byte-level and incomplete tokenizers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from models.tokens.tokenizer import Tokenizer
from tests.training.vocabularies import byte_level, lexicon_of, opened, source_with
from training.errors import TrainingError


def test_the_special_ids_of_wordpiece_are_known(tiny_source: Path) -> None:
    lexicon = lexicon_of(tiny_source)
    assert lexicon.affixes == ((2,), (3,))  # the order of tests/tiny.py: [PAD] [UNK] [CLS] [SEP] [MASK]
    assert lexicon.mask_id() == 4
    assert lexicon.special == (0, 1, 2, 3, 4)
    assert lexicon.size == json.loads((tiny_source / "config.json").read_bytes())["vocab_size"]
    assert lexicon.ordinary.tolist() == list(range(5, lexicon.size))


def test_wordpiece_goes_on_with_its_prefix_and_with_nothing_else(tiny_source: Path) -> None:
    lexicon = lexicon_of(tiny_source)
    vocabulary = opened(lexicon).get_vocab()
    begins = {token for token, id in vocabulary.items() if lexicon.begins_word[id]}
    assert {"river", "a", "#", ",", "天"} <= begins
    assert set(vocabulary) - begins == {token for token in vocabulary if token[:2] == "##"}


def test_byte_level_tokens_begin_a_word_where_they_hold_its_space(tmp_path: Path) -> None:
    lexicon = lexicon_of(source_with(tmp_path / "base", byte_level()))
    assert (lexicon.affixes, lexicon.mask_id()) == (((0,), (2,)), 4)
    encoding = opened(lexicon).encode(" river-bank of\nthe rivers", add_special_tokens=False)
    pairs = zip(encoding.tokens, encoding.ids, strict=True)
    begins = [token for token, id in pairs if lexicon.begins_word[id]]
    assert all(token[0] == "Ġ" for token in begins)
    assert len(begins) == 3  # river-bank, of\nthe, rivers: what stands between spaces
    assert begins[0] == "Ġriver"


def test_a_vocabulary_of_whole_words_has_a_word_for_each_token(tmp_path: Path) -> None:
    vocabulary = {token: id for id, token in enumerate(("[CLS]", "[SEP]", "[UNK]", "a", "river", "stone"))}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 1), ("[CLS]", 0))
    tokenizer.add_special_tokens(["[CLS]", "[SEP]", "[UNK]"])
    lexicon = lexicon_of(source_with(tmp_path / "base", json.loads(tokenizer.to_str())))
    assert lexicon.begins_word.tolist() == [True] * 6
    with pytest.raises(TrainingError, match=r"has no \[MASK\] token"):
        lexicon.mask_id()


def test_tokens_that_the_model_has_no_row_for_are_not_known(tiny_source: Path, tmp_path: Path) -> None:
    written = opened(lexicon_of(tiny_source))
    size = written.get_vocab_size(with_added_tokens=True)
    written.add_special_tokens(["[LATER]"])
    folder = source_with(tmp_path / "base", json.loads(written.to_str()), vocabulary=size)
    lexicon = lexicon_of(folder)
    assert lexicon.special == (0, 1, 2, 3, 4)
    assert len(lexicon.is_special) == len(lexicon.begins_word) == size
    assert Tokenizer(folder / "tokenizer.json", 16, size).vocabulary == size

"""Pairs have the ids, token types and truncation that transformers gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from models.errors import BadText, TooLong, Unsupported
from models.tokens.pairs import Pair, PairTokenizer
from models.tokens.texts import PROOF_TEXTS, long_text
from models.tokens.tokenizer import build_feed
from tests.tiny import tiny_tokenizer

TEXTS = (*PROOF_TEXTS[3:9], "", "  ", "a [SEP] b [CLS]", "garden " * 9, long_text(40), long_text(70))
PAIRS = [Pair(one, other) for one in TEXTS for other in TEXTS]
TEMPLATES = {
    "bert": "[CLS] $A [SEP] $B:1 [SEP]:1",
    "roberta": "[CLS] $A [SEP] [SEP] $B [SEP]",
    "bare": "$A $B:1",
}


def saved(folder: Path, pair: str) -> Path:
    from tokenizers import processors

    tokenizer = tiny_tokenizer()
    special = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=pair, special_tokens=special
    )
    file = folder / "tokenizer.json"
    tokenizer.save(str(file))
    return file


@pytest.mark.parametrize("most", [12, 13, 64, 65])
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("side", ["right", "left"])
def test_a_pair_has_the_tokens_of_transformers(tmp_path: Path, template: str, most: int, side: str) -> None:
    transformers = pytest.importorskip("transformers")
    file = saved(tmp_path, TEMPLATES[template])
    theirs: Any = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(file),
        model_max_length=most,
        pad_token="[PAD]",
        truncation_side=side,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
    expected = theirs([list(pair) for pair in PAIRS], truncation="longest_first", padding=True)
    rows = PairTokenizer(file, most).tokenize_pairs(PAIRS, left=side == "left")
    feed = build_feed([row.ids for row in rows], ["input_ids", "token_type_ids"])
    for name, array in feed.items():
        assert array.tolist() == expected[name], name
    whole = theirs([list(pair) for pair in PAIRS])["input_ids"]
    assert [row.truncated for row in rows] == [len(ids) > most for ids in whole]
    alone = PairTokenizer(file, most).singles.tokenize(TEXTS, left=side == "left")
    feed = build_feed([row.ids for row in alone], ["input_ids", "token_type_ids"])
    expected = theirs([*TEXTS], truncation=True, padding=True)
    for name, array in feed.items():
        assert array.tolist() == expected[name], name


def test_a_long_text_is_read_only_as_far_as_it_counts(tmp_path: Path) -> None:
    tokenizer = PairTokenizer(saved(tmp_path, TEMPLATES["bert"]), 64)
    texts = [long_text(4), long_text(4000), "x" * 1_000_000, "garden " * 20_000]
    pairs = [Pair(one, other) for one in texts for other in texts]
    for pair, row in zip(pairs, tokenizer.tokenize_pairs(pairs), strict=True):
        assert len(row.ids) <= 64
        assert row.truncated == (texts[1] in pair or texts[3] in pair)


def test_a_pair_that_is_too_long_is_an_error_without_truncation(tmp_path: Path) -> None:
    tokenizer = PairTokenizer(saved(tmp_path, TEMPLATES["bert"]), 64)
    with pytest.raises(TooLong) as raised:
        tokenizer.tokenize_pairs([Pair("a", "b"), Pair("a " * 40, "b " * 30)], truncate=False)
    assert (raised.value.index, raised.value.given, raised.value.allowed) == (1, 73, 64)


@pytest.mark.parametrize("pair", [Pair("\ud800", "b"), Pair("a", "b\udfff")])
def test_an_invalid_text_is_an_error_with_the_index_of_its_pair(tmp_path: Path, pair: Pair) -> None:
    tokenizer = PairTokenizer(saved(tmp_path, TEMPLATES["bert"]), 64)
    with pytest.raises(BadText, match="surrogate") as raised:
        tokenizer.tokenize_pairs([Pair("a", "b"), Pair("a", "c"), pair])
    assert raised.value.index == 2


@pytest.mark.parametrize(
    "template", ["[CLS] $A:1 [SEP]:1 $B [SEP]", "[CLS] $A [SEP] $B:2 [SEP]:2", "$A [SEP] $B:1 [SEP]"]
)
def test_other_token_types_are_refused(tmp_path: Path, template: str) -> None:
    with pytest.raises(Unsupported, match="token types"):
        PairTokenizer(saved(tmp_path, template), 64)

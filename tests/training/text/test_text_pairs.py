"""Joined pairs equal those of the library tokenizers: ids, types and truncation."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import processors

from models.tokens.pairs import Around
from models.tokens.tokenizer import Tokenizer, open_tokenizer
from tests.tiny import tiny_tokenizer
from training.text.text_pairs import join_pairs
from training.text.tokens import build_tokens

SPECIAL = [("[CLS]", 2), ("[SEP]", 3)]
TEMPLATES: dict[str, Any] = {
    "bert": tiny_tokenizer().post_processor,
    "roberta": processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] [SEP] $B [SEP]", special_tokens=SPECIAL
    ),
    "prefix": processors.TemplateProcessing(
        single="[CLS] $A", pair="[CLS] $A [SEP] $B:1", special_tokens=SPECIAL
    ),
}
TEXTS = ["", "cat", "the river runs", "stone market letter engine garden bridge", "a [SEP] b", "天 地" * 8]


def content(template: str) -> dict[str, Any]:
    tokenizer = tiny_tokenizer()
    tokenizer.post_processor = TEMPLATES[template]
    found: dict[str, Any] = json.loads(tokenizer.to_str())
    return found


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("max_length", [5, 6, 9, 10, 64])
def test_pairs_equal_those_of_the_library(template: str, max_length: int) -> None:
    given = content(template)
    library = tokenizers.Tokenizer.from_str(json.dumps(given))
    library.no_padding()
    library.enable_truncation(max_length)  # longest_first
    pairs = list(itertools.product(TEXTS, TEXTS))
    found = joined(given, pairs, max_length)
    for at, expected in enumerate(library.encode_batch(pairs)):
        ids = found.ids[found.starts[at] : found.starts[at + 1]].tolist()
        assert ids == expected.ids, pairs[at]
        assert found.second is not None
        second = int(found.second[at])
        assert [0] * second + [1] * (len(ids) - second) == expected.type_ids, pairs[at]


def test_selected_and_concatenated_pairs_keep_their_types() -> None:
    found = joined(content("bert"), [("cat", "dog"), ("the river", "runs")], 16)
    assert found.second is not None
    turned = found.select(torch.tensor([1, 0]))
    assert turned.second is not None
    assert turned.second.tolist() == found.second.flip(0).tolist() == [4, 3]


def joined(given: Mapping[str, Any], pairs: list[tuple[str, str]], max_length: int) -> Any:
    bare = Tokenizer({**given, "post_processor": None}, 1 << 10)
    first, second = (
        build_tokens([row.ids for row in bare.tokenize(side)]) for side in zip(*pairs, strict=True)
    )
    return join_pairs(Around.of(open_tokenizer(given)), first, second, max_length)

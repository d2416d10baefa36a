"""Texts that do or do not suit a vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from models.tokens.reading import Count, count
from models.tokens.tokenizer import FILE_NAME, Tokenizer


@pytest.fixture
def tokenize(tiny_source: Path) -> Callable[[list[str]], list[list[int]]]:
    tokenizer = Tokenizer(tiny_source / FILE_NAME, 64)
    return lambda texts: [[piece.id for piece in tokenizer.pieces(text)] for text in texts]


def test_words_tokens_and_unknown_ones_are_counted(tokenize: Callable[[list[str]], list[list[int]]]) -> None:
    assert count(["the river", "한국어 stone market"], tokenize) == Count(words=5, tokens=5, unknown=1)
    assert count([], tokenize) == Count()
    assert count(["the river"], tokenize) + count(["a stone"], tokenize) == Count(4, 4, 0)


def test_ideographs_are_words_each(tokenize: Callable[[list[str]], list[list[int]]]) -> None:
    assert count(["天地人"], tokenize) == Count(3, 3, 0)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (Count(100, 130, 0), ""),
        (Count(100, 130, 1), ""),
        (Count(100, 130, 2), "1.5% of their tokens are unknown to the model"),
        (Count(100, 300, 0), ""),
        (Count(100, 560, 0), "a word takes 5.6 tokens, so it is spelled and not read"),
        (Count(), ""),
    ],
)
def test_the_reason_is_the_first_bound_that_is_passed(found: Count, reason: str) -> None:
    assert found.unreadable() == reason

"""Tests whether a tokenizer's vocabulary suits texts, by tokens per word and the share of unknown tokens.

With BERT's vocabulary, English texts have 1.1 to 1.6 tokens per word, and no unknown tokens. Korean texts
have 5.2 to 6.0 tokens per word, and 4 to 5 % of the tokens are unknown. With 8,000 added Korean tokens,
they have 2.0 to 2.1 tokens per word, and at most 0.5 % are unknown. Each number is from 1,000 to 2,000 texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

UNKNOWN = 0.01  # Share of unknown tokens. A WordPiece vocabulary knows nearly all letters of its language.
MIN_WORDS = 300  # Words that a verdict requires.
TOKENS_PER_WORD = 3.0  # Called fertility by Rust et al. 2021.
# Scripts without spaces between words. Each character counts as a word, as BERT does for Chinese.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")
# Frequent English words. They are at least 16 % of English texts, and at most 5 % of texts in ten languages.
_ENGLISH = re.compile(
    r"\b(?:the|of|and|to|for|that|with|are|it|this|from|have|has|which|you|not|can|if|will|when)\b"
)
ENGLISH_SHARE = 0.08
ENGLISH_TOKENS = 1.7  # Tokens per word: English texts have fewer, other languages 1.9 and more.
_STRANGE = "\U00012000"  # A cuneiform sign. If it is a single token, that is the unknown token.


class Count(NamedTuple):
    words: int = 0
    tokens: int = 0  # Without special tokens.
    unknown: int = 0

    def __add__(self, other: Count) -> Count:  # type: ignore[override]
        return Count(*(own + more for own, more in zip(self, other, strict=True)))

    def unreadable(self) -> str:
        """Returns the reason why the vocabulary does not suit the counted texts, or an empty text."""
        if self.unknown > UNKNOWN * self.tokens:
            return f"{self.unknown / self.tokens:.1%} of their tokens are unknown to the model"
        if self.tokens > TOKENS_PER_WORD * self.words:
            return (
                f"a word takes {self.tokens / max(self.words, 1):.1f} tokens, so it is spelled and not read"
            )
        return ""


def count_english(texts: Sequence[str]) -> int:
    """Counts the frequent English words of texts."""
    return sum(len(_ENGLISH.findall(text.lower())) for text in texts)


def foreign(found: Count, english: int) -> str:
    """Returns the reason why texts are not for an English model, or an empty text.

    Args:
        found: The counts of the texts, by the model's tokenizer.
        english: Their frequent English words.
    """
    if english < ENGLISH_SHARE * found.words and found.tokens > ENGLISH_TOKENS * found.words:
        return f"they do not look English, and a word takes {found.tokens / found.words:.1f} tokens"
    return ""


def count(texts: Sequence[str], tokenize: Callable[[list[str]], Sequence[Sequence[int]]]) -> Count:
    """Counts the words, tokens and unknown tokens of texts.

    Args:
        tokenize: Returns the token ids of texts, without truncation.
    """
    nothing, strange, *rows = tokenize(["", _STRANGE, *texts])
    around = len(nothing)
    unknown = set(strange) - set(nothing) if len(strange) == around + 1 else set()
    tokens = sum(len(row) - around for row in rows)
    return Count(
        sum(len(WORD.findall(text)) for text in texts),
        tokens,
        sum(id in unknown for row in rows for id in row),
    )

"""Readability of a text for a vocabulary: tokens for a word, and unknown ones among them.

Measured with the vocabulary of BERT on 1,000 to 2,000 texts each: English (encyclopedia, reviews, abstracts,
captions) 1.1 to 1.6 tokens for a word and none unknown; Korean 5.2 to 6.0, and 4.2 to 5.0 % unknown; Korean
after 8,000 of its own tokens were added 2.0 to 2.1, and 0.0 to 0.5 %.
"""

from __future__ import annotations

import re

UNKNOWN = 0.01  # of the tokens; a WordPiece vocabulary has a letter for nearly all of its own language
TOKENS_PER_WORD = 3.0  # what Rust et al. 2021 call fertility
# Scripts that set no space between words: there each character counts as a word, as BERT does for Chinese.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")


def unreadable(words: int, tokens: int, unknown: int) -> str:
    """The reason for which a text of so many words cannot be read, or nothing.

    tokens: without those that the tokenizer puts around a text.
    """
    if unknown > UNKNOWN * tokens:
        return f"{unknown / tokens:.1%} of its tokens are unknown to the model"
    if tokens > TOKENS_PER_WORD * words:
        return (
            f"a word takes {tokens / max(words, 1):.1f} tokens, so the model spells it rather than reads it"
        )
    return ""

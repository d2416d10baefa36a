"""Tokenizes pairs of texts for a cross-encoder. Start at `PairTokenizer.tokenize_pairs`.

Pair(query, text) ─▶ [CLS] query [SEP] text [SEP]     the special ids are those of tokenizer.json
0     0     0     1    1        token types, in families that have two
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers

from models.errors import BadText, TooLong, Unsupported
from models.tokens.tokenizer import PairIds, Tokenizer, Tokens, check_text

TOKENIZER_CONFIG = "tokenizer_config.json"
INPUT_NAMES = "model_input_names"  # Its key for the inputs that the tokenizer makes, such as token types.


class Pair(NamedTuple):
    query: str
    text: str


class Around(NamedTuple):
    """The special ids of a pair: before the query, between both, and after the text."""

    before: list[int]
    between: list[int]
    after: list[int]
    types: bool  # Whether the text and the ids after it have the token type 1.

    @classmethod
    def of(cls, tokenizer: tokenizers.Tokenizer) -> Around:
        """Raises Unsupported if the tokenizer also changes the tokens of the texts."""
        bare = tokenizer.encode("a", add_special_tokens=False).ids
        whole = tokenizer.encode("a", "a")
        places = [
            [at for at, sequence in enumerate(whole.sequence_ids) if sequence == which] for which in (0, 1)
        ]
        if not all(places) or any([whole.ids[at] for at in each] != bare for each in places):
            raise Unsupported("The tokenizer does more to a pair of texts than to add tokens around them.")
        (first, *_), (second, *_) = places
        types = whole.type_ids[:second], whole.type_ids[second:]
        if any(types[0]) or len(set(types[1])) != 1 or types[1][0] > 1:
            raise Unsupported("The tokenizer gives a pair of texts other token types than 0 and 1.")
        size = len(bare)
        between, after = whole.ids[first + size : second], whole.ids[second + size :]
        return cls(whole.ids[:first], between, after, bool(types[1][0]))


class PairTokenizer(Tokenizer):
    """Converts pairs of texts to token ids. Thread-safe; releases the GIL while it works. See `Tokenizer`.

    `room` is the maximum of tokens of both texts together, without special tokens. `singles` tokenizes single
    texts, which have more room.

    Args:
        typed: Whether the model takes token types. If not, every token has the type 0.
    """

    def __init__(
        self,
        given: Path | Mapping[str, Any],
        max_length: int,
        vocabulary: int | None = None,
        *,
        typed: bool = True,
    ) -> None:
        super().__init__(given, max_length, vocabulary)
        self._around = Around.of(self._tokenizer)
        self._typed = typed
        self.singles: Tokenizer = copy.copy(self)
        self.room = max_length - sum(map(len, self._around[:3]))
        if self.room < 2:
            raise Unsupported(f"A maximum of {max_length} tokens leaves no room for two texts.")

    def tokenize_pairs(
        self,
        pairs: Sequence[Pair],
        truncate: bool = True,
        left: bool = False,
        is_needed: Callable[[], bool] = lambda: True,
    ) -> list[Tokens]:
        """Tokenizes pairs. Equal texts are tokenized once. See `Tokenizer.tokenize` for the arguments.

        Tokens are dropped from the longer text first, as transformers does (`longest_first`).

        Raises:
            BadText: A text is not valid Unicode, or has too many characters without `truncate`.
            TooLong: A pair has too many tokens without `truncate`.
        """
        numbers: dict[str, int] = {}
        for index, pair in enumerate(pairs):
            for text in pair:
                if text not in numbers:
                    check_text(index, text)
                    numbers[text] = len(numbers)
        texts = [*numbers]
        try:
            found = self._content(texts, truncate, left, is_needed)
        except BadText as error:
            text = texts[error.index]
            raise BadText(next(at for at, pair in enumerate(pairs) if text in pair), error.reason) from None
        count = cache(lambda number: self._count(texts[number]))
        rows = []
        for index, pair in enumerate(pairs):
            both = [numbers[text] for text in pair]
            counts = [found[number][1] for number in both]
            excess = sum(counts) - self.room
            if excess > 0 and not truncate:
                raise TooLong(index, given=excess + self.max_length, allowed=self.max_length)
            if excess > 0 and self.room % 2 and min(counts) > self.room:
                counts = [count(number) for number in both]  # Numbers above `room` are not exact.
            kept = _kept(counts[0], counts[1], self.room) if excess > 0 else counts
            first, second = (
                ids[len(ids) - size :] if left else ids[:size]
                for (ids, _), size in zip((found[number] for number in both), kept, strict=True)
            )
            rows.append(self._join(first, second, truncated=excess > 0))
        return rows

    def _count(self, text: str) -> int:
        """Returns the number of tokens of a text, or 0 if it has too many characters to be read."""
        with contextlib.suppress(BadText):
            return self._content([text], False, False, lambda: True)[0][1]
        return 0

    def _join(self, first: list[int], second: list[int], *, truncated: bool) -> Tokens:
        before, between, after, types = self._around
        ids = PairIds((*before, *first, *between, *second, *after))
        ids.second = len(before) + len(first) + len(between) if types and self._typed else len(ids)
        return Tokens(ids, truncated, first.count(self._unknown) + second.count(self._unknown))


def _kept(first: int, second: int, room: int) -> tuple[int, int]:
    """Returns how many tokens two texts keep that have more than `room` together."""
    if room - first > first:  # The shorter text stays whole.
        return first, room - first
    if room - second > second:
        return room - second, second
    half, odd = divmod(room, 2)
    return (half + odd, half) if first > second else (half, half + odd)

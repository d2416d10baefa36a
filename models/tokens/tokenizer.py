"""Text to token ids by the published tokenizer.json, at a cost that the model's maximum bounds.

    text ──▶ piece │ piece │ …   cut only where the tokens of both sides cannot depend on each other (cuts.py)
               └▶ ids, until there are more than the model takes; the rest of the text is never looked at

Special ids are added here rather than by the tokenizer, so that one tokenizer serves truncation on either
side from many threads at once. Not here: prompts (the caller prepends them) and padding (the encoder's).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.errors import BadText, BadTokens, TooLong, Unsupported
from models.tokens.cuts import Cuts
from models.tokens.opening import affixes, open_tokenizer, read_tokenizer

# One thread per call: callers bring their own threads, and the library's pool would take every core.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

FILE_NAME = "tokenizer.json"
_FIRST_PIECE = (
    8  # characters per token of the maximum; prose has 4 to 5, so one piece is nearly always enough
)
_LARGEST_PIECE = 1 << 16  # characters; one takes up to 500 bytes until its piece is done
# Characters of one text that are tokenised before it has as many tokens as the model takes. Prose needs a
# fiftieth of it; a text of marks, of which nothing is left, would hold its thread for seconds.
_MOST_LOOKED_AT = 1 << 19
_SHORTENED = 4  # so many characters that a run is shortened by cost as much as one that is tokenised
_SPANS_PIECE = 1 << 16  # characters, where an exact cut is not needed
_TOGETHER = 1 << 18  # characters of many texts in one call, for the same reason


class Tokens(NamedTuple):
    """A text, tokenised."""

    ids: Sequence[int]  # with special ids; at most the model's maximum
    truncated: bool


class Piece(NamedTuple):
    """A token of a text, for people to look at."""

    id: int
    text: str  # the characters of the text that it stands for; of a special token its name
    special: bool
    start: int | None  # in characters of the text, None for a special token
    stop: int | None


class Tokenizer:
    """Thread safe; releases the GIL while it works."""

    def __init__(
        self, given: Path | Mapping[str, Any], max_length: int, vocabulary: int | None = None
    ) -> None:
        """given: tokenizer.json, or its content. Raise Unsupported when it cannot be read.

        vocabulary: how many ids the model knows, where that is less than the tokenizer has.
        """
        content = read_tokenizer(given) if isinstance(given, Path) else given
        self._tokenizer = open_tokenizer(content)
        size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self.vocabulary = min(size, vocabulary or size)
        self.max_length = max_length
        self._before, self._after = affixes(self._tokenizer)
        self._room = max_length - len(self._before) - len(self._after)
        if self._room < 1:
            raise Unsupported(f"A maximum of {max_length} tokens leaves no room beside the special ones.")
        self._cuts = Cuts.of(content)
        self._first = min(_FIRST_PIECE * max_length, _LARGEST_PIECE)
        self._most = max(_MOST_LOOKED_AT, _FIRST_PIECE * max_length)

    @property
    def room(self) -> int:
        """Tokens of a text beside the special ones."""
        return self._room

    @property
    def affixes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids before and after every text."""
        return tuple(self._before), tuple(self._after)

    def tokenize(
        self,
        texts: Sequence[str],
        truncate: bool = True,
        left: bool = False,
        wanted: Callable[[], bool] = lambda: True,
    ) -> list[Tokens]:
        """Tokens of each text. Raise BadText; TooLong if `truncate` is false and a text has too many tokens.

        left: drop tokens from the start of a long text rather than from its end.
        wanted: asked before each piece; the rest is not looked at when nobody wants the answer any more.

        A text is cut where half a million of its characters (or 8 for each token, when that is more) have
        fewer tokens than the model takes; BadText when it may not be cut.
        """
        for index, text in enumerate(texts):
            _check_text(index, text)
        found = self._content(texts, truncate, left, wanted)
        return [self._tokens(index, *content, truncate, left) for index, content in enumerate(found)]

    def check_ids(self, ids: Sequence[int], truncate: bool = True, left: bool = False) -> Tokens:
        """`ids` as if this tokenizer had made them. Raise BadTokens or TooLong."""
        self._check_vocabulary(ids)
        before, after = len(self._before), len(self._after)
        if list(ids[:before]) != self._before:
            raise BadTokens(0, f"the row must begin with the model's own {self._before}.")
        if len(ids) < before + after or list(ids[len(ids) - after :]) != self._after:
            raise BadTokens(max(len(ids) - 1, 0), f"the row must end with the model's own {self._after}.")
        count = len(ids) - before - after
        kept = min(count, self._room)  # the others are not even copied
        start = before + count - kept if left else before
        return self._tokens(0, list(ids[start : start + kept]), count, truncate, left)

    def pieces(self, text: str, *, add_special_tokens: bool = True) -> Iterator[Piece]:
        """Every token of `text`, however many there are; takes memory and time accordingly. Raise BadText."""
        _check_text(0, text)
        # Not `encode`, which holds the interpreter.
        [encoding] = self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
        tokens = zip(
            encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True
        )
        return (
            Piece(id, token, True, None, None) if special else Piece(id, text[start:stop], False, start, stop)
            for id, token, special, (start, stop) in tokens
        )

    def spans(self, text: str, wanted: Callable[[], bool] = lambda: True) -> NDArray[np.int64]:
        """Positions of the tokens of `text`, (n, 2): the first character, and the one behind the last.

        Raise BadText. wanted: as in `tokenize`.

        Whatever the length of the text, in bounded memory but for the answer: it is read in pieces that end
        before white space where there is some, so around their ends a token may differ from the whole text's.
        """
        _check_text(0, text)
        found = [np.empty((0, 2), np.int64)]
        at = 0
        while at < len(text) and wanted():
            end = min(at + _SPANS_PIECE, len(text))
            if end < len(text):  # at the last white space, if there is any
                space = max(text.rfind(" ", at + 1, end), text.rfind("\n", at + 1, end))
                end = space if space > at else end
            [encoding] = self._tokenizer.encode_batch([text[at:end]], add_special_tokens=False)
            found.append(np.array(encoding.offsets, np.int64).reshape(-1, 2) + at)
            at = end
        return np.concatenate(found)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of any ids of the vocabulary, as far as it can be told. Raise BadTokens."""
        self._check_vocabulary(ids)
        # Not `decode`, which holds the interpreter.
        [text] = self._tokenizer.decode_batch([ids], skip_special_tokens=skip_special_tokens)
        return str(text)

    def _check_vocabulary(self, ids: Sequence[int]) -> None:
        if not ids or (min(ids) >= 0 and max(ids) < self.vocabulary):
            return
        for position, id in enumerate(ids):
            if not 0 <= id < self.vocabulary:
                raise BadTokens(position, f"{id} is outside the vocabulary of {self.vocabulary}.")

    def _tokens(self, index: int, content: list[int], count: int, truncate: bool, left: bool) -> Tokens:
        if count <= self._room:
            return Tokens([*self._before, *content, *self._after], truncated=False)
        if not truncate:
            raise TooLong(index, given=count + self.max_length - self._room, allowed=self.max_length)
        kept = content[-self._room :] if left else content[: self._room]
        return Tokens([*self._before, *kept, *self._after], truncated=True)

    def _content(
        self, texts: Sequence[str], truncate: bool, left: bool, wanted: Callable[[], bool]
    ) -> list[tuple[list[int], int]]:
        """Ids without the special ones, as many as fit or more, and how many were counted.

        The count is the text's own when it fits or when not truncating; otherwise it is only known to be
        too large, or the text to have more characters than are looked at.
        """
        if all(len(text) <= self._first for text in texts):
            return [(ids, len(ids)) for ids in self._encode(texts)]
        found: list[list[int]] = [[] for _ in texts]
        counts = [0] * len(texts)
        looked_at = [0] * len(texts)
        rest = list(enumerate(texts))
        size = self._first
        while rest and wanted():
            split = [(index, *self._cuts.split(text, size, left)) for index, text in rest]
            before = [len(text) for _, text in rest]
            encoded = self._encode([piece for _, piece, _ in split])
            for (index, piece, behind), ids, length in zip(split, encoded, before, strict=True):
                if counts[index] <= self._room:
                    found[index] = ids + found[index] if left else found[index] + ids
                counts[index] += len(ids)
                taken = length - len(behind)
                looked_at[index] += len(piece) + (taken - len(piece)) // _SHORTENED
                if behind and counts[index] <= self._room and looked_at[index] >= self._most:
                    if not truncate:
                        raise BadText(index, _too_little(counts[index]))
                    counts[index] = self._room + 1
            rest = [
                (index, text)
                for index, _, text in split
                if text and not (truncate and counts[index] > self._room)
            ]
            size = min(4 * size, _LARGEST_PIECE)
        return list(zip(found, counts, strict=True))

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        encodings = itertools.chain.from_iterable(
            self._tokenizer.encode_batch_fast(batch, add_special_tokens=False) for batch in _batches(texts)
        )
        return [encoding.ids for encoding in encodings]


def _too_little(tokens: int) -> str:
    return (
        f"half a million of its characters have {tokens} tokens, so the rest is not looked at. Leave "
        "truncation on, or leave out what stands for nothing."
    )


def _batches(texts: Sequence[str]) -> list[list[str]]:
    batches: list[list[str]] = [[]]
    together = 0
    for text in texts:
        if batches[-1] and together + len(text) > _TOGETHER:
            batches.append([])
            together = 0
        batches[-1].append(text)
        together += len(text)
    return batches if texts else []


def _check_text(index: int, text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        reason = (
            f"character {error.start} is half of a surrogate pair, which is not text. Send valid Unicode."
        )
        raise BadText(index, reason) from None

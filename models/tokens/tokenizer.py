"""Converts text to token ids, at a cost limited by the model's maximum length. Start at `Tokenizer.tokenize`.

    text ──▶ piece │ piece │ …   cut only where both sides have independent tokens (cuts.py)
               └▶ ids, until the model's maximum is exceeded; the rest of the text is not read

The special ids are added here, and not by the library tokenizers. So one tokenizer can truncate either side
in many threads. Callers add the prompts to the texts.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray

from models.errors import BadText, BadTokens, TooLong, Unsupported
from models.files.bounded import parse_json
from models.tokens.cuts import Cuts
from models.tokens.japanese import WORDS, use_mecab

MAX_GROWTH = 1000  # Growth of a text by its normalizers. Published tokenizers have 1 or 2.


def read_tokenizer(file: Path) -> dict[str, Any]:
    """Reads a tokenizer.json. Raises Unsupported if it is not valid JSON."""
    try:
        content: dict[str, Any] = parse_json(file.read_bytes())
    except ValueError as error:
        raise Unsupported(f"{file.name} cannot be read: {error}") from None
    return content


def open_tokenizer(content: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Opens a tokenizer, without its padding and truncation.

    Raises:
        Unsupported: The library cannot open the tokenizer, MeCab is missing, or a normalizer is not allowed.
    """
    _require_bounded(content)
    plain = {name: part for name, part in content.items() if name != WORDS}
    try:
        opened = tokenizers.Tokenizer.from_str(json.dumps(plain))
    except Exception as error:  # noqa: BLE001  the library raises nothing narrower
        raise Unsupported(f"tokenizer.json cannot be read: {error}") from None
    opened.no_padding()
    opened.no_truncation()
    if (words := content.get(WORDS)) is not None:
        use_mecab(opened, words)
    return opened


def _require_bounded(content: Mapping[str, Any]) -> None:
    """Rejects normalizers that could make a text many times as long."""
    growth = 1.0
    for part in _normalizers(content.get("normalizer")):
        if part.get("type") == "Replace" and isinstance(added := part.get("content"), str):
            pattern = part.get("pattern") or {}
            found = pattern.get("String") if isinstance(pattern, Mapping) else None
            # A regular expression may match a single character, or the empty text.
            growth *= max(1.0, len(added) / len(found) if found else len(added) + 1)
        elif part.get("type") == "Prepend":
            growth += len(str(part.get("prepend")))
    if growth > MAX_GROWTH:
        raise Unsupported(
            f"tokenizer.json may make a text more than {MAX_GROWTH} times as long (its Replace normalizers)."
        )


def _normalizers(normalizer: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(normalizer, Mapping):
        yield normalizer
        inner = normalizer.get("normalizers")
        for part in inner if isinstance(inner, list) else ():
            yield from _normalizers(part)


def affixes(tokenizer: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """Returns the ids that a tokenizer adds before and after a text.

    Raises:
        Unsupported: The tokenizer also changes the text's own tokens.
    """
    bare = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a")
    # Sequence ids identify the text's tokens. Token ids do not, because a template may repeat them.
    own = [place for place, sequence in enumerate(whole.sequence_ids) if sequence is not None]
    if own:
        start, end = own[0], own[-1] + 1
        if whole.ids[start:end] == bare and len(own) == len(bare):
            return whole.ids[:start], whole.ids[end:]
    raise Unsupported("The tokenizer does more to a text than to add tokens before and after it.")


def find_unknown(content: Mapping[str, Any], opened: tokenizers.Tokenizer) -> int:
    """Returns the id of all words outside the vocabulary, or -1 if the tokenizer splits them into bytes.

    Args:
        content: The content of tokenizer.json.
        opened: The tokenizer.
    """
    model = content.get("model") or {}
    if model.get("unk_id") is not None:  # Unigram
        return int(model["unk_id"])
    id = opened.token_to_id(str(model.get("unk_token")))
    return -1 if id is None else int(id)


TYPES = "token_type_ids"


class PairIds(list[int]):
    """Token ids of two texts.

    `second` is the index from which the token type is 1: the first token of the second text, or the length if
    the tokenizer gives every token the type 0.
    """

    __slots__ = ("second",)
    second: int


def build_feed(
    rows: Sequence[Sequence[int]], inputs: Iterable[str], length: int = 0, pad_id: int = 0
) -> dict[str, NDArray[np.int64]]:
    """Builds the inputs of a graph from rows of token ids, padded to the longest row or to `length`.

    The token types of `PairIds` are 1 from their second text on.

    Args:
        inputs: Names of the graph's inputs.
    """
    shape = (len(rows), length or max(map(len, rows)))
    feed = {name: np.zeros(shape, np.int64) for name in ("attention_mask", *inputs)}
    feed["input_ids"] = np.full(shape, pad_id, np.int64)
    for at, row in enumerate(rows):
        feed["input_ids"][at, : len(row)] = row
        feed["attention_mask"][at, : len(row)] = 1
        if isinstance(row, PairIds) and TYPES in feed:
            feed[TYPES][at, row.second : len(row)] = 1
    return feed


# Callers have their own threads, and the library's pool would use every core.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

FILE_NAME = "tokenizer.json"
_FIRST_PIECE = 8  # Characters per token. Prose has 4 to 5, so one piece is nearly always enough.
_LARGEST_PIECE = 1 << 16  # Characters. Each takes up to 500 bytes.
# Limit of characters that are read from a text with few tokens. Prose needs a fiftieth of it.
_MAX_LOOKED_AT = 1 << 19
_SHORTENED = 4  # Removing this many characters of a run costs as much as tokenizing one.
_SPANS_PIECE = 1 << 16  # Characters per piece if cuts need not be exact.
_TOGETHER = 1 << 18  # Characters of texts in one call, which limits memory.


class Tokens(NamedTuple):
    """A tokenized text."""

    ids: Sequence[int]  # With special ids; at most the model's maximum.
    truncated: bool
    unknown: int = 0  # Number of `ids` that stand for any word outside the vocabulary.


class Piece(NamedTuple):
    """A token of a text, as shown to people."""

    id: int
    text: str  # Its characters in the text, or the name of a special token.
    special: bool
    start: int | None  # In characters of the text; None for a special token.
    stop: int | None


class Tokenizer:
    """Converts texts to token ids. Thread-safe; releases the GIL while it works.

    Args:
        given: The file tokenizer.json, or its content.
        max_length: Maximum tokens of a text, with special tokens.
        vocabulary: Number of ids that the model has vectors for, if the tokenizer has more.

    Raises:
        Unsupported: The tokenizer cannot be used.
    """

    def __init__(
        self, given: Path | Mapping[str, Any], max_length: int, vocabulary: int | None = None
    ) -> None:
        content = read_tokenizer(given) if isinstance(given, Path) else given
        self._tokenizer = open_tokenizer(content)
        size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self.vocabulary = min(size, vocabulary or size)
        self.max_length = max_length
        self._before, self._after = affixes(self._tokenizer)
        # Maximum tokens of a text, without special tokens.
        self.room = max_length - len(self._before) - len(self._after)
        if self.room < 1:
            raise Unsupported(f"A maximum of {max_length} tokens leaves no room besides the special tokens.")
        self._unknown = find_unknown(content, self._tokenizer)
        self._cuts = Cuts.of(content)
        self._first = min(_FIRST_PIECE * max_length, _LARGEST_PIECE)
        self._most = max(_MAX_LOOKED_AT, _FIRST_PIECE * max_length)

    @property
    def affixes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids that are added before and after every text."""
        return tuple(self._before), tuple(self._after)

    def tokenize(
        self,
        texts: Sequence[str],
        truncate: bool = True,
        left: bool = False,
        is_needed: Callable[[], bool] = lambda: True,
    ) -> list[Tokens]:
        """Tokenizes texts.

        Args:
            truncate: Whether to truncate texts with too many tokens. A truncated text is read up to half a
                million characters, or up to 8 characters per token of the model's maximum if that is more.
            left: Whether to drop tokens from the start of a long text instead of its end.
            is_needed: Called before each piece. If it returns False, the work stops and the result has no
                meaning.

        Raises:
            BadText: A text is not valid Unicode, or has too many characters without `truncate`.
            TooLong: A text has too many tokens without `truncate`.
        """
        for index, text in enumerate(texts):
            check_text(index, text)
        found = self._content(texts, truncate, left, is_needed)
        return [self._tokens(index, *content, truncate, left) for index, content in enumerate(found)]

    def check_ids(self, ids: Sequence[int], truncate: bool = True, left: bool = False) -> Tokens:
        """Checks and truncates token ids that a client sent.

        Raises:
            BadTokens: An id is not in the vocabulary, or the model's special ids are missing at either end.
            TooLong: The client sent too many ids, and `truncate` is false.
        """
        self._check_vocabulary(ids)
        before, after = len(self._before), len(self._after)
        if list(ids[:before]) != self._before:
            raise BadTokens(0, f"the row must begin with the model's own {self._before}.")
        if len(ids) < before + after or list(ids[len(ids) - after :]) != self._after:
            raise BadTokens(max(len(ids) - 1, 0), f"the row must end with the model's own {self._after}.")
        count = len(ids) - before - after
        kept = min(count, self.room)
        start = before + count - kept if left else before
        return self._tokens(0, list(ids[start : start + kept]), count, truncate, left)

    def pieces(self, text: str, *, add_special_tokens: bool = True) -> Iterator[Piece]:
        """Returns every token of `text`, without truncation. Raises BadText."""
        check_text(0, text)
        # `encode_batch` releases the GIL; `encode` does not.
        [encoding] = self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
        tokens = zip(
            encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True
        )
        return (
            Piece(id, token, True, None, None) if special else Piece(id, text[start:stop], False, start, stop)
            for id, token, special, (start, stop) in tokens
        )

    def is_word(self, text: str) -> bool:
        """Returns whether the vocabulary has a word as one token. Raises BadText.

        Some vocabularies have words with the space before them.
        """
        for typed in (text, f" {text}"):
            found = [*self.pieces(typed, add_special_tokens=False)]
            if len(found) == 1 and found[0].id != self._unknown and found[0].stop == len(typed):
                return True
        return False

    def spans(self, text: str, is_needed: Callable[[], bool] = lambda: True) -> NDArray[np.int64]:
        """Returns the start and end of every token in characters, shape (n, 2).

        To limit memory, the text is read in pieces. Tokens around the ends of pieces may differ from the
        tokens of the whole text.

        Args:
            is_needed: As in `tokenize`.

        Raises:
            BadText: The text is not valid Unicode.
        """
        check_text(0, text)
        found = [np.empty((0, 2), np.int64)]
        at = 0
        while at < len(text) and is_needed():
            end = min(at + _SPANS_PIECE, len(text))
            if end < len(text):  # Cut at the last whitespace, if any.
                space = max(text.rfind(" ", at + 1, end), text.rfind("\n", at + 1, end))
                end = space if space > at else end
            [encoding] = self._tokenizer.encode_batch([text[at:end]], add_special_tokens=False)
            found.append(np.array(encoding.offsets, np.int64).reshape(-1, 2) + at)
            at = end
        return np.concatenate(found)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Returns the text of token ids. It may differ from the text that was tokenized. Raises BadTokens."""
        self._check_vocabulary(ids)
        # `decode_batch` releases the GIL; `decode` does not.
        [text] = self._tokenizer.decode_batch([ids], skip_special_tokens=skip_special_tokens)
        return str(text)

    def _check_vocabulary(self, ids: Sequence[int]) -> None:
        if not ids or (min(ids) >= 0 and max(ids) < self.vocabulary):
            return
        for position, id in enumerate(ids):
            if not 0 <= id < self.vocabulary:
                raise BadTokens(position, f"{id} is outside the vocabulary of {self.vocabulary}.")

    def _tokens(self, index: int, content: list[int], count: int, truncate: bool, left: bool) -> Tokens:
        if count <= self.room:
            unknown = content.count(self._unknown)
            return Tokens([*self._before, *content, *self._after], truncated=False, unknown=unknown)
        if not truncate:
            raise TooLong(index, given=count + self.max_length - self.room, allowed=self.max_length)
        kept = content[-self.room :] if left else content[: self.room]
        unknown = kept.count(self._unknown)
        return Tokens([*self._before, *kept, *self._after], truncated=True, unknown=unknown)

    def _content(
        self, texts: Sequence[str], truncate: bool, left: bool, is_needed: Callable[[], bool]
    ) -> list[tuple[list[int], int]]:
        """Returns the ids of each text without special ids, and the number of its tokens.

        The number is exact if the text fits or `truncate` is false. Otherwise it is any number above `room`.
        """
        if all(len(text) <= self._first for text in texts):
            return [(ids, len(ids)) for ids in self._encode(texts)]
        found: list[list[int]] = [[] for _ in texts]
        counts = [0] * len(texts)
        looked_at = [0] * len(texts)
        rest = list(enumerate(texts))
        size = self._first
        while rest and is_needed():
            split = [(index, *self._cuts.split(text, size, left)) for index, text in rest]
            before = [len(text) for _, text in rest]
            encoded = self._encode([piece for _, piece, _ in split])
            for (index, piece, remaining), ids, length in zip(split, encoded, before, strict=True):
                if counts[index] <= self.room:
                    found[index] = ids + found[index] if left else found[index] + ids
                counts[index] += len(ids)
                taken = length - len(remaining)
                looked_at[index] += len(piece) + (taken - len(piece)) // _SHORTENED
                if remaining and counts[index] <= self.room and looked_at[index] >= self._most:
                    if not truncate:
                        raise BadText(index, _too_little(counts[index]))
                    counts[index] = self.room + 1
            rest = [
                (index, text)
                for index, _, text in split
                if text and not (truncate and counts[index] > self.room)
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
        f"half a million of its characters have {tokens} tokens, so the rest is not read. Allow truncation, "
        "or remove characters without meaning."
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


def check_text(index: int, text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        reason = (
            f"character {error.start} is half of a surrogate pair, which is not text. Send valid Unicode."
        )
        raise BadText(index, reason) from None

"""Facts about the token ids of a tokenizer, which views and objectives need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from models.sources.folder import Source
from models.sources.template import with_template
from models.tokens.tokenizer import affixes, open_tokenizer
from training.errors import TrainingError
from training.text.tokens import Tokens

_MASKS = ("[MASK]", "<mask>")
_SPACES = ("Ġ", "▁")  # the space before a word in byte-level and sentencepiece vocabularies
Around = tuple[tuple[int, ...], tuple[int, ...], int]


@dataclass(frozen=True)
class Lexicon:
    size: int  # ids are 0 to size - 1
    before: tuple[int, ...]  # ids that the tokenizer puts before a text
    after: tuple[int, ...]
    mask: int | None
    special: tuple[int, ...]  # never masked, repeated, deleted or inserted
    tokenizer: Mapping[str, Any]  # tokenizer.json
    # Cache of `around`, which every step calls.
    _around: dict[str, Around] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, source: Source) -> Lexicon:
        opened = open_tokenizer(source.tokenizer)
        before, after = affixes(opened)
        size = source.config.get("vocab_size") or opened.get_vocab_size(with_added_tokens=True)
        masks = (opened.token_to_id(name) for name in _MASKS)
        added = source.tokenizer.get("added_tokens") or []
        special = {token["id"] for token in added if token.get("special")}
        return cls(
            size=size,
            before=tuple(before),
            after=tuple(after),
            # A tokenizer may have more tokens than the model has rows.
            mask=next((id for id in masks if id is not None and id < size), None),
            special=tuple(sorted(id for id in special if id < size)),
            tokenizer=source.tokenizer,
        )

    @property
    def affixes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.before, self.after

    def mask_id(self) -> int:
        """Returns the id of [MASK].

        Raises:
            TrainingError: The tokenizer has no [MASK] token.

        """
        if self.mask is None:
            raise TrainingError("The base's tokenizer has no [MASK] token, which this recipe needs.")
        return self.mask

    def around(self, template: str) -> Around:
        """Tokenizes a template.

        Returns:
            The token ids before and after the text, and the distance of [MASK] from the end.

        """
        if template not in self._around:
            written, distance = with_template(self.tokenizer, template)
            before, after = affixes(open_tokenizer(written))
            self._around[template] = (tuple(before), tuple(after), distance)
        return self._around[template]

    @cached_property
    def is_special(self) -> Tensor:
        """Which tokens are special, bool, shape (size,)."""
        found = torch.zeros(self.size, dtype=torch.bool)
        found[list(self.special)] = True
        return found

    @cached_property
    def ordinary(self) -> Tensor:
        """Token ids that are not special, int64."""
        return (~self.is_special).nonzero()[:, 0]

    @cached_property
    def begins_word(self) -> Tensor:
        """Which tokens begin a word, bool, shape (size,).

        A token that begins with ## in WordPiece, or without Ġ or ▁ in other vocabularies, continues a word.
        In a vocabulary without such marks, every token begins a word.
        """
        vocabulary = open_tokenizer(self.tokenizer).get_vocab()
        goes_on = _goes_on(self.tokenizer.get("model") or {}, vocabulary)
        found = torch.ones(self.size, dtype=torch.bool)
        found[[id for token, id in vocabulary.items() if id < self.size and goes_on(token)]] = False
        return found


def _goes_on(model: Mapping[str, Any], vocabulary: Iterable[str]) -> Callable[[str], bool]:
    if model.get("type") == "WordPiece":
        prefix = model.get("continuing_subword_prefix") or "##"
        return lambda token: token.startswith(prefix)
    spaced = any(token.startswith(_SPACES) for token in vocabulary)
    return lambda token: spaced and not token.startswith(_SPACES)


def surround(tokens: Tokens, lexicon: Lexicon, before: tuple[int, ...], after: tuple[int, ...]) -> Tokens:
    """Replaces the ids that the tokenizer adds before and after each text by `before` and `after`."""
    places, end = tokens.places(), (tokens.lengths - len(lexicon.after))[tokens.rows()]
    inner = tokens.keep((places >= len(lexicon.before)) & (places < end))
    texts = torch.split(inner.ids, inner.lengths.tolist())
    first, last = torch.tensor(before, dtype=torch.int64), torch.tensor(after, dtype=torch.int64)
    starts = inner.starts + (len(before) + len(after)) * torch.arange(len(tokens) + 1)
    return Tokens(torch.cat([part for text in texts for part in (first, text, last)]), starts)

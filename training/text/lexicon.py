"""Lexicon: what a view or an objective has to know about the ids of a base model's tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
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
_SPACES = ("Ġ", "▁")  # what byte-level and sentencepiece vocabularies write for the space before a word


@dataclass(frozen=True)
class Lexicon:
    size: int  # ids are 0 to size - 1
    before: tuple[int, ...]  # what the tokenizer puts before a text
    after: tuple[int, ...]
    mask: int | None
    special: tuple[int, ...]  # never masked, repeated or deleted, and never put in by chance
    tokenizer: Mapping[str, Any]  # tokenizer.json

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
            # A tokenizer may have tokens that the model has no row for.
            mask=next((id for id in masks if id is not None and id < size), None),
            special=tuple(sorted(id for id in special if id < size)),
            tokenizer=source.tokenizer,
        )

    @property
    def affixes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.before, self.after

    def mask_id(self) -> int:
        """Raise TrainingError when there is none."""
        if self.mask is None:
            raise TrainingError("The base's tokenizer has no [MASK] token, which this recipe needs.")
        return self.mask

    def around(self, template: str) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """The ids before and after a text in `template`, and how far from the end its [MASK] is."""
        if template not in self._around:
            written, distance = with_template(self.tokenizer, template)
            before, after = affixes(open_tokenizer(written))
            self._around[template] = (tuple(before), tuple(after), distance)
        return self._around[template]

    @cached_property
    def _around(self) -> dict[str, tuple[tuple[int, ...], tuple[int, ...], int]]:
        """Answers so far: each step asks again."""
        return {}

    @cached_property
    def is_special(self) -> Tensor:
        """Bool (size,)"""
        found = torch.zeros(self.size, dtype=torch.bool)
        found[list(self.special)] = True
        return found

    @cached_property
    def ordinary(self) -> Tensor:
        """The ids that stand for text, int64."""
        return (~self.is_special).nonzero()[:, 0]

    @cached_property
    def begins_word(self) -> Tensor:
        """Bool (size,): not where a token goes on with the word before it (WordPiece's ##, no Ġ or ▁).

        A vocabulary that writes neither has words for tokens.
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
    """Other ids before and after each text than the tokenizer's own."""
    lost, gained = (len(lexicon.before), len(lexicon.after)), (len(before), len(after))
    lengths = tokens.lengths + sum(gained) - sum(lost)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    ids = torch.empty(int(starts[-1]), dtype=torch.int64)
    at = tokens.places() + (starts[:-1] + gained[0] - lost[0])[tokens.rows()]
    inner = (tokens.places() >= lost[0]) & (tokens.places() < (tokens.lengths - lost[1])[tokens.rows()])
    ids[at[inner]] = tokens.ids[inner]
    ids[(starts[:-1, None] + torch.arange(gained[0])).flatten()] = torch.tensor(before).repeat(len(tokens))
    ids[(starts[1:, None] - gained[1] + torch.arange(gained[1])).flatten()] = torch.tensor(after).repeat(
        len(tokens)
    )
    return Tokens(ids, starts)

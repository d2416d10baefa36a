"""Lexicon: what a view or an objective has to know about the ids of a base model's tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tokenizers
import torch
from torch import Tensor

from models.source import Source
from models.template import with_template
from models.tokenizer import affixes
from training.errors import TrainingError

_MASKS = ("[MASK]", "<mask>")


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
        opened = tokenizers.Tokenizer.from_str(json.dumps(source.tokenizer))
        opened.no_padding()
        opened.no_truncation()
        before, after = affixes(opened)
        masks = (opened.token_to_id(name) for name in _MASKS)
        special = {
            token["id"] for token in source.tokenizer.get("added_tokens") or [] if token.get("special")
        }
        return cls(
            size=source.config.get("vocab_size") or opened.get_vocab_size(with_added_tokens=True),
            before=tuple(before),
            after=tuple(after),
            mask=next((id for id in masks if id is not None), None),
            special=tuple(sorted(special)),
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
            opened = tokenizers.Tokenizer.from_str(json.dumps(written))
            opened.no_padding()
            opened.no_truncation()
            before, after = affixes(opened)
            self._around[template] = (tuple(before), tuple(after), distance)
        return self._around[template]

    @cached_property
    def _around(self) -> dict[str, tuple[tuple[int, ...], tuple[int, ...], int]]:
        """What was asked for already: each step asks again."""
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
        """Bool (size,): not where a token goes on with the word before it (WordPiece's ##, no Ġ or ▁)."""
        model = self.tokenizer.get("model") or {}
        vocabulary = tokenizers.Tokenizer.from_str(json.dumps(self.tokenizer)).get_vocab()
        found = torch.ones(self.size, dtype=torch.bool)
        prefix = model.get("continuing_subword_prefix") or "##"
        goes_on = _goes_on_after(prefix) if model.get("type") == "WordPiece" else _goes_on_without_space
        found[[id for token, id in vocabulary.items() if id < self.size and goes_on(token)]] = False
        return found


def _goes_on_after(prefix: str) -> Any:
    return lambda token: token.startswith(prefix) and token != prefix


def _goes_on_without_space(token: str) -> bool:
    return not token.startswith(("Ġ", "▁"))

"""Views: what is done to the tokens of a text before it is encoded. Pure: tokens in, other tokens out.

    same        the text as it is: two of them still differ by their dropout masks
    mask        some tokens hidden, to be guessed (BERT: 15 % of them, 80/10/10)
    repeat      some tokens twice (ESimCSE)
    delete      some words left out (TSDAE; SimCSE's ablation), or a single one
    crop        one piece of the text (SimCSE's ablation)
    template    the text in a sentence whose [MASK] stands for it (PromptBERT)
    cutoff      some tokens' embeddings, or some features of all of them, are zero (ConSERT)
    shuffle     the tokens at each other's positions (ConSERT)

Special tokens stay where they are. A view that stands `aside` is not contrasted: an objective reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from training.text.lexicon import Lexicon, surround
from training.text.tokens import NOT_A_TARGET, Tokens
from training.validation import Flag, Rate, Share


class View(Protocol):
    def __call__(self, tokens: Tokens, generator: torch.Generator, lexicon: Lexicon, /) -> Tokens:
        """Change the texts; there are as many as `tokens` has, and `tokens` itself is not changed."""


@dataclass(frozen=True)
class Same:
    aside: Flag = False
    name: Literal["same"] = "same"

    def __call__(self, tokens: Tokens, _generator: torch.Generator, _lexicon: Lexicon, /) -> Tokens:
        return tokens


@dataclass(frozen=True)
class Mask:
    """Each token is a target with probability `rate`: 80 % become [MASK], 10 % any token, 10 % stay.

    Devlin et al. 2019, section 3.1.
    """

    rate: Share
    aside: Flag = True
    name: Literal["mask"] = "mask"

    def __call__(self, tokens: Tokens, generator: torch.Generator, lexicon: Lexicon, /) -> Tokens:
        chosen = torch.rand(len(tokens.ids), generator=generator) < self.rate
        chosen &= ~_fixed(tokens, lexicon)
        kind = torch.rand(len(tokens.ids), generator=generator)
        any_token = lexicon.ordinary[
            torch.randint(len(lexicon.ordinary), tokens.ids.shape, generator=generator)
        ]
        ids = tokens.ids.masked_fill(chosen & (kind < 0.8), lexicon.mask_id())
        ids = torch.where(chosen & (kind >= 0.9), any_token, ids)
        return Tokens(ids, tokens.starts, tokens.ids.masked_fill(~chosen, NOT_A_TARGET), tokens.positions)


@dataclass(frozen=True)
class Repeat:
    """Subword repetition: as many tokens as a draw from 0 to `rate` of the length says stand twice in a row.

    Wu et al. 2022 (ESimCSE), section 3.1: max(2, rate * length) bounds the draw.
    """

    rate: Share
    name: Literal["repeat"] = "repeat"

    def room(self, most: int) -> int:
        """The longest that a text may be to have at most `most` tokens afterwards."""
        return next(
            length for length in range(most, 0, -1) if length + max(2, int(length * self.rate)) <= most
        )

    def __call__(self, tokens: Tokens, generator: torch.Generator, lexicon: Lexicon, /) -> Tokens:
        free = ~_fixed(tokens, lexicon)
        most = (tokens.lengths * self.rate).long().clamp(min=2)
        count = (torch.rand(len(tokens), generator=generator) * (most + 1)).long()
        times = 1 + (_first_in_random_order(tokens, free, count, generator)).long()
        ids = tokens.ids.repeat_interleave(times)
        ends = torch.cat([torch.zeros(1, dtype=torch.int64), times.cumsum(0)])
        return Tokens(ids, ends[tokens.starts])


@dataclass(frozen=True)
class Delete:
    """Each word is left out with probability `rate`, or exactly one when it is 0; at least one word stays."""

    rate: Share
    name: Literal["delete"] = "delete"

    def __call__(self, tokens: Tokens, generator: torch.Generator, lexicon: Lexicon, /) -> Tokens:
        special, words, owner, in_text = _words(tokens, lexicon)
        if not len(owner):
            return tokens
        lot = torch.rand(len(owner), generator=generator)
        order = _rank_within(owner, lot)
        gone = order == 0 if self.rate == 0 else lot < self.rate
        gone &= order < (in_text - 1)[owner]  # the word with the highest lot stays
        return _keep_words(tokens, special, words, ~gone)


@dataclass(frozen=True)
class Crop:
    """A piece of `keep` of the words, beginning anywhere that it fits; at least one word."""

    keep: Rate
    name: Literal["crop"] = "crop"

    def __call__(self, tokens: Tokens, generator: torch.Generator, lexicon: Lexicon, /) -> Tokens:
        special, words, owner, in_text = _words(tokens, lexicon)
        length = (in_text * self.keep).round().long().clamp(min=1)
        first = (torch.rand(len(tokens), generator=generator) * (in_text - length + 1)).long()
        place = torch.arange(len(owner)) - (in_text.cumsum(0) - in_text)[owner]
        inside = (place >= first[owner]) & (place < (first + length)[owner])
        return _keep_words(tokens, special, words, inside)


@dataclass(frozen=True)
class Cutoff:
    """A share of each text's tokens, or of the columns of its embeddings, is zeroed (model/encoder.py).

    Yan et al. 2021 (ConSERT), section 3.2.2. The share is a chance of each: the published code zeroes a
    fixed number.
    """

    tokens: Share = 0.0
    features: Share = 0.0
    name: Literal["cutoff"] = "cutoff"

    def __call__(self, tokens: Tokens, _generator: torch.Generator, _lexicon: Lexicon, /) -> Tokens:
        shares = torch.tensor([self.tokens, self.features]).repeat(len(tokens), 1)
        return replace(tokens, cutoff=shares)


@dataclass(frozen=True)
class Shuffle:
    """The positions of a text's tokens, special ones too, in a random order. ConSERT, section 3.2.2."""

    name: Literal["shuffle"] = "shuffle"

    def __call__(self, tokens: Tokens, generator: torch.Generator, _lexicon: Lexicon, /) -> Tokens:
        lot = torch.rand(len(tokens.ids), generator=generator)
        return replace(tokens, positions=_rank_within(tokens.rows(), lot))


@dataclass(frozen=True)
class Template:
    """The text in `text`, as `This sentence of "{}" means [MASK].`; its vector is that of the [MASK].

    less_bias: what the template gives without a text is subtracted, with the positions that its tokens have
        around this text (Jiang et al. 2022, section 4.2).
    """

    text: str
    less_bias: Flag = True
    name: Literal["template"] = "template"

    def __call__(self, tokens: Tokens, _generator: torch.Generator, lexicon: Lexicon, /) -> Tokens:
        before, after, _ = lexicon.around(self.text)
        return surround(tokens, lexicon, before, after)

    def bias(self, tokens: Tokens, lexicon: Lexicon) -> tuple[Tokens, Tensor]:
        """The empty template for each length of text, and int64 (R,): which of them is each text's.

        tokens: the texts in the template already, as this view gave them.
        """
        before, after, _ = lexicon.around(self.text)
        own = tokens.lengths - len(before) - len(after)
        lengths, of_text = torch.unique(own, return_inverse=True)
        size = len(before) + len(after)
        ids = torch.tensor([*before, *after]).repeat(len(lengths))
        places = torch.arange(size).repeat(len(lengths), 1)
        places[:, len(before) :] += lengths[:, None]
        return Tokens(ids, torch.arange(len(lengths) + 1) * size, positions=places.flatten()), of_text


def stands_aside(view: View) -> bool:
    return bool(getattr(view, "aside", False))


def _fixed(tokens: Tokens, lexicon: Lexicon) -> Tensor:
    """Bool (all tokens,): special ids, and whatever else the tokenizer puts around a text (a template)."""
    places, lengths = tokens.places(), tokens.lengths[tokens.rows()]
    affix = (places < len(lexicon.before)) | (places >= lengths - len(lexicon.after))
    return affix | lexicon.is_special[tokens.ids]


def _words(tokens: Tokens, lexicon: Lexicon) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Special tokens, bool; the number of each token's word; each word's text; the words of each text."""
    special, rows = _fixed(tokens, lexicon), tokens.rows()
    after_special = torch.cat([torch.ones(1, dtype=torch.bool), special[:-1]])
    new_text = torch.cat([torch.ones(1, dtype=torch.bool), rows.diff() > 0])
    begins = (lexicon.begins_word[tokens.ids] | after_special | new_text) & ~special
    owner = rows[begins]
    return special, begins.long().cumsum(0) - 1, owner, torch.bincount(owner, minlength=len(tokens))


def _keep_words(tokens: Tokens, special: Tensor, words: Tensor, stay: Tensor) -> Tokens:
    """Without the words that do not `stay`, bool (all words,); special tokens all stay."""
    kept = special.clone()
    kept[~special] = stay[words[~special]]
    return tokens.keep(kept)


def _rank_within(owner: Tensor, lot: Tensor) -> Tensor:
    """The rank of each among those of the same owner, the lowest lot first. owner: never falls."""
    order = torch.argsort(owner.double() + lot.double(), stable=True)  # lots are below 1
    firsts = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(owner).cumsum(0)])
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order)) - firsts[owner[order]]
    return rank


def _first_in_random_order(tokens: Tokens, free: Tensor, count: Tensor, generator: torch.Generator) -> Tensor:
    """Bool (all tokens,): as many of the free tokens of each text as `count` says, or all of them."""
    owner = tokens.rows()[free]
    chosen = torch.zeros(len(tokens.ids), dtype=torch.bool)
    lot = torch.rand(len(owner), generator=generator)
    if len(owner):
        chosen[free] = _rank_within(owner, lot) < count[owner]
    return chosen

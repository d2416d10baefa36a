"""Views: functions that change the tokens of texts before the texts are encoded.

    same        changes nothing; the vectors of two such views still differ by their dropout masks
    mask        hides some tokens, which an objective predicts (BERT: 15 % of them, 80/10/10)
    repeat      repeats some tokens (ESimCSE)
    delete      leaves out some words, or a single word (TSDAE; SimCSE's ablation)
    crop        keeps one piece of the text (SimCSE's ablation)
    template    puts the text into a sentence whose [MASK] represents it (PromptBERT)
    cutoff      zeroes the embeddings of some tokens, or some features of all tokens (ConSERT)
    shuffle     exchanges the positions of the tokens (ConSERT)

Special tokens stay in place. The vectors of most views are compared by the objectives; these views are called
contrasted. A view with `aside = true` stands aside: an objective reads only its tokens, for example to
reconstruct the text.
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
        """Returns a changed copy of the tokens, with the same number of texts."""


@dataclass(frozen=True)
class Same:
    aside: Flag = False
    name: Literal["same"] = "same"

    def __call__(self, tokens: Tokens, _generator: torch.Generator, _lexicon: Lexicon, /) -> Tokens:
        return tokens


@dataclass(frozen=True)
class Mask:
    """Hides tokens that an objective then predicts (Devlin et al. 2019, section 3.1).

    Each token is selected with probability `rate`. Of these tokens, 80 % become [MASK], 10 % become a random
    token, and 10 % stay.
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
    """Repeats random tokens: a random number of them from 0 to max(2, `rate` * length).

    This is the subword repetition of Wu et al. 2022 (ESimCSE, section 3.1).
    """

    rate: Share
    name: Literal["repeat"] = "repeat"

    def room(self, most: int) -> int:
        """Returns the maximum length of an input text whose repeated text has at most `most` tokens."""
        return next(
            length for length in range(most, 0, -1) if length + max(2, int(length * self.rate)) <= most
        )

    def __call__(self, tokens: Tokens, generator: torch.Generator, lexicon: Lexicon, /) -> Tokens:
        free = ~_fixed(tokens, lexicon)
        most = (tokens.lengths * self.rate).long().clamp(min=2)
        count = (torch.rand(len(tokens), generator=generator) * (most + 1)).long()
        owner = tokens.rows()[free]
        rank = _rank_within(owner, torch.rand(len(owner), generator=generator))
        times = torch.ones(len(tokens.ids), dtype=torch.int64)
        times[free] += rank < count[owner]
        ids = tokens.ids.repeat_interleave(times)
        ends = torch.cat([torch.zeros(1, dtype=torch.int64), times.cumsum(0)])
        return Tokens(ids, ends[tokens.starts])


@dataclass(frozen=True)
class Delete:
    """Leaves out each word with probability `rate`, or exactly one random word if `rate` is 0.

    At least one word always stays.
    """

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
    """Keeps only consecutive words at a random place: a share `keep` of all words, and at least one."""

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
    """Zeroes the embeddings of random tokens, or random columns of all embeddings (model/encoder.py).

    The method is from Yan et al. 2021 (ConSERT, section 3.2.2). `tokens` and `features` are the probabilities
    that a token or a column is zeroed. The published code instead zeroes a fixed number.
    """

    tokens: Share = 0.0
    features: Share = 0.0
    name: Literal["cutoff"] = "cutoff"

    def __call__(self, tokens: Tokens, _generator: torch.Generator, _lexicon: Lexicon, /) -> Tokens:
        shares = torch.tensor([self.tokens, self.features]).repeat(len(tokens), 1)
        return replace(tokens, cutoff=shares)


@dataclass(frozen=True)
class Shuffle:
    """Shuffles the positions of a text's tokens, including special tokens (ConSERT, section 3.2.2)."""

    name: Literal["shuffle"] = "shuffle"

    def __call__(self, tokens: Tokens, generator: torch.Generator, _lexicon: Lexicon, /) -> Tokens:
        lot = torch.rand(len(tokens.ids), generator=generator)
        return replace(tokens, positions=_rank_within(tokens.rows(), lot))


@dataclass(frozen=True)
class Template:
    """Puts a text into a template such as `This sentence of "{}" means [MASK].`.

    The vector of the text is then the token vector of [MASK].

    Attributes:
        text: The template.
        less_bias: If True, the vector of the empty template is subtracted. The tokens of the empty template
            keep the positions that they have around the text (Jiang et al. 2022, section 4.2).

    """

    text: str
    less_bias: Flag = True
    name: Literal["template"] = "template"

    def __call__(self, tokens: Tokens, _generator: torch.Generator, lexicon: Lexicon, /) -> Tokens:
        before, after, _ = lexicon.around(self.text)
        return surround(tokens, lexicon, before, after)

    def bias(self, tokens: Tokens, lexicon: Lexicon) -> tuple[Tokens, Tensor]:
        """Builds empty templates, one for each length of the texts.

        Args:
            tokens: Texts that this view has already put into the template.
            lexicon: Facts about the tokenizer.

        Returns:
            The empty templates, and the index of each text's template, int64, shape (R,).

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
    """Returns which tokens are special or added around a text by the tokenizer: bool, shape (all tokens,)."""
    places, lengths = tokens.places(), tokens.lengths[tokens.rows()]
    affix = (places < len(lexicon.before)) | (places >= lengths - len(lexicon.after))
    return affix | lexicon.is_special[tokens.ids]


def _words(tokens: Tokens, lexicon: Lexicon) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Finds the words of the texts.

    Returns:
        Four tensors: which tokens are special (bool, one per token), the index of each token's word, the
        index of each word's text, and the number of words in each text.

    """
    special, rows = _fixed(tokens, lexicon), tokens.rows()
    after_special = torch.cat([torch.ones(1, dtype=torch.bool), special[:-1]])
    new_text = torch.cat([torch.ones(1, dtype=torch.bool), rows.diff() > 0])
    begins = (lexicon.begins_word[tokens.ids] | after_special | new_text) & ~special
    owner = rows[begins]
    return special, begins.long().cumsum(0) - 1, owner, torch.bincount(owner, minlength=len(tokens))


def _keep_words(tokens: Tokens, special: Tensor, words: Tensor, stay: Tensor) -> Tokens:
    """Removes the words that do not stay.

    Args:
        tokens: The texts.
        special: Which tokens are special, bool, shape (all tokens,). They stay.
        words: Index of the word of each token.
        stay: Which words stay, bool, shape (all words,).

    """
    kept = special.clone()
    kept[~special] = stay[words[~special]]
    return tokens.keep(kept)


def _rank_within(owner: Tensor, lot: Tensor) -> Tensor:
    """Ranks random numbers within groups.

    Args:
        owner: Group of each number, ascending.
        lot: Random numbers from 0 to below 1.

    Returns:
        The rank of each number within its group. The lowest number has rank 0.

    """
    order = torch.argsort(owner.double() + lot.double(), stable=True)  # lots are below 1
    firsts = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(owner).cumsum(0)])
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order)) - firsts[owner[order]]
    return rank

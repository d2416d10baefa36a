"""Join the tokens of two texts to the row that a cross-encoder reads.

    first, second ─▶ cut to the room for both ─▶ [CLS] first [SEP] second [SEP], types 0 … 0 1 … 1

Start reading at `PairTemplate.join`. Texts are tokenized without special tokens, so a query is tokenized once
for all of its documents, and a text that has the characters "[SEP]" cannot end the first half.
"""

# ruff: noqa: N803, N806  shapes live in names
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor

from models.tokens.tokenizer import open_tokenizer
from training.errors import TrainingError
from training.text.tokens import Tokens, join


@dataclass(frozen=True)
class PairTemplate:
    """Special tokens around and between two texts."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    typed: int  # tokens of `between` with type 1; all of `after` have the type of the second text
    types: bool  # False if the second text has type 0 as well

    @classmethod
    def of(cls, tokenizer: Mapping[str, Any]) -> PairTemplate:
        """Reads the template from the content of tokenizer.json.

        Raises:
            TrainingError: The tokenizer puts nothing between two texts.

        """
        found = open_tokenizer(tokenizer).encode("a", "b")
        places = [[at for at, text in enumerate(found.sequence_ids) if text == which] for which in (0, 1)]
        (first, *_), (second, *_) = places
        end = places[0][-1] + 1
        if end == second:
            raise TrainingError(
                "The base's tokenizer puts no token between two texts, which a cross-encoder needs. Take "
                "another base."
            )
        return cls(
            tuple(found.ids[:first]),
            tuple(found.ids[end:second]),
            tuple(found.ids[places[1][-1] + 1 :]),
            sum(found.type_ids[end:second]),
            found.type_ids[second] == 1,
        )

    def join(self, first: Tokens, second: Tokens, max_length: int) -> Tokens:
        """Joins text r of `first` with text r of `second`, in at most `max_length` tokens.

        Args:
            first: Texts without special tokens.
            second: As many texts without special tokens.
            max_length: Maximum tokens of a pair, including special tokens.

        """
        room = max_length - len(self.before) - len(self.between) - len(self.after)
        first_R, second_R = cut_longest_first(first.lengths, second.lengths, room)
        rows = torch.arange(len(first))
        parts = (
            _repeated(self.before, len(rows)),
            first.keep(first.places() < first_R[first.rows()]),
            _repeated(self.between, len(rows)),
            second.keep(second.places() < second_R[second.rows()]),
            _repeated(self.after, len(rows)),
        )
        # Texts part after part, reordered to the parts of each pair.
        order = (rows[:, None] + len(rows) * torch.arange(len(parts))).flatten()
        found = join(parts).select(order)
        starts = found.starts[:: len(parts)]
        begins = len(self.before) + first_R + len(self.between) - self.typed
        return Tokens(found.ids, starts, second=begins if self.types else starts.diff())


def cut_longest_first(first_R: Tensor, second_R: Tensor, room: int) -> tuple[Tensor, Tensor]:
    """Returns how many tokens of both texts to keep, as the library tokenizers does for `longest_first`.

    Only the longer text is cut if that is enough. Otherwise both keep half of the room.

    Args:
        first_R: Tokens of the first texts, int64.
        second_R: Tokens of the second texts, int64.
        room: Maximum tokens of both together.

    """
    shorter_R, longer_R = torch.minimum(first_R, second_R), torch.maximum(first_R, second_R)
    longer_R = torch.minimum(longer_R, torch.maximum(shorter_R, room - shorter_R))
    over_R = shorter_R + longer_R > room
    shorter_R = torch.where(over_R, room // 2, shorter_R)
    longer_R = torch.where(over_R, room - room // 2, longer_R)
    swap_R = first_R > second_R
    return torch.where(swap_R, longer_R, shorter_R), torch.where(swap_R, shorter_R, longer_R)


def _repeated(ids: tuple[int, ...], count: int) -> Tokens:
    starts = F.pad(torch.full((count,), len(ids)).cumsum(0), (1, 0))
    return Tokens(torch.tensor(ids, dtype=torch.int64).repeat(count), starts)

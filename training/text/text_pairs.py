"""Join the tokens of two texts to the row that a cross-encoder reads. Start reading at `join_pairs`.

    first, second ─▶ cut to the room for both ─▶ [CLS] first [SEP] second [SEP]

Texts are tokenized without special tokens, so a query is tokenized once for all of its documents.
"""

# ruff: noqa: N803, N806  shapes live in names
from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor

from models.tokens.pairs import Around
from training.text.tokens import Tokens, join


def join_pairs(around: Around, first: Tokens, second: Tokens, max_length: int) -> Tokens:
    """Joins text r of `first` with text r of `second`.

    Args:
        around: Special tokens of a pair.
        first: Texts without special tokens.
        second: As many texts without special tokens.
        max_length: Maximum tokens of a pair, including special tokens.

    """
    before, between, after, types = around
    room = max_length - len(before) - len(between) - len(after)
    first_R, second_R = cut_longest_first(first.lengths, second.lengths, room)
    rows = torch.arange(len(first))
    parts = (
        _repeated(before, len(rows)),
        first.keep(first.places() < first_R[first.rows()]),
        _repeated(between, len(rows)),
        second.keep(second.places() < second_R[second.rows()]),
        _repeated(after, len(rows)),
    )
    # Reordered from all texts of each part to all parts of each pair.
    order = (rows[:, None] + len(rows) * torch.arange(len(parts))).flatten()
    found = join(parts).select(order)
    starts = found.starts[:: len(parts)]
    begins = len(before) + first_R + len(between)
    return Tokens(found.ids, starts, second=begins if types else starts.diff())


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


def _repeated(ids: Sequence[int], count: int) -> Tokens:
    starts = F.pad(torch.full((count,), len(ids)).cumsum(0), (1, 0))
    return Tokens(torch.tensor(ids, dtype=torch.int64).repeat(count), starts)

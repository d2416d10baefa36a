"""Views: what is done to the tokens of a text before it is encoded. Pure: tokens in, other tokens out.

    [11, 12, 13 | 21, 22]  ─▶  same  ─▶  [11, 12, 13 | 21, 22]

Two views of one text that are the `same` still differ in the encoder: each row has a dropout mask of its own.
"""

# ruff: noqa: N806  shapes live in names
from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Tokens(NamedTuple):
    """N texts without padding: text n is ids[starts[n]:starts[n + 1]], special ids included."""

    ids: Tensor  # int64 (all tokens,)
    starts: Tensor  # int64 (N + 1,)

    def to(self, device: torch.device) -> Tokens:
        return Tokens(self.ids.to(device), self.starts.to(device))

    def padded(self, pad_id: int) -> tuple[Tensor, Tensor]:
        """(ids, mask), int64 (N, T): T is the longest text, mask is 1 on its tokens."""
        lengths = self.starts.diff()
        places_T = torch.arange(int(lengths.max()), device=self.ids.device)
        mask_NT = places_T < lengths[:, None]
        ids_NT = self.ids[(self.starts[:-1, None] + places_T).clamp(max=len(self.ids) - 1)]
        return ids_NT.where(mask_NT, pad_id), mask_NT.long()


class View(Protocol):
    def __call__(self, tokens: Tokens, generator: torch.Generator, /) -> Tokens:
        """As many texts as `tokens` has; `tokens` itself is not changed."""


@dataclass(frozen=True)
class Same:
    """The text as it is."""

    def __call__(self, tokens: Tokens, _generator: torch.Generator, /) -> Tokens:
        return tokens


VIEWS = {"same": Same}


def join(views: list[Tokens]) -> Tokens:
    """The views below each other: first all texts of the first one."""
    shift = 0
    starts = [torch.zeros_like(views[0].starts[:1])]
    for view in views:
        starts.append(view.starts[1:] + shift)
        shift += len(view.ids)
    return Tokens(torch.cat([view.ids for view in views]), torch.cat(starts))

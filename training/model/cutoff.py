"""Cutoff: tokens or features of a text zeroed behind the embeddings (Yan et al. 2021, ConSERT, 3.2.2).

embeddings, norm, dropout ─▶ 0 for some tokens, or for some columns of a text ─▶ layer, layer …
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from training.errors import TrainingError
from training.model.packed import FAMILIES
from training.text.tokens import Tokens


@contextlib.contextmanager
def cut_off(backbone: Any, tokens: Tokens) -> Iterator[None]:
    """Zero what `tokens.cutoff` says while the backbone runs; nothing where it is None.

    The places are drawn from torch's own generator, as dropout's: they come again with its state.
    Raise TrainingError for a backbone whose embeddings are no module of their own.
    """
    if tokens.cutoff is None:
        yield
        return
    if backbone.config.model_type not in FAMILIES:
        raise TrainingError(f"The view `cutoff` is there for {', '.join(FAMILIES)} only.")
    keep = kept(tokens, int(backbone.config.hidden_size))

    def cut(_module: Any, _inputs: Any, embedded: Tensor) -> Tensor:
        return embedded * keep.to(embedded)

    hook = backbone.embeddings.register_forward_hook(cut)
    try:
        yield
    finally:
        hook.remove()


def kept(tokens: Tokens, width: int) -> Tensor:
    """1 or 0 of each number of the embeddings, (all tokens, width)."""
    assert tokens.cutoff is not None  # noqa: S101  cut_off has looked
    of_tokens, of_features = tokens.cutoff.T
    rows = tokens.rows()
    token_stays = torch.rand(len(tokens.ids)) >= of_tokens[rows]
    feature_stays = torch.rand(len(tokens), width) >= of_features[:, None]
    stays: Tensor = token_stays[:, None] & feature_stays[rows]
    return stays.float()

"""AdamW over the parts of a recipe's model, and the learning rate of each step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from training.methods.recipe import Optim

_RATIO = 32  # of the highest rate to the lowest: Howard and Ruder 2018, section 3.2; AllenNLP's default


def adamw(model: nn.ModuleDict, optim: Optim, table: Tensor | None) -> torch.optim.AdamW:
    """Biases and normalisations do not decay. table: the word table, where it has a rate of its own.

    A group whose rate is its own has it under `highest`.
    """
    heads: list[Tensor] = (
        [*model["head"].parameters(), *model["objectives"].parameters()] if optim.head_lr else []
    )
    apart = {id(tensor) for tensor in [*heads, *([] if table is None else [table])]}
    others: list[Tensor] = [tensor for tensor in model.parameters() if id(tensor) not in apart]
    groups = [*_groups(others, optim), *_groups(heads, optim, highest=optim.head_lr)]
    groups += [] if table is None else _groups([table], optim, highest=optim.table_lr)
    return torch.optim.AdamW(groups, eps=optim.epsilon, fused=True)


def _groups(tensors: list[Tensor], optim: Optim, **more: Any) -> list[dict[str, Any]]:
    trained = [tensor for tensor in tensors if tensor.requires_grad]
    matrices = [tensor for tensor in trained if tensor.ndim > 1]
    vectors = [tensor for tensor in trained if tensor.ndim <= 1]
    decays = ((matrices, optim.weight_decay), (vectors, 0.0))
    return [{"params": part, "weight_decay": decay, **more} for part, decay in decays if part]


def rate(optim: Optim, steps: int, number: int, highest: float | None = None) -> float:
    """The learning rate of step `number` of `steps`: up over the warmup, and then as `decay` says.

    linear: down to 0 after the last. constant: flat. slanted: from a 32nd up and back down to it.
    highest: instead of `lr`.
    """
    lr = optim.lr if highest is None else highest
    warmup = round(optim.warmup * steps)
    share = number / warmup if number < warmup else (steps - number) / (steps - warmup)
    if optim.decay == "slanted":
        return lr * (1 + share * (_RATIO - 1)) / _RATIO
    return lr if optim.decay == "constant" and number >= warmup else lr * share

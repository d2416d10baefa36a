"""The head of a masked language model: from token vectors to the ids that could stand there.

    hidden ─▶ linear ─▶ activation ─▶ norm ─▶ the word table itself ─▶ logits

BERT's and RoBERTa's, under the names that their checkpoints have, so that a base brings its own. Where it
brings none the head begins at random.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor, nn
from transformers.activations import ACT2FN

from models.graph.backbone import modern_name, read_safetensors
from models.sources.folder import Source
from training.errors import TrainingError

_SPREAD = 0.02  # BERT's initializer_range
# Names of the linear layer, of the norm, and of what has the bias.
_BERT = ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions")
_ROBERTA = ("lm_head.dense", "lm_head.layer_norm", "lm_head")
_DISTILBERT = ("vocab_transform", "vocab_layer_norm", "vocab_projector")
_FAMILIES = dict.fromkeys(("roberta", "xlm-roberta", "camembert", "mpnet"), _ROBERTA)
_FAMILIES["distilbert"] = _DISTILBERT


class LanguageHead(nn.Module):
    def __init__(self, width: int, vocabulary: int, activation: str, epsilon: float) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=epsilon)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self._activate: Callable[[Tensor], Tensor] = ACT2FN[activation]

    def forward(self, hidden: Tensor, table: Tensor) -> Tensor:
        """(tokens, D), and the word table (vocabulary, D) -> logits (tokens, vocabulary)."""
        return F.linear(self.norm(self._activate(self.dense(hidden))), table, self.bias)


def language_head(source: Source, generator: torch.Generator) -> tuple[LanguageHead, bool]:
    """The head of a base, and whether its weights were there; else it is random."""
    config = source.config
    if source.is_table or config.get("embedding_size", source.width) != source.width:
        raise TrainingError(
            f"A base of the family {config.get('model_type')!r} cannot guess words: that needs layers "
            "as wide as the word table. Train it by another recipe, as simcse-unsup."
        )
    head = LanguageHead(
        source.width,
        int(config["vocab_size"]),
        str(config.get("hidden_act", "gelu")),
        float(config.get("layer_norm_eps", 1e-12)),
    )
    stored = stored_head(source)
    if stored is None:
        nn.init.normal_(head.dense.weight, std=_SPREAD, generator=generator)
        nn.init.zeros_(head.dense.bias)
        return head, False
    head.load_state_dict(stored)
    return head, True


def stored_head(source: Source) -> dict[str, Tensor] | None:
    """The weights of a base's head by our names, or None."""
    tensors = {
        modern_name(name): array for file in source.weights for name, array in read_safetensors(file).items()
    }
    for family in (_BERT, _ROBERTA, _DISTILBERT):
        names = _names(family)
        if tensors.keys() >= {*names.values()}:
            return {own: torch.from_numpy(tensors[name].copy()) for own, name in names.items()}
    return None


def published_head(head: LanguageHead, family: str) -> Mapping[str, Tensor]:
    """Its weights by the names that its family has for them, else by BERT's."""
    state = head.state_dict()
    return {name: state[own] for own, name in _names(_FAMILIES.get(family, _BERT)).items()}


def _names(family: tuple[str, str, str]) -> dict[str, str]:
    """Our names of the weights to those of a family."""
    dense, norm, last = family
    both = {"dense": dense, "norm": norm}
    found = {f"{own}.{kind}": f"{at}.{kind}" for own, at in both.items() for kind in ("weight", "bias")}
    return found | {"bias": f"{last}.bias"}

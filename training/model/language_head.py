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

from models.graph.backbone import read_safetensors
from models.sources.folder import Source
from training.errors import TrainingError

_SPREAD = 0.02  # BERT's initializer_range
_NAMES = (  # ours: BERT's, RoBERTa's, BERT's as it was converted from TensorFlow, DistilBERT's
    (
        "dense.weight",
        "cls.predictions.transform.dense.weight",
        "lm_head.dense.weight",
        "vocab_transform.weight",
    ),
    ("dense.bias", "cls.predictions.transform.dense.bias", "lm_head.dense.bias", "vocab_transform.bias"),
    (
        "norm.weight",
        "cls.predictions.transform.LayerNorm.weight",
        "lm_head.layer_norm.weight",
        "cls.predictions.transform.LayerNorm.gamma",
        "vocab_layer_norm.weight",
    ),
    (
        "norm.bias",
        "cls.predictions.transform.LayerNorm.bias",
        "lm_head.layer_norm.bias",
        "cls.predictions.transform.LayerNorm.beta",
        "vocab_layer_norm.bias",
    ),
    ("bias", "cls.predictions.bias", "lm_head.bias", "vocab_projector.bias"),
)
_COLUMNS = {"roberta": 2, "xlm-roberta": 2, "camembert": 2, "mpnet": 2, "distilbert": -1}  # of _NAMES


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
    tensors = {name: array for file in source.weights for name, array in read_safetensors(file).items()}
    found: dict[str, Tensor] = {}
    for own, *others in _NAMES:
        name = next((name for name in others if name in tensors), None)
        if name is None:
            return None
        found[own] = torch.from_numpy(tensors[name].copy())
    return found


def published_head(head: LanguageHead, family: str) -> Mapping[str, Tensor]:
    """Its weights by the names that its family has for them, else by BERT's."""
    state, column = head.state_dict(), _COLUMNS.get(family, 1)
    return {names[column]: state[names[0]] for names in _NAMES}

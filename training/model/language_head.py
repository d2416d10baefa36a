"""The head of a masked language model, which maps token vectors to logits over the vocabulary.

    hidden ─▶ linear ─▶ activation ─▶ norm ─▶ product with the word embeddings ─▶ logits

If the base has a head with the weight names of BERT, RoBERTa or DistilBERT, the head is loaded. Otherwise the
head starts with random weights.
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

_SPREAD = 0.02  # BERT's initializer_range; torch's default for Linear gave other scores
# Names of the linear layer, of the norm, and of the module with the bias.
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
        """Computes logits, shape (tokens, vocabulary).

        Args:
            hidden: Token vectors, shape (tokens, D).
            table: Word embeddings, shape (vocabulary, D).

        """
        return F.linear(self.norm(self._activate(self.dense(hidden))), table, self.bias)


def bert_linear(inputs: int, outputs: int, generator: torch.Generator, *, bias: bool = True) -> nn.Linear:
    """Returns a linear layer with random weights from the initial distribution of BERT."""
    linear = nn.Linear(inputs, outputs, bias=bias)
    nn.init.normal_(linear.weight, std=_SPREAD, generator=generator)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear


def language_head(source: Source, generator: torch.Generator) -> tuple[LanguageHead, bool]:
    """Returns the masked-language head of a base.

    Returns:
        The head, and True if the weights are from the base, or False if they are random.

    Raises:
        TrainingError: The layers and word embeddings of the base differ in width, or it has no layers.

    """
    config = source.config
    if source.is_table or config.get("embedding_size", source.width) != source.width:
        raise TrainingError(
            f"A base of the family {config.get('model_type')!r} cannot predict words: that needs layers "
            "as wide as the word table. Use another recipe, such as simcse-unsup."
        )
    head = LanguageHead(
        source.width,
        int(config["vocab_size"]),
        str(config.get("hidden_act", "gelu")),
        float(config.get("layer_norm_eps", 1e-12)),
    )
    stored = stored_head(source)
    if stored is None:
        head.dense = bert_linear(source.width, source.width, generator)
        return head, False
    head.load_state_dict(stored)
    return head, True


def stored_head(source: Source) -> dict[str, Tensor] | None:
    """Returns the weights of a base's head with the names of `LanguageHead`, or None without a head."""
    tensors = {
        modern_name(name): array for file in source.weights for name, array in read_safetensors(file).items()
    }
    for family in (_BERT, _ROBERTA, _DISTILBERT):
        names = _names(family)
        if tensors.keys() >= {*names.values()}:
            return {own: torch.from_numpy(tensors[name].copy()) for own, name in names.items()}
    return None


def published_head(head: LanguageHead, family: str) -> Mapping[str, Tensor]:
    """Returns the weights of a head with the names of `family`, or BERT's names if it is unknown."""
    state = head.state_dict()
    return {name: state[own] for own, name in _names(_FAMILIES.get(family, _BERT)).items()}


def _names(family: tuple[str, str, str]) -> dict[str, str]:
    """Maps the weight names of `LanguageHead` to the names in checkpoints of a family."""
    dense, norm, last = family
    both = {"dense": dense, "norm": norm}
    found = {f"{own}.{kind}": f"{at}.{kind}" for own, at in both.items() for kind in ("weight", "bias")}
    return found | {"bias": f"{last}.bias"}

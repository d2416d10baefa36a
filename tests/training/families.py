"""Tiny random RoBERTa and DistilBERT models with the tokenizer of the tiny BERT."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers

from models.publishing.from_torch.backbone import quiet
from tests.tiny import HEADS, INNER, LAYERS, WIDTH, tiny_source

_SHARED = {"max_position_embeddings": 128, "pad_token_id": 0, "initializer_range": 0.2}
_ROBERTA = _SHARED | {
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "type_vocab_size": 1,
}
_DISTILBERT = _SHARED | {"n_layers": LAYERS, "n_heads": HEADS, "dim": WIDTH, "hidden_dim": INNER}


def family_source(folder: Path, family: str) -> Path:
    """Writes a sentence-transformers folder of a `roberta` or `distilbert`, or the tiny BERT for `bert`."""
    tiny_source(folder)
    if family == "bert":
        return folder
    vocabulary = {"vocab_size": json.loads((folder / "config.json").read_bytes())["vocab_size"]}
    torch.manual_seed(0)
    model: transformers.PreTrainedModel
    if family == "roberta":
        model = transformers.RobertaModel(transformers.RobertaConfig.from_dict(_ROBERTA | vocabulary))
    else:
        model = transformers.DistilBertModel(
            transformers.DistilBertConfig.from_dict(_DISTILBERT | vocabulary)
        )
    with quiet():
        model.save_pretrained(folder)
    return folder

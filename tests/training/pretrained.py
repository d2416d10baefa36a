"""Tiny masked language models that transformers writes, to compare our results with its results."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor

from models.publishing.from_torch.backbone import quiet
from tests.tiny import HEADS, INNER, LAYERS, WIDTH
from tests.training.recipe_cases import corpus_for, raw_source
from training.methods.loading import load_encoder
from training.methods.objectives import Materials
from training.methods.recipe import Recipe, load_recipe
from training.methods.sources import Given
from training.model.encoder import TrainedEncoder
from training.runs.step import Trainer
from training.text.corpus import Corpus
from training.text.tokens import Tokens, build_tokens

PAD, CLS, SEP, MASK = 0, 2, 3, 4
_VOCABULARY = 250  # of tests/tiny.py
ROWS = build_tokens([[CLS, 90, 91, 92, 93, SEP], [CLS, 95, SEP], [CLS, 100, 101, 102, SEP], [CLS, SEP]])


class Family(NamedTuple):
    config: Any
    guesser: Any  # a masked language model
    decoder: Any  # an autoregressive model
    prefix: str  # of its encoder


FAMILIES = {
    "bert": Family(
        transformers.BertConfig, transformers.BertForMaskedLM, transformers.BertLMHeadModel, "bert"
    ),
    "roberta": Family(
        transformers.RobertaConfig,
        transformers.RobertaForMaskedLM,
        transformers.RobertaForCausalLM,
        "roberta",
    ),
}


def config_of(family: str, **more: Any) -> Any:
    return FAMILIES[family].config(
        vocab_size=_VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=INNER,
        max_position_embeddings=128,
        pad_token_id=PAD,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
        **more,
    )


def pretrained(folder: Path, family: str = "bert") -> Any:
    """Writes a masked language model with random weights to `folder`. Returns transformers' model."""
    raw_source(folder)
    torch.manual_seed(7)
    model = FAMILIES[family].guesser(config_of(family)).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.normal_(1.0 if "norm.weight" in name.lower() else 0.0, 0.2)
    with quiet():
        model.save_pretrained(folder)
    return model


def bert_of(folder: Path) -> TrainedEncoder:
    """Writes a BERT to `folder` with transformers, and opens it as our encoder."""
    pretrained(folder)
    return encoder_of(folder)


def encoder_of(folder: Path, pool: str = "cls") -> TrainedEncoder:
    recipe = load_recipe("simcse-unsup", {"pool": pool, "head": "none"})
    return load_encoder(folder, recipe, torch.device("cpu"))[0]


def materials_of(encoder: TrainedEncoder, seed: int = 0) -> Materials:
    return Materials(encoder, encoder.width, torch.Generator().manual_seed(seed))


def padded(tokens: Tokens) -> tuple[Tensor, Tensor]:
    """Returns token ids and attention mask, both of shape (texts, longest text)."""
    rows = [tokens.ids[a:b].tolist() for a, b in zip(tokens.starts[:-1], tokens.starts[1:], strict=True)]
    longest = max(map(len, rows))
    ids = [row + [PAD] * (longest - len(row)) for row in rows]
    return torch.tensor(ids), torch.tensor([[int(at < len(row)) for at in range(longest)] for row in rows])


def trainer_of(recipe: Recipe, folder: Path, corpus: Corpus | None = None) -> Trainer:
    """Writes a backbone to `folder`. Returns its trainer on `corpus`, or on 40 rows that suit the recipe."""
    encoder, head = load_encoder(raw_source(folder), recipe, torch.device("cpu"))
    given = Given(
        corpus or corpus_for(recipe, 40),
        encoder.tokenizer(recipe.max_length),
        recipe.optim.batch,
        steps=10,
        seed=recipe.seed,
    )
    return Trainer(encoder, head, recipe, recipe.source.build(given), steps=10, bf16=False)

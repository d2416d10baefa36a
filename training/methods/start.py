"""A base's folder as the encoder that a recipe trains.

A base that says how it pools keeps that, its prompts and its maximum length; the recipe's pooling and head
are for raw backbones.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from models.graph.head import MIXED, Head
from models.publishing.from_torch.backbone import load_backbone
from models.publishing.from_torch.pooling import torch_layers
from models.sources.folder import Source, read_source
from models.sources.template import has_template
from training.errors import TrainingError
from training.methods.recipe import Optim, Recipe
from training.methods.views import Template
from training.model.encoder import TrainedEncoder
from training.model.packed import FAMILIES, attention_of
from training.model.student import layer_stack, student_of
from training.text.lexicon import Lexicon

_STATIC = {  # pools over the rows of the word table; the last one are power means of Rücklé et al. 2018
    "static": ("mean",),
    "static_max": ("max",),
    "static_power": ("mean", "max", "min"),
}


def load_encoder(folder: Path, recipe: Recipe, device: torch.device) -> tuple[TrainedEncoder, nn.Module]:
    """The base's encoder, and the head that only the training has (nothing, unless the base is raw).

    Raise ModelError when the folder cannot be opened, TrainingError when it has no safetensors or does not
    fit the recipe.
    """
    source = read_source(folder)
    if not source.weights:
        raise TrainingError(f"{folder} has no model.safetensors to train from.")
    raw = not (folder / "modules.json").is_file()
    template = None
    if source.is_table and recipe.pool in _STATIC:
        source = replace(source, head=Head(_STATIC[recipe.pool], source.head.layers, "static"))
    elif raw:
        views = (view.text for view in recipe.views if isinstance(view, Template))
        template = next(views) if recipe.pool == "mask" else None  # the first is published
        source = replace(source, head=_head(recipe, source, template))
        if recipe.pool in _STATIC:  # [CLS] and [SEP] are no words; without counts they would weigh most
            source = replace(source, tokenizer=source.tokenizer | {"post_processor": None})
    elif recipe.pool in ("mask", *MIXED, *_STATIC):
        raise TrainingError(
            f'{folder} pools in its own way; the pool "{recipe.pool}" needs a raw backbone. '
            "(--set 'pool=\"mean\"' leaves the base its own.)"
        )
    backbone = load_backbone(source.backbone, attention_of(source.config))
    dense = torch_layers(source.head.layers)
    head: nn.Module = nn.Identity()
    if raw:
        generator = torch.Generator().manual_seed(recipe.seed)
        head = recipe.head.build(source, source.head.dimension(source.width), generator)
        if recipe.head.keep:
            layers = head if isinstance(head, nn.Sequential) else (head,)
            dense, head = nn.Sequential(*layers), nn.Identity()
    encoder = TrainedEncoder(source, backbone, dense, template).to(device)
    if recipe.student is not None:
        encoder = student_of(encoder, recipe.student.layers)
    _freeze(encoder, recipe.optim)
    return encoder, head.to(device)


def _freeze(encoder: TrainedEncoder, optim: Optim) -> None:
    if optim.train_layers is not None:
        _freeze_but_last(encoder, optim.train_layers)
    if not optim.train_embeddings:
        _freeze_embeddings(encoder)


def _freeze_but_last(encoder: TrainedEncoder, count: int) -> None:
    """Leave the weights of the last `count` layers alone to be trained. Raise TrainingError for too many."""
    stack = layer_stack(encoder.backbone)
    if encoder.source.head.tokens == "static" or stack is None:
        raise TrainingError("optim.train_layers is for a base with layers of its own, and this one has none.")
    if count > len(stack):
        raise TrainingError(f"optim.train_layers is {count}, and the base has {len(stack)} layers. Lower it.")
    encoder.backbone.requires_grad_(requires_grad=False)
    if count:  # 0: what stands beside the backbone alone
        stack[len(stack) - count :].requires_grad_(requires_grad=True)


def _freeze_embeddings(encoder: TrainedEncoder) -> None:
    """Leave what stands before the first layer. Raise TrainingError where nothing else is there."""
    if encoder.source.head.tokens == "static":
        raise TrainingError("optim.train_embeddings = false leaves a word table nothing to learn.")
    backbone: Any = encoder.backbone  # not every family has a module of its own for them
    whole = getattr(backbone, "embeddings", None) or backbone.get_input_embeddings()
    whole.requires_grad_(requires_grad=False)
    wider = getattr(backbone, "embeddings_project", None)  # of an ELECTRA whose layers are wider
    if wider is not None:
        wider.requires_grad_(requires_grad=False)


def _head(recipe: Recipe, source: Source, template: str | None) -> Head:
    if template is not None:
        if has_template(source.tokenizer):
            raise TrainingError("The base's tokenizer has a template already.")
        lexicon = Lexicon.of(source)
        distances = {lexicon.around(view.text)[2] for view in recipe.views if isinstance(view, Template)}
        if len(distances) > 1:
            raise TrainingError("The templates of a recipe must end alike: [MASK] as far from the end.")
        return Head((f"mask:{distances.pop()}",), ())
    if recipe.pool in (*MIXED, *_STATIC):
        if source.config.get("model_type") not in FAMILIES:
            raise TrainingError(f'The pool "{recipe.pool}" is there for {", ".join(FAMILIES)} only.')
        if recipe.pool in MIXED:
            return Head(("mean",), (), recipe.pool)
        return Head(_STATIC[recipe.pool], (), "static")
    return Head((recipe.pool,), ())

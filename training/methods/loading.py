"""Load the base, a model folder, as the encoder that a recipe trains.

If the base defines a pooling, its pooling, prompts and maximum length are used. Otherwise the base is a raw
backbone and gets the pooling and the head of the recipe.

A student is a smaller encoder built from the base, its teacher. Both have vectors of the same width, so the
student can learn the vectors of the teacher.

    layers > 0   a student with that many layers of the base, evenly spread (Sanh et al. 2019, DistilBERT)
    layers = 0   a student with one vector per token, computed by the base; the vector of a text is the mean
                 over its tokens (Tulkens and van Dongen 2024, Model2Vec)
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from models.graph.head import MIXED, Head
from models.progress import Progress
from models.publishing.from_torch.backbone import Table, load_backbone
from models.publishing.from_torch.pooling import torch_layers
from models.sources.folder import STATIC, Source, read_source
from models.sources.template import has_template
from training.errors import TrainingError
from training.methods.recipe import Optim, Recipe
from training.methods.views import Template
from training.model.encoder import TrainedEncoder
from training.model.packed import FAMILIES, get_attention
from training.model.reranker import load_reranker
from training.text.lexicon import Lexicon
from training.text.tokens import build_tokens

_STATIC = {  # pools over the rows of the word table; static_power: power means of Rücklé et al. 2018
    "static": ("mean",),
    "static_max": ("max",),
    "static_power": ("mean", "max", "min"),
}


def load_encoder(folder: Path, recipe: Recipe, device: torch.device) -> tuple[TrainedEncoder, nn.Module]:
    """Loads the base in `folder` as an encoder.

    Returns:
        The encoder, or a cross-encoder if the recipe makes one. And the head that is used in training only,
        which is the identity if the base has its own pooling, or if the head is published with the encoder.

    Raises:
        ModelError: The folder cannot be opened.
        TrainingError: The folder has no safetensors file, or the base does not fit the recipe.

    """
    if recipe.result == "reranker":
        reranker = load_reranker(folder, recipe.outputs, recipe.labels, recipe.seed).to(device)
        _freeze(reranker, recipe.optim)
        return reranker, nn.Identity()
    source, raw = _read_base(folder), not (folder / "modules.json").is_file()
    template = None
    if source.is_table and recipe.pool in _STATIC:
        source = replace(source, head=Head(_STATIC[recipe.pool], source.head.layers, "static"))
    elif raw:
        views = (view.text for view in recipe.views if isinstance(view, Template))
        template = next(views) if recipe.pool == "mask" else None  # the template of the published model
        source = replace(source, head=_head(recipe, source, template))
        if recipe.pool in _STATIC:  # [CLS] and [SEP] do not count; they would have the largest weights
            source = replace(source, tokenizer=source.tokenizer | {"post_processor": None})
    elif recipe.pool in ("mask", *MIXED, *_STATIC):
        raise TrainingError(
            f'{folder} pools in its own way; the pool "{recipe.pool}" needs a raw backbone. '
            "(--set 'pool=\"mean\"' keeps the base's own pooling.)"
        )
    backbone = load_backbone(source.backbone, get_attention(source.config))
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
        encoder = build_student(encoder, recipe.student.layers)
    _freeze(encoder, recipe.optim)
    return encoder, head.to(device)


def _read_base(folder: Path) -> Source:
    """Reads the folder of an encoder. Of a cross-encoder, only the transformer, as a raw backbone."""
    source = read_source(folder)
    if not source.weights:
        raise TrainingError(f"{folder} has no model.safetensors to train from.")
    if source.scoring and (folder / "modules.json").is_file():
        raise TrainingError(f"{folder} is a reranker, and the recipe trains an encoder: take another base.")
    return replace(source, scoring=None)


def _freeze(encoder: TrainedEncoder, optim: Optim) -> None:
    if optim.train_layers is not None:
        _freeze_but_last(encoder, optim.train_layers)
    if not optim.train_embeddings:
        _freeze_embeddings(encoder)


def _freeze_but_last(encoder: TrainedEncoder, count: int) -> None:
    """Freezes the backbone except its last `count` layers.

    Raises:
        TrainingError: The base has fewer layers, or none.

    """
    stack = layer_stack(encoder.backbone)
    if encoder.source.head.tokens == "static" or stack is None:
        raise TrainingError("optim.train_layers is for a base with layers, and this base has none.")
    if count > len(stack):
        raise TrainingError(f"optim.train_layers is {count}, and the base has {len(stack)} layers. Lower it.")
    encoder.backbone.requires_grad_(requires_grad=False)
    if count:  # 0 trains only the weights outside the backbone
        stack[len(stack) - count :].requires_grad_(requires_grad=True)


def _freeze_embeddings(encoder: TrainedEncoder) -> None:
    """Freezes all weights before the first layer.

    Raises:
        TrainingError: The base has no weights after the embeddings.

    """
    if encoder.source.head.tokens == "static":
        raise TrainingError("optim.train_embeddings = false leaves a word table nothing to learn.")
    # Without the head of a cross-encoder. Some families have no separate module for the embeddings.
    backbone: Any = getattr(encoder.backbone, "base_model", encoder.backbone)
    whole = getattr(backbone, "embeddings", None) or backbone.get_input_embeddings()
    whole.requires_grad_(requires_grad=False)
    wider = getattr(backbone, "embeddings_project", None)  # in an ELECTRA whose layers are wider
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
            raise TrainingError(f'The pool "{recipe.pool}" works for {", ".join(FAMILIES)} only.')
        if recipe.pool in MIXED:
            return Head(("mean",), (), recipe.pool)
        return Head(_STATIC[recipe.pool], (), "static")
    return Head((recipe.pool,), ())


_GROUP = 1024  # tokens of the vocabulary that are encoded at once


def build_student(teacher: TrainedEncoder, layers: int) -> TrainedEncoder:
    """Builds a student of `layers` layers, or a table of tokens if 0. Do not use the teacher afterwards.

    Raises:
        TrainingError: The teacher is a table itself, has too few layers, or its layers cannot be removed.

    """
    if teacher.source.is_table:
        raise TrainingError("The base is a table of tokens, which has no smaller student.")
    return _fewer_layers(teacher, layers) if layers else _table(teacher)


def layer_stack(backbone: Any) -> nn.ModuleList | None:
    """Returns the list of the layers of a backbone, from first to last, or None if it has no such list."""
    count = getattr(backbone.config, "num_hidden_layers", 0) if hasattr(backbone, "config") else 0
    stacks = (part for part in backbone.modules() if isinstance(part, nn.ModuleList) and len(part) == count)
    return next(stacks, None)


def evenly(layers: int, of: int) -> list[int]:
    """Returns the indices of the layers that a student keeps, evenly spread: 0, 2 and 5 for 3 layers of 6.

    The indices include the first and the last layer. If only one layer is kept, it is the last. The first
    layer matters because it reads the embeddings: before training, a student with layers 0, 2 and 5 has a
    cosine of 0.62 to its teacher, and a student with layers 1, 3 and 5 only 0.53.

    Args:
        layers: Number of layers to keep.
        of: Number of the teacher's layers.

    """
    if layers == 1:
        return [of - 1]
    return [place * (of - 1) // (layers - 1) for place in range(layers)]


def _fewer_layers(teacher: TrainedEncoder, layers: int) -> TrainedEncoder:
    source, backbone = teacher.source, teacher.backbone
    stack = layer_stack(backbone)
    if teacher.family not in FAMILIES or stack is None:
        families = ", ".join(FAMILIES)
        raise TrainingError(
            f"A student of fewer layers works for {families}. Other bases need a table: student.layers=0."
        )
    if layers >= len(stack):
        raise TrainingError(f"student.layers is {layers}, and the base has {len(stack)}. Lower it.")
    kept = evenly(layers, len(stack))
    for place in reversed(range(len(stack))):
        if place not in kept:
            del stack[place]
    backbone.config.num_hidden_layers = layers
    smaller = replace(source, config=source.config | {"num_hidden_layers": layers})
    return TrainedEncoder(smaller, backbone, teacher.dense)


def _table(teacher: TrainedEncoder) -> TrainedEncoder:
    source = teacher.source
    rows = _vocabulary(teacher)
    table = replace(
        source,
        config={"model_type": STATIC, "vocab_size": len(rows), "hidden_size": rows.shape[1]},
        tokenizer=source.tokenizer | {"post_processor": None},  # a mean has no special tokens
        head=Head(("mean",), (), "static"),
    )
    return TrainedEncoder(table, Table(rows).to(teacher.device), nn.Sequential())


@torch.inference_mode()
def _vocabulary(teacher: TrainedEncoder) -> NDArray[np.float32]:
    """Encodes each token of the vocabulary as a text. Returns unit vectors, shape (vocabulary, P)."""
    before, after = teacher.lexicon.affixes
    size = teacher.lexicon.size
    rows = np.empty((size, teacher.width), np.float32)
    with Progress("tokens", size, "encoding the vocabulary") as progress:
        for at in range(0, size, _GROUP):
            ids = range(size)[at : at + _GROUP]
            pooled = teacher(build_tokens([[*before, id, *after] for id in ids])).pooled
            rows[at : at + _GROUP] = nn.functional.normalize(pooled, dim=-1).cpu().numpy()
            progress.add(len(ids))
    return rows

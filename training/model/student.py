"""A student: the base made smaller, before it learns to give the vectors that the base gives.

    layers > 0   as many of the base's layers, evenly spread, the last one among them; the rest is the base's
    layers = 0   a table: of each token the vector that the base gives to it alone; of a text their mean

Its vectors are as wide as the teacher's, so both can be of one space. Evenly spread layers: Sanh et al. 2019
(DistilBERT), section 3. A table of a model's own vectors: Tulkens and van Dongen 2024 (Model2Vec).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from models.graph.head import Head
from models.progress import Progress
from models.publishing.from_torch.backbone import Table
from models.sources.folder import STATIC
from training.errors import TrainingError
from training.model.encoder import TrainedEncoder
from training.model.packed import FAMILIES
from training.text.tokens import tokens_of

_GROUP = 1024  # tokens of the vocabulary that are encoded at once


def student_of(teacher: TrainedEncoder, layers: int) -> TrainedEncoder:
    """Made of the teacher's own modules, which are its own no more.

    Raise TrainingError where the teacher has no more layers than are asked for.
    """
    if teacher.source.is_table:
        raise TrainingError("The base is a table of tokens: there is no smaller student of it.")
    return _fewer_layers(teacher, layers) if layers else _table(teacher)


def layer_stack(backbone: Any) -> nn.ModuleList | None:
    """The layers of a backbone, the first one nearest to the embeddings; None where it has no such list."""
    count = getattr(backbone.config, "num_hidden_layers", 0) if hasattr(backbone, "config") else 0
    stacks = (part for part in backbone.modules() if isinstance(part, nn.ModuleList) and len(part) == count)
    return next(stacks, None)


def evenly(layers: int, of: int) -> list[int]:
    """`layers` places among `of`, counted from 0, the first and the last among them: 3 of 6 are 0, 2 and 5.

    A single one is the last. The first layer reads embeddings: with it a student of 3 begins at a cosine of
    0.62 to its teacher, and with 1, 3 and 5 at 0.53.
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
            f"A student of fewer layers is there for {families}. A table of tokens is: student.layers=0."
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
        tokenizer=source.tokenizer | {"post_processor": None},  # special tokens have no place in a mean
        head=Head(("mean",), (), "static"),
    )
    return TrainedEncoder(table, Table(rows).to(teacher.device), nn.Sequential())


@torch.inference_mode()
def _vocabulary(teacher: TrainedEncoder) -> NDArray[np.float32]:
    """The unit vector of each token alone, (vocabulary, P)."""
    before, after = teacher.lexicon.affixes
    size = teacher.lexicon.size
    rows = np.empty((size, teacher.width), np.float32)
    with Progress("tokens", size, "encoding the vocabulary") as told:
        for at in range(0, size, _GROUP):
            ids = range(size)[at : at + _GROUP]
            pooled = teacher(tokens_of([[*before, id, *after] for id in ids])).pooled
            rows[at : at + _GROUP] = nn.functional.normalize(pooled, dim=-1).cpu().numpy()
            told.add(len(ids))
    return rows

"""Families whose graph Simile writes itself: BERT and its kin, and ModernBERT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import onnx

from models.errors import Unsupported
from models.graph import modern_reference, reference
from models.graph.aside import Aside
from models.graph.backbone import Backbone, Tensors
from models.graph.bert import bert_graph
from models.graph.head import Head
from models.graph.modernbert import FAMILY, ModernBackbone, modernbert_graph

AnyBackbone: TypeAlias = Backbone | ModernBackbone


def backbone_of(config: Mapping[str, Any]) -> AnyBackbone:
    """The sizes that a config.json says. Raise Unsupported for a family without a graph here."""
    kind = ModernBackbone if config.get("model_type") == FAMILY else Backbone
    return kind.from_config(config)


def knows(config: Mapping[str, Any]) -> bool:
    """True if `backbone_of` takes it."""
    try:
        backbone_of(config)
    except Unsupported:
        return False
    return True


def graph_of(
    backbone: AnyBackbone, tensors: Tensors, head: Head, longest: int, aside: Aside | None
) -> onnx.GraphProto:
    """As `bert_graph`; longest: tokens of the longest row that is ever computed."""
    if isinstance(backbone, ModernBackbone):
        return modernbert_graph(backbone, tensors, longest, aside)
    return bert_graph(backbone, tensors, head.tokens, aside=aside)


def embed(backbone: AnyBackbone, tensors: Tensors, head: Head, rows: reference.Rows) -> reference.Array:
    """The unit vectors of rows of token ids by plain numpy, float32 (rows, dimension)."""
    if isinstance(backbone, ModernBackbone):
        return reference.pooled(modern_reference.token_vectors(backbone, tensors, rows), head, rows)
    return reference.embed(backbone, tensors, head, rows)

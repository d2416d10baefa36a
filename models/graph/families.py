"""Selects the code for a model's family: BERT and its relatives, or ModernBERT.

Simile builds the graphs of these families from the weights, without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import onnx

from models.errors import Unsupported
from models.graph import reference
from models.graph.backbone import Backbone, Tensors
from models.graph.bert import bert_graph
from models.graph.head import Head
from models.graph.modernbert import FAMILY, ModernBackbone, modernbert_graph
from models.graph.nodes import Aside

AnyBackbone: TypeAlias = Backbone | ModernBackbone


def build_backbone(config: Mapping[str, Any]) -> AnyBackbone:
    """Reads the sizes of an encoder from its config.json. Raises Unsupported if the family is unknown."""
    kind = ModernBackbone if config.get("model_type") == FAMILY else Backbone
    return kind.from_config(config)


def knows(config: Mapping[str, Any]) -> bool:
    try:
        build_backbone(config)
    except Unsupported:
        return False
    return True


def build_graph(
    backbone: AnyBackbone, tensors: Tensors, head: Head, longest: int, aside: Aside | None
) -> onnx.GraphProto:
    """Builds the graph up to the token vectors.

    Args:
        longest: Maximum number of tokens in a row.
    """
    if isinstance(backbone, ModernBackbone):
        return modernbert_graph(backbone, tensors, longest, aside, head.graph_tokens)
    return bert_graph(backbone, tensors, head.graph_tokens, aside=aside)


def embed(backbone: AnyBackbone, tensors: Tensors, head: Head, rows: reference.Rows) -> reference.Array:
    """Embeds rows of token ids with numpy. Returns the same as `reference.embed`."""
    if isinstance(backbone, ModernBackbone):
        hidden = [reference.modern_token_vectors(backbone, tensors, row) for row in rows]
        return reference.pooled(hidden, head, rows)
    return reference.embed(backbone, tensors, head, rows)

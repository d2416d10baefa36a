"""Computes the vectors of a folder with torch, as the reference of a version's proof."""

# ruff: noqa: N803, N806  shapes live in names
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from models.errors import Unsupported
from models.graph.head import Head
from models.publishing.from_torch.backbone import load_backbone, token_vectors
from models.publishing.from_torch.pooling import pool, skipped, torch_layers
from models.publishing.proof import Vectors
from models.sources.folder import Source


class Forward:
    def __init__(self, backbone: nn.Module, head: Head) -> None:
        self.backbone = backbone.eval()
        self._layers = torch_layers(head.layers).eval()
        self._head = head

    @classmethod
    def load(cls, source: Source) -> Forward:
        return cls(load_backbone(source.backbone), source.head)

    @torch.inference_mode()
    def embed(self, rows: Sequence[Sequence[int]]) -> Vectors:
        """Embeds rows of token ids one by one; returns unit vectors (rows, dimension)."""
        self.backbone.eval()  # torch's exporter may leave a model in training mode, with dropout.
        return torch.cat([self._vector(torch.tensor([row])) for row in rows]).numpy()

    def check_length(self, length: int) -> None:
        """Raises Unsupported if the model has a shorter position table."""
        if not any(name.endswith("position_embeddings") for name, _ in self.backbone.named_modules()):
            return
        config: Any = self.backbone.config
        padding = getattr(config, "pad_token_id", None)
        token = 0 if padding == 1 else 1  # RoBERTa's relatives skip padding in positions.
        try:
            self.embed([[token] * length])
        except (IndexError, RuntimeError):
            raise Unsupported(
                f"The model takes fewer than {length} tokens. Set the limit in sentence_bert_config.json: "
                f'{{"max_seq_length": {length - 2}}}.'
            ) from None

    def _vector(self, ids_1T: Tensor) -> Tensor:
        mask_1T = torch.ones_like(ids_1T)
        hidden_1TD = token_vectors(self.backbone, ids_1T, mask_1T, self._head.tokens)
        left_out_1 = skipped(ids_1T, self._head.left_out)
        pooled_1D = pool(hidden_1TD, mask_1T, self._head.pooling, left_out_1)
        return nn.functional.normalize(self._layers(pooled_1D), dim=-1)

"""The encoder in training: a torch backbone, its pooling and the dense layers that are published with it.

A base that says how it pools keeps that, its prompts and its maximum length; the recipe's pooling and head
are for raw backbones. What `save` writes is a sentence-transformers folder that `models.export` publishes.
"""

# ruff: noqa: N806  shapes live in names
from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.export import dense_layers, load_backbone, pool, published_dense
from models.head import Head
from models.layout import write_layout
from models.source import Source, read_source
from models.tokenizer import FILE_NAME as TOKENIZER
from models.tokenizer import Tokenizer
from training.errors import TrainingError
from training.recipe import Recipe
from training.views import Tokens
from training.weights import save_weights

_GROUP = 128  # texts of one forward in `encode`; more gains nothing on a CPU


class Encoder(nn.Module):
    """Tokens to pooled vectors, not yet of length 1."""

    def __init__(self, source: Source, backbone: nn.Module, dense: nn.Sequential) -> None:
        super().__init__()
        self.source = source
        self.backbone = backbone
        self.dense = dense
        self._pad_id = int(source.config.get("pad_token_id") or 0)
        self._dropouts = [module for module in self.modules() if isinstance(module, nn.Dropout)]
        self._tokenizer = self.tokenizer(source.max_length)

    def tokenizer(self, max_length: int) -> Tokenizer:
        """Cuts at `max_length` tokens, or at the model's own maximum where that is less."""
        length = min(max_length, self.source.max_length)
        return Tokenizer(self.source.backbone / TOKENIZER, length, self.source.config.get("vocab_size"))

    def forward(self, tokens: Tokens, dropout: float = 0.0) -> Tensor:
        """(texts, dimension), float32. dropout: the probability, everywhere in the backbone; 0 evaluates."""
        self.train(dropout > 0)
        for module in self._dropouts:  # attention reads its probability from the same module
            module.p = dropout
        ids_NT, mask_NT = tokens.padded(self._pad_id)
        hidden_NTD = self.backbone(input_ids=ids_NT, attention_mask=mask_NT).last_hidden_state
        with torch.autocast(hidden_NTD.device.type, enabled=False):  # a mean in bf16 would lose digits
            pooled: Tensor = self.dense(pool(hidden_NTD.float(), mask_NT, self.source.head.pooling))
        return pooled

    @torch.inference_mode()
    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors in the order of `texts`, without dropout, cut at the model's own maximum only."""
        rows = [torch.tensor(tokens.ids) for tokens in self._tokenizer.tokenize(texts)]
        order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
        vectors = torch.empty(0)
        for at in range(0, len(order), _GROUP):
            group = order[at : at + _GROUP]
            starts = torch.tensor([0, *(len(rows[row]) for row in group)]).cumsum(0)
            tokens = Tokens(torch.cat([rows[row] for row in group]), starts).to(self.device)
            unit = nn.functional.normalize(self(tokens).float(), dim=-1).cpu()
            if not len(vectors):
                vectors = torch.empty(len(rows), unit.shape[1])
            vectors[group] = unit
        found: NDArray[np.float32] = vectors.numpy()
        return found

    @property
    def device(self) -> torch.device:
        return next(self.backbone.parameters()).device

    def save(self, folder: Path) -> None:
        """A sentence-transformers folder with the weights of now; `folder` is empty."""
        dense = tuple(published_dense(layer) for layer in self.dense)
        head = Head(self.source.head.pooling, dense)
        write_layout(replace(self.source, head=head, weights=()), folder)
        save_weights(self.backbone.state_dict(), folder / "model.safetensors", {"format": "pt"})


def load_encoder(folder: Path, recipe: Recipe, device: torch.device) -> tuple[Encoder, nn.Module]:
    """The base's encoder, and the head that only the training has (nothing, unless the base is raw).

    Raise ModelError when the folder cannot be opened, TrainingError when it has no safetensors.
    """
    source = read_source(folder)
    if not source.weights:
        raise TrainingError(f"{folder} has no model.safetensors to train from.")
    raw = not (folder / "modules.json").is_file()
    if raw:
        source = replace(source, head=Head((recipe.pool,), ()))
    # Plain attention was 5 % faster than the fused one on a CPU at 32 tokens (bf16 and fp32).
    backbone = load_backbone(source.backbone, "eager" if device.type == "cpu" else "sdpa")
    dense = dense_layers(source.head)
    head: nn.Module = nn.Identity()
    if raw:
        head = recipe.head.build(source.width, torch.Generator().manual_seed(recipe.seed))
        if recipe.head.keep:
            dense, head = nn.Sequential(head), nn.Identity()
    return Encoder(source, backbone, dense).to(device), head.to(device)


def digest_of(source: Source) -> str:
    """SHA-256 of what training starts from: the weights and how they are used."""
    digest = hashlib.sha256(f"{source.head.pooling} {source.max_length} {source.prompts}".encode())
    files = [*source.weights, source.backbone / TOKENIZER, source.backbone / "config.json"]
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    for dense in source.head.dense:
        digest.update(f"{dense.activation} {dense.weight.shape}".encode())
        digest.update(dense.weight.tobytes() + (b"" if dense.bias is None else dense.bias.tobytes()))
    return digest.hexdigest()

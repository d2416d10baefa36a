"""ModernBERT in plain numpy, one text at a time, to verify graphs (see reference.py).

Here rotations are products of complex numbers, and local attention reads a slice of the tokens.
"""

# ruff: noqa: N803, N806  shapes live in names
from __future__ import annotations

import numpy as np

from models.graph.backbone import Tensors
from models.graph.modernbert import LOCAL, ModernBackbone
from models.graph.reference import ACTIVATE, Array, Rows, linear, norm


def token_vectors(backbone: ModernBackbone, tensors: Tensors, rows: Rows) -> list[Array]:
    """Computes the token vectors of the last layer, shape (T, D) for each row."""
    return [_text(backbone, tensors, list(row)) for row in rows]


def _text(backbone: ModernBackbone, tensors: Tensors, ids: list[int]) -> Array:
    words = tensors["embeddings.tok_embeddings.weight"][ids]
    x_TD = norm(words, backbone.epsilon, tensors, "embeddings.norm")
    for layer, kind in enumerate(backbone.kinds):
        at = f"layers.{layer}"
        normed = norm(x_TD, backbone.epsilon, tensors, f"{at}.attn_norm") if layer else x_TD
        mixed = _attend(linear(normed, tensors, f"{at}.attn.Wqkv"), backbone, kind)
        x_TD = x_TD + linear(mixed, tensors, f"{at}.attn.Wo")
        inner = linear(norm(x_TD, backbone.epsilon, tensors, f"{at}.mlp_norm"), tensors, f"{at}.mlp.Wi")
        up, gate = np.split(inner, 2, axis=1)
        x_TD = x_TD + linear(ACTIVATE[backbone.activation](up) * gate, tensors, f"{at}.mlp.Wo")
    return norm(x_TD, backbone.epsilon, tensors, "final_norm")


def _attend(qkv: Array, backbone: ModernBackbone, kind: str) -> Array:
    q_THd, k_THd, v_THd = np.moveaxis(qkv.reshape(len(qkv), 3, backbone.heads, -1), 1, 0)
    theta = backbone.theta[kind == LOCAL]
    q_THd, k_THd = _turned(q_THd, theta), _turned(k_THd, theta)
    mixed = []
    for at in range(len(qkv)):
        seen = slice(max(0, at - backbone.window), at + backbone.window + 1) if kind == LOCAL else slice(None)
        scores_HS = np.einsum("hd,shd->hs", q_THd[at], k_THd[seen]) / np.sqrt(q_THd.shape[-1])
        weights_HS = np.exp(scores_HS - scores_HS.max(1, keepdims=True))
        weights_HS /= weights_HS.sum(1, keepdims=True)
        mixed.append(np.einsum("hs,shd->hd", weights_HS, v_THd[seen]).reshape(-1))
    return np.stack(mixed)


def _turned(x_THd: Array, theta: float) -> Array:
    size = x_THd.shape[-1]
    turns_T1f = np.arange(len(x_THd))[:, None, None] * theta ** (-np.arange(0, size, 2) / size)
    pairs_THf = x_THd[..., : size // 2] + 1j * x_THd[..., size // 2 :]
    turned_THf = pairs_THf * np.exp(1j * turns_T1f)
    return np.concatenate([turned_THf.real, turned_THf.imag], axis=-1).astype(np.float32)

"""Computes BERT and ModernBERT in plain numpy from the formulas of the papers, to verify graphs.

This module shares no code with bert.py and modernbert.py, so the same mistake is unlikely in both. It is too
slow for serving. Shapes use T for the tokens of one text, N for the tokens of all texts together, D for the
width, H for the number of heads, and d = D / H.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.graph.backbone import Backbone, Tensors
from models.graph.head import MIXED, Head, Layer, LayerNorm, Prompt, Unit, beside_last, mask_distance
from models.graph.modernbert import LOCAL, ModernBackbone
from models.tokens.tokenizer import PairIds

# ruff: noqa: N803, N806  shapes live in names


Array = NDArray[Any]
Rows = Sequence[Sequence[int]]


def embed(backbone: Backbone, tensors: Tensors, head: Head, rows: Rows) -> Array:
    """Embeds rows of token ids. Returns float32 unit vectors or logits, shape (rows, n)."""
    return pooled(token_vectors(backbone, tensors, head.tokens, rows), head, rows)


def embed_table(table: Array, head: Head, rows: Rows) -> Array:
    """Embeds rows of token ids with a word table, shape (words, width), and no other layers."""
    return pooled([table[list(row)] for row in rows], head, rows)


def pooled(hidden: Sequence[Array], head: Head, rows: Rows) -> Array:
    vectors = np.stack(
        [
            np.concatenate([_pool(hidden_TD, mode, _skipped(row, head.left_out)) for mode in head.pooling])
            for row, hidden_TD in zip(rows, hidden, strict=True)
        ]
    )
    for layer in head.layers:
        vectors = _apply(vectors, layer)
    return (vectors if head.activation else _unit(vectors)).astype(np.float32)


def _apply(x: Array, layer: Layer) -> Array:
    if isinstance(layer, Unit):
        return _unit(x)
    if isinstance(layer, LayerNorm):
        return _standardized(x, layer.epsilon) * layer.weight + layer.bias
    return ACTIVATE[layer.activation](x @ layer.weight.T + (0 if layer.bias is None else layer.bias))


def _unit(x: Array) -> Array:
    unit: Array = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    return unit


def token_vectors(backbone: Backbone, tensors: Tensors, tokens: str, rows: Rows) -> list[Array]:
    """Computes the token vectors that are pooled, shape (T, D) for each row."""
    ends = np.cumsum([len(row) for row in rows])[:-1]
    words = tensors["embeddings.word_embeddings.weight"][np.concatenate(rows)]
    if tokens == "static":
        return np.split(words, ends)
    outputs = _layers(backbone, tensors, rows, words, ends)
    if tokens in MIXED:
        return np.split((outputs[beside_last(tokens, len(outputs))] + outputs[-1]) / 2, ends)
    return np.split(outputs[-1], ends)


def _layers(backbone: Backbone, tensors: Tensors, rows: Rows, words: Array, ends: Array) -> list[Array]:
    places = tensors["embeddings.position_embeddings.weight"][
        np.concatenate([_places(row, backbone.padding) for row in rows])
    ]
    kind = 0
    if backbone.types:
        kind = tensors["embeddings.token_type_embeddings.weight"][np.concatenate([*map(_types, rows)])]
    x_ND = norm(words + places + kind, backbone.epsilon, tensors, "embeddings.LayerNorm")
    if backbone.table:
        x_ND = linear(x_ND, tensors, "embeddings_project")
    outputs = []
    for layer in range(backbone.layers):
        x_ND = _layer(x_ND, ends, backbone, tensors, f"encoder.layer.{layer}")
        outputs.append(x_ND)
    return outputs


def _places(row: Sequence[int], padding: int | None) -> Array:
    """Returns the position of each token of a row.

    Without `padding`, positions count from 0. Otherwise, padding tokens have the position `padding`, and the
    other tokens count from `padding` + 1.
    """
    if padding is None:
        return np.arange(len(row))
    found, count = [], padding
    for id in row:
        count += id != padding
        found.append(padding if id == padding else count)
    return np.array(found)


def _types(row: Sequence[int]) -> Array:
    second = row.second if isinstance(row, PairIds) else len(row)
    return (np.arange(len(row)) >= second).astype(int)


def _skipped(row: Sequence[int], left_out: Sequence[Prompt]) -> int:
    """Counts the tokens at the start of a row that pooling leaves out."""
    return max((p.tokens for p in left_out if tuple(row[: len(p.ids)]) == p.ids), default=0)


def _pool(hidden_TD: Array, mode: str, skipped: int) -> Array:
    distance = mask_distance(mode)
    if distance is not None:
        one: Array = hidden_TD[-1 - distance]
        return one
    if mode == "weightedmean":
        places_T = np.arange(skipped, len(hidden_TD)) + 1.0
        mean: Array = places_T @ hidden_TD[skipped:] / places_T.sum()
        return mean
    return _POOL[mode](hidden_TD[skipped:])


def _layer(x_ND: Array, ends: Array, backbone: Backbone, tensors: Tensors, at: str) -> Array:
    q_ND, k_ND, v_ND = (
        linear(x_ND, tensors, f"{at}.attention.self.{part}") for part in ("query", "key", "value")
    )
    texts = zip(np.split(q_ND, ends), np.split(k_ND, ends), np.split(v_ND, ends), strict=True)
    bias = partial(_distances, tensors, backbone) if backbone.buckets else lambda _: 0
    mixed_ND = np.concatenate([_attend(*text, heads=backbone.heads, bias=bias) for text in texts])
    attended_ND = linear(mixed_ND, tensors, f"{at}.attention.output.dense")
    x_ND = norm(x_ND + attended_ND, backbone.epsilon, tensors, f"{at}.attention.output.LayerNorm")
    inner = ACTIVATE[backbone.activation](linear(x_ND, tensors, f"{at}.intermediate.dense"))
    x_ND = x_ND + linear(inner, tensors, f"{at}.output.dense")
    return norm(x_ND, backbone.epsilon, tensors, f"{at}.output.LayerNorm")


def _distances(tensors: Tensors, backbone: Backbone, length: int) -> Array:
    """Returns MPNet's relative-position bias, shape (heads, T, T)."""
    half = backbone.buckets // 2
    exact = half // 2
    bucket_TT = np.zeros((length, length), int)
    for query in range(length):
        for key in range(length):
            far = abs(key - query)
            if far >= exact:
                share = math.log(far / exact) / math.log(128 / exact)
                far = min(exact + int(share * (half - exact) + 1e-6), half - 1)
            bucket_TT[query, key] = far + (half if key > query else 0)
    return tensors["encoder.relative_attention_bias.weight"][bucket_TT].transpose(2, 0, 1)


def _attend(q_TD: Array, k_TD: Array, v_TD: Array, heads: int, bias: Callable[[int], Any]) -> Array:
    q_THd, k_THd, v_THd = (x_TD.reshape(len(x_TD), heads, -1) for x_TD in (q_TD, k_TD, v_TD))
    scores_HTT = np.einsum("thd,shd->hts", q_THd, k_THd, optimize=True) / np.sqrt(q_THd.shape[-1])
    scores_HTT += bias(len(q_TD))
    weights_HTT = np.exp(scores_HTT - scores_HTT.max(-1, keepdims=True))
    weights_HTT /= weights_HTT.sum(-1, keepdims=True)
    mixed_TD: Array = np.einsum("hts,shd->thd", weights_HTT, v_THd, optimize=True).reshape(q_TD.shape)
    return mixed_TD


def linear(x: Array, tensors: Tensors, at: str) -> Array:
    return x @ tensors[f"{at}.weight"].T + tensors.get(f"{at}.bias", 0)


def norm(x: Array, epsilon: float, tensors: Tensors, at: str) -> Array:
    return _standardized(x, epsilon) * tensors[f"{at}.weight"] + tensors.get(f"{at}.bias", 0)


def _standardized(x: Array, epsilon: float) -> Array:
    centered = x - x.mean(-1, keepdims=True)
    found: Array = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + epsilon)
    return found


def erf(x: Array) -> Array:
    """Approximates erf within 1.5e-7 (Abramowitz and Stegun 7.1.26)."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    result: Array = np.sign(x) * (1 - series * np.exp(-(x**2)))
    return result


ACTIVATE: dict[str, Callable[[Array], Array]] = {
    "gelu": lambda x: x * 0.5 * (1 + erf(x / np.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "identity": lambda x: x,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}
_POOL: dict[str, Callable[[Array], Array]] = {
    "cls": lambda hidden_TD: hidden_TD[0],
    "max": lambda hidden_TD: hidden_TD.max(0),
    "min": lambda hidden_TD: hidden_TD.min(0),
    "mean": lambda hidden_TD: hidden_TD.mean(0),
    "mean_sqrt_len_tokens": lambda hidden_TD: hidden_TD.sum(0) / np.sqrt(len(hidden_TD)),
}


# ruff: noqa: N803, N806  shapes live in names


def modern_token_vectors(backbone: ModernBackbone, tensors: Tensors, ids: Sequence[int]) -> Array:
    """Computes the token vectors of a ModernBERT's last layer for one row of ids, shape (T, D).

    Rotations are computed as products of complex numbers. In local attention, each token reads only the
    tokens in the window around it.
    """
    words = tensors["embeddings.tok_embeddings.weight"][list(ids)]
    x_TD = norm(words, backbone.epsilon, tensors, "embeddings.norm")
    for layer, kind in enumerate(backbone.kinds):
        at = f"layers.{layer}"
        normed = norm(x_TD, backbone.epsilon, tensors, f"{at}.attn_norm") if layer else x_TD
        mixed = _attend_modern(linear(normed, tensors, f"{at}.attn.Wqkv"), backbone, kind)
        x_TD = x_TD + linear(mixed, tensors, f"{at}.attn.Wo")
        inner = linear(norm(x_TD, backbone.epsilon, tensors, f"{at}.mlp_norm"), tensors, f"{at}.mlp.Wi")
        up, gate = np.split(inner, 2, axis=1)
        x_TD = x_TD + linear(ACTIVATE[backbone.activation](up) * gate, tensors, f"{at}.mlp.Wo")
    return norm(x_TD, backbone.epsilon, tensors, "final_norm")


def _attend_modern(qkv: Array, backbone: ModernBackbone, kind: str) -> Array:
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

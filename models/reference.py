"""BERT in plain numpy, one text at a time, nothing padded: the formulas, to check a graph against.

Slow and short on purpose. It shares no step with graph.py, so the same mistake would have to be made twice.
Shapes: T tokens, D width, H heads. Not for serving.
"""

# ruff: noqa: N803, N806  shapes live in names
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .backbone import Backbone, Tensors
from .head import Head

Array = NDArray[Any]


def embed(backbone: Backbone, tensors: Tensors, head: Head, ids: Sequence[int]) -> Array:
    """The unit vector of one row of token ids, float32 (dimension,)."""
    vector = np.concatenate([_POOL[mode](hidden(backbone, tensors, ids)) for mode in head.pooling])
    for dense in head.dense:
        vector = dense.weight @ vector + (0 if dense.bias is None else dense.bias)
        vector = np.tanh(vector) if dense.activation == "tanh" else vector
    return (vector / max(float(np.linalg.norm(vector)), 1e-12)).astype(np.float32)


def hidden(backbone: Backbone, tensors: Tensors, ids: Sequence[int]) -> Array:
    """The last hidden state, (T, D)."""
    words = tensors["embeddings.word_embeddings.weight"][list(ids)]
    places = tensors["embeddings.position_embeddings.weight"][: len(ids)]
    kind = tensors["embeddings.token_type_embeddings.weight"][0]
    x_TD = _norm(words + places + kind, backbone, tensors, "embeddings.LayerNorm")
    for layer in range(backbone.layers):
        x_TD = _layer(x_TD, backbone, tensors, f"encoder.layer.{layer}")
    return x_TD


def _layer(x_TD: Array, backbone: Backbone, tensors: Tensors, at: str) -> Array:
    attended = _linear(
        _attend(x_TD, backbone, tensors, f"{at}.attention.self"), tensors, f"{at}.attention.output.dense"
    )
    x_TD = _norm(x_TD + attended, backbone, tensors, f"{at}.attention.output.LayerNorm")
    inner = _ACTIVATE[backbone.activation](_linear(x_TD, tensors, f"{at}.intermediate.dense"))
    return _norm(
        x_TD + _linear(inner, tensors, f"{at}.output.dense"), backbone, tensors, f"{at}.output.LayerNorm"
    )


def _attend(x_TD: Array, backbone: Backbone, tensors: Tensors, at: str) -> Array:
    q_THd, k_THd, v_THd = (
        _linear(x_TD, tensors, f"{at}.{part}").reshape(len(x_TD), backbone.heads, -1)
        for part in ("query", "key", "value")
    )
    scores_HTT = np.einsum("thd,shd->hts", q_THd, k_THd, optimize=True) / np.sqrt(q_THd.shape[-1])
    weights_HTT = np.exp(scores_HTT - scores_HTT.max(-1, keepdims=True))
    weights_HTT /= weights_HTT.sum(-1, keepdims=True)
    mixed_TD: Array = np.einsum("hts,shd->thd", weights_HTT, v_THd, optimize=True).reshape(x_TD.shape)
    return mixed_TD


def _linear(x: Array, tensors: Tensors, at: str) -> Array:
    product: Array = x @ tensors[f"{at}.weight"].T + tensors[f"{at}.bias"]
    return product


def _norm(x: Array, backbone: Backbone, tensors: Tensors, at: str) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    spread = np.sqrt((centred**2).mean(-1, keepdims=True) + backbone.epsilon)
    normed: Array = centred / spread * tensors[f"{at}.weight"] + tensors[f"{at}.bias"]
    return normed


def erf(x: Array) -> Array:
    """Abramowitz and Stegun 7.1.26: within 1.5e-7. numpy has none, and scipy would come for one line."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    result: Array = np.sign(x) * (1 - series * np.exp(-(x**2)))
    return result


_ACTIVATE: dict[str, Callable[[Array], Array]] = {
    "gelu": lambda x: x * 0.5 * (1 + erf(x / np.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
}
_POOL: dict[str, Callable[[Array], Array]] = {
    "cls": lambda hidden_TD: hidden_TD[0],
    "max": lambda hidden_TD: hidden_TD.max(0),
    "mean": lambda hidden_TD: hidden_TD.mean(0),
    "mean_sqrt_len_tokens": lambda hidden_TD: hidden_TD.sum(0) / np.sqrt(len(hidden_TD)),
}

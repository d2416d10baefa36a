"""Appends a graph's head, which turns token vectors into one unit vector, or scores. Start at `append_head`.

    token vectors, attention_mask ─▶ pooling ─▶ layers … ─▶ pooled_embedding ─▶ L2 ─▶ sentence_embedding
                                                        logits ─▶ activation ─▶ scores, of a cross-encoder
    input_ids ─▶ does the row start with a prompt that pooling leaves out?

The names of appended values start with "simile.", so the fingerprint of an imported graph can skip them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from models.errors import Unsupported
from models.graph.file import LOGITS, POOLED, SCORES, SENTENCE
from models.graph.nodes import OPSET, Nodes

Vector = NDArray[np.float32]
# Keyed by the names that sentence-transformers saves.
ACTIVATIONS = {
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.SiLU": "silu",
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
}


@dataclass(frozen=True)
class Dense:
    """A `2_Dense` module: activation(x @ weight.T + bias)."""

    weight: Vector  # (out, in)
    bias: Vector | None  # (out,)
    activation: str


@dataclass(frozen=True)
class LayerNorm:
    """A `2_LayerNorm` module: (x - mean) / sqrt(variance + epsilon) * weight + bias."""

    weight: Vector  # (width,)
    bias: Vector
    epsilon: float = 1e-5  # The default of torch, which sentence-transformers uses.


@dataclass(frozen=True)
class Unit:
    """A `Normalize` module that is not the last module: x / |x|."""


Layer = Dense | LayerNorm | Unit


def layer_tensors(layer: Layer) -> dict[str, Vector]:
    """Returns the tensors of a layer under the names that sentence-transformers saves."""
    if isinstance(layer, Dense):
        bias = {} if layer.bias is None else {"linear.bias": layer.bias}
        return {"linear.weight": layer.weight} | bias
    return {"norm.weight": layer.weight, "norm.bias": layer.bias} if isinstance(layer, LayerNorm) else {}


def check_widths(layers: Sequence[Layer], width: int) -> None:
    """Rejects a layer whose input does not fit the output before it. The first input has `width` numbers."""
    for layer in layers:
        if isinstance(layer, Unit):
            continue
        out = layer.weight.shape[0]
        bias = (out,) if layer.bias is None else layer.bias.shape
        weight = (out, width) if isinstance(layer, Dense) else (width,)
        if layer.weight.shape != weight or bias != (out,):
            raise Unsupported(
                f"A {type(layer).__name__} after the pooling has weights {layer.weight.shape} and a bias "
                f"{bias}, but its input has {width} numbers."
            )
        width = out


def append_layer(n: Nodes, x: str, layer: Layer) -> str:
    if isinstance(layer, Unit):
        return n.unit(x)
    if isinstance(layer, LayerNorm):
        return _layer_norm(n, x, layer)
    x = n("MatMul", x, n.tensor(layer.weight.T))
    if layer.bias is not None:
        x = n("Add", x, n.tensor(layer.bias))
    return _activate(n, x, layer.activation)


def _layer_norm(n: Nodes, x: str, layer: LayerNorm) -> str:
    # The opset of an adopted graph may be older than the operator LayerNormalization.
    width = n.tensor(float(len(layer.weight)))
    centered = n("Sub", x, n("Div", n("ReduceSum", x, n.ints(1), keepdims=1), width))
    variance = n("Div", n("ReduceSum", n("Mul", centered, centered), n.ints(1), keepdims=1), width)
    spread = n("Sqrt", n("Add", variance, n.tensor(layer.epsilon)))
    return n("Add", n("Mul", n("Div", centered, spread), n.tensor(layer.weight)), n.tensor(layer.bias))


def _activate(n: Nodes, x: str, activation: str) -> str:
    if activation == "identity":
        return x
    if activation == "gelu":
        return n.gelu(x)
    if activation == "silu":
        return n("Mul", x, n("Sigmoid", x))
    return n({"tanh": "Tanh", "relu": "Relu", "sigmoid": "Sigmoid"}[activation], x)


SCOPE = "simile."
# Every pooling but `mask:K`, with its flag in older releases of sentence-transformers, which concatenate in
# this order. None: sentence-transformers does not know it. A new one is computed in `_Pooling` below, in
# reference.py and in from_torch/pooling.py, and docs/MODELS.md names it, as tests check.
POOLING_FLAGS: dict[str, str | None] = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
    "min": None,
}
POOLINGS = tuple(name for name, flag in POOLING_FLAGS.items() if flag is not None)
TOKENS = ("last", "first_last", "top2", "static")
FIRST = "first"  # The last layer's vector of the first token, shape (batch, 1, width).
MIXED = ("first_last", "top2")  # Averages of the last layer and another layer.
STATIC_MEAN = ("static.mean",)  # Pooling of a sentence-transformers word table.
_MASK = re.compile(r"mask:(0|[1-9]\d{0,3})")
_LAST = "lasttoken"


class Prompt(NamedTuple):
    """A prompt whose tokens are not pooled.

    In rows that start with `ids`, pooling leaves out the first `tokens` tokens.
    """

    ids: tuple[int, ...]
    tokens: int


@dataclass(frozen=True)
class Head:
    """Describes the pooling and the layers after it.

    Args:
        pooling: One or more of POOLING_FLAGS or `mask:K`. Their results are concatenated. `mask:K` is the
            vector K tokens before the last one, where a prompt template has its [MASK] (template.py).
        layers: Layers that are applied to the pooled vector.
        activation: Function from a cross-encoder's logits to its scores: sigmoid, softmax or identity. Empty
            for an encoder, whose vectors are scaled to length 1.
        tokens: Which token vectors are pooled: those of the last layer (`last`), the mean of the first and
            last layers (`first_last`), the mean of the last two layers (`top2`), or rows of the word table
            (`static`).
        left_out: Prompts that influence the token vectors but are not pooled.

    Raises:
        Unsupported: The pooling is unknown, or would not depend on the text.
    """

    pooling: tuple[str, ...]
    layers: tuple[Layer, ...]
    tokens: str = "last"
    left_out: tuple[Prompt, ...] = ()
    activation: str = ""

    def __post_init__(self) -> None:
        known = all(mode in POOLING_FLAGS or mask_distance(mode) is not None for mode in self.pooling)
        if not self.pooling or not known or self.tokens not in TOKENS:
            raise Unsupported(f"The pooling {self.names} is not supported; {', '.join(POOLINGS)} are.")
        if self.tokens == "static" and any(
            mode == "cls" or mask_distance(mode) is not None for mode in self.pooling
        ):
            raise Unsupported("The static vector of a special token is the same for every text.")

    @classmethod
    def of(
        cls, names: Sequence[str], layers: tuple[Layer, ...] = (), left_out: tuple[Prompt, ...] = ()
    ) -> Head:
        """Creates a head from names of poolings, such as those of the property `names`.

        Raises:
            Unsupported: A name is unknown, or the poolings do not use the same token vectors.
        """
        parts = [name.rpartition(".") for name in names]
        tokens = parts[0][0] or "last" if parts else "last"
        head = cls(tuple(mode for _, _, mode in parts), layers, tokens, left_out)
        if head.names != tuple(names):
            raise Unsupported(
                f"The pooling {tuple(names)} is not supported: all poolings must use the same token vectors."
            )
        return head

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the poolings in manifests, for example `mean`, `first_last.mean` or `mask:2`."""
        prefix = "" if self.tokens == "last" else f"{self.tokens}."
        return tuple(prefix + mode for mode in self.pooling)

    @property
    def graph_tokens(self) -> str:
        """The token vectors that a graph computes: `tokens`, or FIRST if a cross-encoder pools `cls`."""
        first = self.activation and self.pooling == ("cls",) and not self.left_out
        return FIRST if first else self.tokens

    @property
    def portable(self) -> bool:
        """True if sentence-transformers supports the pooling."""
        return set(self.names) <= set(POOLINGS)

    def dimension(self, width: int) -> int:
        last = next((layer for layer in reversed(self.layers) if isinstance(layer, Dense)), None)
        return len(last.weight) if last else width * len(self.pooling)


def beside_last(tokens: str, layers: int) -> int:
    """Returns the index of the layer whose output is averaged with the output of the last layer.

    Raises:
        Unsupported: `tokens` is `top2`, and the model has only one layer.
    """
    if tokens == "top2" and layers < 2:
        raise Unsupported("The pooling top2 needs two layers, and the model has one.")
    return 0 if tokens == "first_last" else layers - 2


def mask_distance(mode: str) -> int | None:
    """Returns the distance from the last token to the pooled token, or None for other poolings.

    The result is K for `mask:K`, and 0 for `lasttoken`.
    """
    if mode == _LAST:
        return 0
    found = _MASK.fullmatch(mode)
    return int(found[1]) if found else None


def append_head(graph: onnx.GraphProto, tokens: str, head: Head, dimension: int, opset: int = OPSET) -> None:
    """Appends the head and both of its outputs to a graph.

    Args:
        tokens: Name of the token vectors, shape (batch, sequence, width).
        dimension: Size of the resulting vector.
    """
    nodes = Nodes(graph, SCOPE, opset)
    pooling = _Pooling(nodes, tokens, head)
    pooled = [pooling.vector(mode) for mode in head.pooling]
    vector = pooled[0] if len(pooled) == 1 else nodes("Concat", *pooled, axis=-1)
    for layer in head.layers:
        vector = append_layer(nodes, vector, layer)
    if head.activation:
        append_scores(nodes, vector, head.activation, dimension)
    else:
        append_normalize(nodes, vector, dimension)


def append_scores(nodes: Nodes, logits: str, activation: str, dimension: int) -> None:
    """Appends both outputs of a cross-encoder, `scores` and `logits`, computed from the value `logits`.

    They replace the other outputs.
    """
    raw = logits if logits == LOGITS else nodes("Identity", logits, out=LOGITS)
    options = {"axis": 1} if activation == "softmax" else {}
    nodes(activation.capitalize(), raw, out=SCORES, **options)
    del nodes.graph.output[:]
    _add_outputs(nodes, (SCORES, LOGITS), dimension)


def append_normalize(nodes: Nodes, vector: str, dimension: int) -> None:
    """Appends both outputs, `pooled_embedding` and `sentence_embedding`, computed from the value `vector`."""
    pooled = nodes("Identity", vector, out=POOLED)
    nodes.unit(pooled, out=SENTENCE)
    _add_outputs(nodes, (SENTENCE, POOLED), dimension)


def _add_outputs(nodes: Nodes, names: Sequence[str], dimension: int) -> None:
    for name in names:
        nodes.graph.output.append(
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", dimension])
        )


class _Pooling:
    def __init__(self, nodes: Nodes, hidden: str, head: Head) -> None:
        left_out = head.left_out
        self._nodes = n = nodes
        self._hidden = hidden
        self._is_table = head.tokens == "static"
        self._skipped = _skipped(n, left_out) if left_out else ""  # (batch, 1), tokens of the prompt
        self._places = ""  # (batch, sequence): 1 for the first token, 2 for the second …
        mask = n("Cast", "attention_mask", to=TensorProto.FLOAT)
        if left_out:
            after_prompt = n("Greater", self._counted(), self._skipped)
            mask = n("Mul", mask, n("Cast", after_prompt, to=TensorProto.FLOAT))
        self._mask = n("Unsqueeze", mask, n.ints(2))  # (batch, sequence, 1)

    def vector(self, mode: str) -> str:
        n = self._nodes
        distance = mask_distance(mode)
        if distance is not None:
            length = n("ReduceSum", "attention_mask", n.ints(1), keepdims=1)
            place = n("Sub", length, n.ints(distance + 1))  # (batch, 1). Padding is on the right.
            return n("GatherND", self._hidden, place, batch_dims=1)
        if mode == "cls":
            if self._skipped:
                return n("GatherND", self._hidden, self._skipped, batch_dims=1)
            return n("Gather", self._hidden, n.tensor(0, np.int64), axis=1)
        if mode == "min":
            return n("Neg", self._maximum(n("Neg", self._hidden)))
        if mode == "max":
            return self._maximum(self._hidden)
        weights = self._mask
        if mode == "weightedmean":
            places = n("Cast", self._counted(), to=TensorProto.FLOAT)
            weights = n("Mul", self._mask, n("Unsqueeze", places, n.ints(2)))
        if self._is_table:  # MatMul adds in blocks; adding thousands of rows in sequence loses digits.
            total = n("MatMul", n("Transpose", weights, perm=(0, 2, 1)), self._hidden)
            total = n("Squeeze", total, n.ints(1))
        else:
            total = n("ReduceSum", n("Mul", self._hidden, weights), n.ints(1), keepdims=0)
        count = n("Max", n("ReduceSum", weights, n.ints(1), keepdims=0), n.tensor(1e-9))
        return n("Div", total, n("Sqrt", count) if mode == "mean_sqrt_len_tokens" else count)

    def _maximum(self, hidden: str) -> str:
        """Computes the maxima of token vectors. Rows without tokens get zeros; only word tables have them."""
        n = self._nodes
        padded = n("Mul", n("Sub", n.tensor(1.0), self._mask), n.tensor(-1e30))
        extremes = n.maximum(n("Add", n("Mul", hidden, self._mask), padded), axis=1)
        if not self._is_table:
            return extremes
        some = n("Greater", n("ReduceSum", self._mask, n.ints(1), keepdims=0), n.tensor(0.0))
        return n("Where", some, extremes, n.tensor(0.0))

    def _counted(self) -> str:
        if not self._places:
            self._places = self._nodes("CumSum", "attention_mask", self._nodes.tensor(1, np.int64))
        return self._places


def _skipped(n: Nodes, left_out: Sequence[Prompt]) -> str:
    """Adds nodes that count the tokens of a row's left-out prompt. Their result has the shape (batch, 1)."""
    longest = max(len(prompt.ids) for prompt in left_out)
    ids = n("Pad", "input_ids", n.ints(0, 0, 0, longest), n.tensor(-1, np.int64))
    counts = []
    for prompt in left_out:
        size = len(prompt.ids)
        first = n("Slice", ids, n.ints(0), n.ints(size), n.ints(1))
        same = n("Cast", n("Equal", first, n.tensor([prompt.ids], np.int64)), to=TensorProto.INT64)
        begins = n("Equal", n("ReduceSum", same, n.ints(1), keepdims=1), n.ints(size))
        counts.append(n("Mul", n("Cast", begins, to=TensorProto.INT64), n.ints(prompt.tokens)))
    return counts[0] if len(counts) == 1 else n("Max", *counts)

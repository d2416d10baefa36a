"""The head of a graph turns token vectors into one unit vector. Start at `Head` and `append_head`.

    token vectors, attention_mask ─▶ pooling ─▶ layers … ─▶ pooled_embedding ─▶ L2 ─▶ sentence_embedding
    input_ids ─▶ does the row start with a prompt that pooling leaves out?

Added values have names that start with "simile.", so the fingerprint of an imported graph can skip them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper

from models.errors import Unsupported
from models.graph.layers import Dense, Layer, append_layer
from models.graph.nodes import OPSET, Nodes

SCOPE = "simile."
POOLED = "pooled_embedding"
SENTENCE = "sentence_embedding"
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
MIXED = ("first_last", "top2")  # Averages of the last layer and another layer.
STATIC_MEAN = ("static.mean",)  # Pooling of a sentence-transformers word table.
_MASK = re.compile(r"mask:(0|[1-9]\d{0,3})")
_LAST = "lasttoken"


class Prompt(NamedTuple):
    """Pooling leaves out the first `tokens` tokens of rows that start with `ids`."""

    ids: tuple[int, ...]
    tokens: int


@dataclass(frozen=True)
class Head:
    """Pooling and the layers after it.

    Args:
        pooling: One or more of POOLING_FLAGS, or `mask:K`, the vector K tokens before the last one, where a
            prompt template has its [MASK] (template.py). Results are concatenated.
        tokens: Which token vectors are pooled: `last` layer, mean of the first and last layer (`first_last`),
            mean of the last two layers (`top2`), or rows of the word table (`static`).
        left_out: Prompts that influence the token vectors but are not pooled.

    Raises:
        Unsupported: The pooling is unknown, or would not depend on the text.
    """

    pooling: tuple[str, ...]
    layers: tuple[Layer, ...]
    tokens: str = "last"
    left_out: tuple[Prompt, ...] = ()

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
        """Creates a head from the pooling names of a folder. Raises Unsupported."""
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
        """The poolings as folders name them: `mean`, `first_last.mean`, `mask:2`."""
        prefix = "" if self.tokens == "last" else f"{self.tokens}."
        return tuple(prefix + mode for mode in self.pooling)

    @property
    def portable(self) -> bool:
        """True if sentence-transformers supports the pooling."""
        return set(self.names) <= set(POOLINGS)

    def dimension(self, width: int) -> int:
        last = next((layer for layer in reversed(self.layers) if isinstance(layer, Dense)), None)
        return len(last.weight) if last else width * len(self.pooling)


def beside_last(tokens: str, layers: int) -> int:
    """Returns the index of the layer whose output is averaged with the last layer's."""
    if tokens == "top2" and layers < 2:
        raise Unsupported("The pooling top2 needs two layers, and the model has one.")
    return 0 if tokens == "first_last" else layers - 2


def mask_distance(mode: str) -> int | None:
    """Returns the distance to the last token for `mask:K` and `lasttoken`, None for others."""
    if mode == _LAST:
        return 0
    found = _MASK.fullmatch(mode)
    return int(found[1]) if found else None


def append_head(graph: onnx.GraphProto, tokens: str, head: Head, dimension: int, opset: int = OPSET) -> None:
    """Appends the head to a graph.

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
    append_normalise(nodes, vector, dimension)


def append_normalise(nodes: Nodes, vector: str, dimension: int) -> None:
    """Appends both outputs, computed from the value `vector`."""
    pooled = nodes("Identity", vector, out=POOLED)
    nodes.unit(pooled, out=SENTENCE)
    for name in (SENTENCE, POOLED):
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
            padded = n("Mul", n("Sub", self._mask, n.tensor(1.0)), n.tensor(-1e30))
            negated = n("Neg", n("Add", n("Mul", self._hidden, self._mask), padded))
            return self._or_zeros(n("Neg", n.maximum(negated, axis=1)))
        if mode == "max":
            padded = n("Mul", n("Sub", n.tensor(1.0), self._mask), n.tensor(-1e30))
            return self._or_zeros(n.maximum(n("Add", n("Mul", self._hidden, self._mask), padded), axis=1))
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

    def _or_zeros(self, extremes: str) -> str:
        """Replaces the result of rows without tokens by zeros. Only word tables have such rows."""
        n = self._nodes
        if not self._is_table:
            return extremes
        some = n("Greater", n("ReduceSum", self._mask, n.ints(1), keepdims=0), n.tensor(0.0))
        return n("Where", some, extremes, n.tensor(0.0))

    def _counted(self) -> str:
        if not self._places:
            self._places = self._nodes("CumSum", "attention_mask", self._nodes.tensor(1, np.int64))
        return self._places


def _skipped(n: Nodes, left_out: Sequence[Prompt]) -> str:
    """Counts the tokens of the longest prompt that each row starts with, shape (batch, 1)."""
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

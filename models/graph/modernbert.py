"""Writes the ONNX graph of a ModernBERT. Start at `modernbert_graph`.

    words ─▶ norm ─▶ layer, layer, … ─▶ norm
    layer: x + attention(norm(x)), then x + down(activation(up(norm(x))) * gate(norm(x)))

Positions are encoded by rotating queries and keys (RoPE). In most layers, a token attends only to tokens
within a window. In every third layer, it attends to all tokens (Warner et al. 2024).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from models.errors import Unsupported
from models.graph.backbone import ACTIVATIONS, OTHERS, SIZES, Tensors, get_size
from models.graph.bert import INPUTS, empty_graph
from models.graph.blocks import MASKED, Packing, Steps, plain
from models.graph.file import HIDDEN
from models.graph.head import FIRST
from models.graph.nodes import Aside, Nodes

FAMILY = "modernbert"
GLOBAL, LOCAL = "full_attention", "sliding_attention"
_THETA = {GLOBAL: 160_000.0, LOCAL: 10_000.0}  # Defaults if config.json has none.
_OLD_THETA = {GLOBAL: "global_rope_theta", LOCAL: "local_rope_theta"}


@dataclass(frozen=True)
class ModernBackbone:
    """The sizes of a ModernBERT encoder, as its config.json states them."""

    layers: int
    width: int
    heads: int
    inner: int
    vocabulary: int
    positions: int
    activation: str
    epsilon: float
    kinds: tuple[str, ...]  # GLOBAL or LOCAL for each layer.
    window: int  # Largest distance of two tokens in local attention.
    theta: tuple[float, float]  # RoPE base of global layers and of local layers.
    biases: tuple[str, ...]  # Parts with a bias, among `norm`, `attention` and `mlp`.

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModernBackbone:
        activation = config.get("hidden_activation", "gelu")
        if activation not in ACTIVATIONS:
            raise Unsupported(f"The activation {activation!r} is not supported. {OTHERS}")
        sizes = {field: get_size(config, name) for field, name in SIZES.items() if field != "types"}
        if sizes["width"] % (2 * sizes["heads"]):
            raise Unsupported(f"{sizes['width']} dimensions cannot be shared among {sizes['heads']} heads.")
        every = config.get("global_attn_every_n_layers") or 3
        kinds = config.get("layer_types") or [
            LOCAL if layer % every else GLOBAL for layer in range(sizes["layers"])
        ]
        if len(kinds) != sizes["layers"] or not set(kinds) <= {GLOBAL, LOCAL}:
            raise Unsupported(f"Layers of the types {sorted(set(kinds))} are not supported. {OTHERS}")
        return cls(
            **sizes,
            activation=ACTIVATIONS[activation],
            epsilon=float(config.get("norm_eps", 1e-5)),
            kinds=tuple(kinds),
            window=int(config.get("local_attention", 128)) // 2,
            theta=(_theta(config, GLOBAL), _theta(config, LOCAL)),
            biases=tuple(part for part in ("norm", "attention", "mlp") if config.get(f"{part}_bias")),
        )

    @property
    def said(self) -> dict[str, Any]:
        return {"family": FAMILY, **asdict(self)}

    def shapes(self, _: str = "last") -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yields the name and shape of each tensor in the graph.

        Weight matrices have the shape (outputs, inputs).
        """
        d = self.width
        yield "embeddings.tok_embeddings.weight", (self.vocabulary, d)
        yield from self._both("norm", "embeddings.norm", (d,))
        for layer in range(self.layers):
            at = f"layers.{layer}"
            if layer:  # The input of the first layer is already normalized.
                yield from self._both("norm", f"{at}.attn_norm", (d,))
            yield from self._both("attention", f"{at}.attn.Wqkv", (3 * d, d))
            yield from self._both("attention", f"{at}.attn.Wo", (d, d))
            yield from self._both("norm", f"{at}.mlp_norm", (d,))
            yield from self._both("mlp", f"{at}.mlp.Wi", (2 * self.inner, d))
            yield from self._both("mlp", f"{at}.mlp.Wo", (d, self.inner))
        yield from self._both("norm", "final_norm", (d,))

    def _both(self, part: str, at: str, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{at}.weight", shape
        if part in self.biases:
            yield f"{at}.bias", shape[:1]

    def rotations(self, kind: str, length: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Returns the cosines and the sines of the rotation angles, each float32 (length, head size / 2)."""
        size = self.width // self.heads
        angles = np.float32(self.theta[kind == LOCAL]) ** (
            np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
        )
        turns = np.arange(length, dtype=np.float32)[:, None] * (np.float32(1) / angles)
        return np.cos(turns), np.sin(turns)


def _theta(config: Mapping[str, Any], kind: str) -> float:
    said = (config.get("rope_parameters") or {}).get(kind) or {}
    if said.get("rope_type", "default") != "default" or config.get("rope_scaling"):
        raise Unsupported(f"RoPE variants other than the default are not supported. {OTHERS}")
    return float(said.get("rope_theta") or config.get(_OLD_THETA[kind]) or _THETA[kind])


def modernbert_graph(
    backbone: ModernBackbone,
    tensors: Tensors,
    longest: int,
    aside: Aside | None = None,
    tokens: str = "last",
) -> onnx.GraphProto:
    """Builds the graph up to the token vectors.

    Args:
        longest: Maximum number of tokens in a row.
        tokens: FIRST if only the vectors of first tokens are needed.
    """
    graph = empty_graph(FAMILY, INPUTS[:2], backbone.width)
    _Writer(backbone, tensors, Nodes(graph, "bert.", aside=aside), longest).layers(first=tokens == FIRST)
    return graph


class _Writer(Steps[ModernBackbone]):
    def __init__(self, backbone: ModernBackbone, tensors: Tensors, nodes: Nodes, longest: int) -> None:
        super().__init__(backbone, tensors, nodes)
        self._longest = longest

    def layers(self, *, first: bool) -> None:
        n, modern = self._nodes, self._backbone
        mask = self._mask()
        masks = {GLOBAL: mask, LOCAL: n("Add", mask, self._far())}
        packing = Packing(n, modern.heads, modern.width // modern.heads)
        turns = {kind: self._turns(kind, packing.columns) for kind in sorted(set(modern.kinds))}
        words = n("Gather", self._weight("embeddings.tok_embeddings"), packing.pack("input_ids"))
        x = self._normalize(words, "embeddings.norm")
        for layer, kind in enumerate(modern.kinds):
            at = f"layers.{layer}"
            normed = self._normalize(x, f"{at}.attn_norm") if layer else x
            last = first and layer == modern.layers - 1
            how = {"first": last}
            mixed = self._turned_attention(normed, masks[kind], turns[kind], packing, f"{at}.attn", **how)
            x = n("Add", packing.first(x) if last else x, self._linear(mixed, f"{at}.attn.Wo"))
            x = n("Add", x, self._gated(self._normalize(x, f"{at}.mlp_norm"), f"{at}.mlp"))
        x = self._normalize(x, "final_norm")
        if first:
            n("Unsqueeze", x, n.ints(1), out=HIDDEN)
        else:
            packing.unpack(x, HIDDEN)

    def _far(self) -> str:
        """Returns the mask of the attention window, shape (sequence, sequence).

        It is MASKED for pairs of tokens that are too far apart, else 0.
        """
        n = self._nodes
        places = plain(n)
        apart = n("Abs", n("Sub", n("Unsqueeze", places, n.ints(0)), n("Unsqueeze", places, n.ints(1))))
        far = n("Greater", apart, n.tensor(self._backbone.window, np.int64))
        return n("Mul", n("Cast", far, to=TensorProto.FLOAT), n.tensor(MASKED))

    def _turns(self, kind: str, columns: str) -> tuple[str, str]:
        """Returns cosines and sines of the packed tokens' rotation angles, each (tokens, 1, size / 2)."""
        n = self._nodes
        cosine, sine = (
            n("Unsqueeze", n("Gather", n.tensor(table), columns), n.ints(1))
            for table in self._backbone.rotations(kind, self._longest)
        )
        return cosine, sine

    def _turned_attention(
        self, x: str, mask: str, turns: tuple[str, str], packing: Packing, at: str, *, first: bool
    ) -> str:
        of_query = packing.first(x) if first else x
        query, key, value = self._parts((of_query, x, x), f"{at}.Wqkv", ("query", "key", "value"))
        if not first:  # The angle of a first token is 0.
            query = self._turned(query, turns)
        return packing.attend(query, self._turned(key, turns), value, mask, first=first)

    def _turned(self, x: str, turns: tuple[str, str]) -> str:
        """Splits `x` (tokens, width) into heads (tokens, heads, size), and rotates pairs of numbers.

        The two numbers of a pair come from the two halves of a head.
        """
        n, heads = self._nodes, self._backbone.heads
        size = self._backbone.width // heads
        cosine, sine = turns
        pieces = n("Reshape", x, n.ints(-1, heads, size))
        first, second = (
            n("Slice", pieces, n.ints(start), n.ints(start + size // 2), n.ints(2))
            for start in (0, size // 2)
        )
        left = n("Sub", n("Mul", first, cosine), n("Mul", second, sine))
        right = n("Add", n("Mul", second, cosine), n("Mul", first, sine))
        return n("Concat", left, right, axis=2)

    def _gated(self, x: str, at: str) -> str:
        up, gate = self._parts((x, x), f"{at}.Wi", ("up", "gate"))
        return self._linear(self._nodes("Mul", self._activate(up), gate), f"{at}.Wo")

    def _parts(self, inputs: tuple[str, ...], at: str, names: tuple[str, ...]) -> list[str]:
        """Splits one linear layer into equal parts, and applies each part to its input."""
        n = self._nodes
        weights = np.split(self._tensors[f"{at}.weight"], len(names))
        found = [
            n("MatMul", x, n.tensor(weight.T, name=f"{at}.{name}.weight"))
            for x, weight, name in zip(inputs, weights, names, strict=True)
        ]
        if (bias := self._tensors.get(f"{at}.bias")) is None:
            return found
        return [
            n("Add", part, n.tensor(own)) for part, own in zip(found, np.split(bias, len(names)), strict=True)
        ]

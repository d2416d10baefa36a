"""Building blocks of layers that all families share."""

from __future__ import annotations

import math
from typing import Generic, Protocol, TypeVar

from onnx import TensorProto

from models.graph.backbone import Tensors
from models.graph.nodes import Nodes

# exp(-1e4) is exactly 0 in float32, so a padded token gets no weight.
MASKED = -10000.0


class Functions(Protocol):
    """The fields of a backbone that the steps use."""

    @property
    def activation(self) -> str: ...
    @property
    def epsilon(self) -> float: ...


Kind = TypeVar("Kind", bound=Functions)


class Steps(Generic[Kind]):
    def __init__(self, backbone: Kind, tensors: Tensors, nodes: Nodes) -> None:
        self._backbone = backbone
        self._tensors = tensors
        self._nodes = nodes

    def _mask(self) -> str:
        """Returns 0 for tokens and MASKED for padding, shape (batch, 1, 1, sequence)."""
        n = self._nodes
        mask = n("Unsqueeze", "attention_mask", n.ints(1))
        mask = n("Cast", n("Unsqueeze", mask, n.ints(2)), to=TensorProto.FLOAT)
        return n("Mul", n("Sub", n.tensor(1.0), mask), n.tensor(MASKED))

    def _activate(self, x: str) -> str:
        n = self._nodes
        if self._backbone.activation == "relu":
            return n("Relu", x)
        if self._backbone.activation == "gelu":
            gate = n("Add", n("Erf", n("Div", x, n.tensor(math.sqrt(2)))), n.tensor(1.0))
            return n("Mul", n("Mul", x, gate), n.tensor(0.5))
        cubed = n("Mul", n("Pow", x, n.tensor(3.0)), n.tensor(0.044715))
        tanh = n("Tanh", n("Mul", n("Add", x, cubed), n.tensor(math.sqrt(2 / math.pi))))
        return n("Mul", n("Mul", x, n.tensor(0.5)), n("Add", tanh, n.tensor(1.0)))

    def _linear(self, x: str, at: str) -> str:
        n = self._nodes
        product = n("MatMul", x, n.tensor(self._tensors[f"{at}.weight"].T, name=f"{at}.weight"))
        bias = self._tensors.get(f"{at}.bias")
        return product if bias is None else n("Add", product, n.tensor(bias, name=f"{at}.bias"))

    def _normalise(self, x: str, at: str) -> str:
        n = self._nodes
        scale, bias = self._tensors[f"{at}.weight"], self._tensors.get(f"{at}.bias")
        both = [n.tensor(scale, name=f"{at}.weight")]
        both.append(n.tensor(0 * scale if bias is None else bias, name=f"{at}.bias"))
        return n("LayerNormalization", x, *both, axis=-1, epsilon=self._backbone.epsilon)

    def _weight(self, at: str) -> str:
        return self._nodes.tensor(self._tensors[f"{at}.weight"], name=f"{at}.weight")

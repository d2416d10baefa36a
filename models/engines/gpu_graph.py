"""Converts a published graph for a GPU: fused operators, in fp32 or fp16. Start at `prepared`.

    input_ids, token_type_ids ─▶ EmbedLayerNormalization ─▶ layer, layer, … ─▶ last_hidden_state ─▶ head
    attention_mask ─▶ number of tokens of each text ─▶ Attention
    layer: Attention, MatMul, SkipLayerNormalization, MatMul, BiasGelu, MatMul, SkipLayerNormalization

The fused graph replaces a graph that bert.py wrote, and does not pack tokens. Packing is slow on a GPU,
because it waits for the CPU and changes the tensor shapes with every batch. Graphs of other tools are not
fused. Callers must verify the vectors.

`to_half` converts a graph to fp16, except the nodes of head.py: pooling, dense layers and L2. Sums over 512
tokens and squared lengths lose digits in fp16, and computing these nodes in fp32 costs almost nothing.
Normalization between layers returns fp16, because fp32 there gained nothing: on 192 texts,
all-MiniLM-L6-v2 had a smallest cosine to fp32 of 0.999999 either way.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.engines.form import Precision
from models.errors import Unsupported
from models.files.bounded import parse_json
from models.graph.backbone import KIN, Backbone
from models.graph.bert import POOLED_FROM
from models.graph.blocks import DISTANCES, counted, distances, packs, plain
from models.graph.file import HIDDEN, LARGEST, RESULTS
from models.graph.head import MIXED, SCOPE, beside_last
from models.graph.nodes import CONTRIB, Nodes, rename


def prepared(file: Path, precision: Precision) -> bytes:
    """Returns the published graph as a serialized ONNX model, in fp32 or fp16.

    Raises:
        Unsupported: The graph cannot be computed in fp16, or its weights exceed 2 GB.
    """
    model = onnx.load(file)
    config = parse_json((file.parents[1] / "config.json").read_bytes())
    if packs(model.graph) and config.get("model_type") in KIN:
        model = joined(model, Backbone.from_config(config))
    if precision == "fp16":
        to_half(model)
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) > LARGEST:
        raise Unsupported(
            f"The model is too large for a GPU in {precision}: its graph is limited to 2 GB. "
            "Serve it in fp16 (SIMILE_PRECISION=fp16) or with SIMILE_DEVICE=cpu."
        )
    graph: bytes = model.SerializeToString()
    return graph


def joined(model: onnx.ModelProto, backbone: Backbone) -> onnx.ModelProto:
    """Builds the fused graph that replaces the graph of a published `model`, which must pack tokens.

    The fused graph does not output token vectors.
    """
    found = onnx.GraphProto(name="bert")
    found.input.extend(model.graph.input)
    head = [node for node in model.graph.node if node.name.startswith(SCOPE)]
    head_inputs = {name for node in head for name in node.input}
    mixed = [tokens for tokens in MIXED if POOLED_FROM[tokens] in head_inputs]
    _Writer(backbone, model.graph, found).layers(*mixed)
    found.node.extend(head)
    written = {tensor.name for tensor in found.initializer}
    missing = head_inputs - written
    found.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in missing)
    found.output.extend(output for output in model.graph.output if output.name in RESULTS)
    opsets = [*model.opset_import, helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(found, opset_imports=opsets, ir_version=model.ir_version)


class _Writer:
    def __init__(self, backbone: Backbone, published: onnx.GraphProto, graph: onnx.GraphProto) -> None:
        self._backbone = backbone
        self._tensors = {tensor.name: tensor for tensor in published.initializer}
        self._nodes = Nodes(graph, "bert.")
        self._apart: list[str] = []  # Extra inputs of Attention in some families.

    def layers(self, tokens: str = "last") -> None:
        n, backbone = self._nodes, self._backbone
        x, lengths = self._embeddings()
        found = []
        for layer in range(backbone.layers):
            last = layer == backbone.layers - 1
            x = self._layer(x, lengths, f"encoder.layer.{layer}", HIDDEN if last else "")
            found.append(x)
        if tokens in MIXED:
            mean = n("Add", found[beside_last(tokens, backbone.layers)], x)
            n("Mul", mean, n.tensor(0.5), out=POOLED_FROM[tokens])

    def _embeddings(self) -> tuple[str, str]:
        """Writes the embeddings.

        Returns:
            The names of the embeddings, shape (batch, sequence, width), and of each text's number of tokens.
        """
        n, backbone = self._nodes, self._backbone
        if not backbone.types or backbone.padding is not None or backbone.table:
            return self._plain_embeddings()
        ids, types, mask = (
            n("Cast", name, to=TensorProto.INT32)
            for name in ("input_ids", "token_type_ids", "attention_mask")
        )
        tables = [
            self._weight(f"embeddings.{kind}_embeddings") for kind in ("word", "position", "token_type")
        ]
        inputs = ids, types, *tables, *self._both("embeddings.LayerNorm"), mask
        x = n("EmbedLayerNormalization", *inputs, domain=CONTRIB, epsilon=backbone.epsilon)
        lengths = "bert.lengths"
        n.graph.node[-1].output.append(lengths)
        return x, lengths

    def _plain_embeddings(self) -> tuple[str, str]:
        """Does the same as `_embeddings` without EmbedLayerNormalization, which supports only BERT."""
        n, backbone = self._nodes, self._backbone
        x = n("Gather", self._weight("embeddings.word_embeddings"), "input_ids")
        if backbone.types:
            x = n("Add", x, n("Gather", self._weight("embeddings.token_type_embeddings"), "token_type_ids"))
        places = plain(n) if backbone.padding is None else counted(n, backbone.padding)
        x = n("Add", x, n("Gather", self._weight("embeddings.position_embeddings"), places))
        both = self._both("embeddings.LayerNorm")
        x = n("LayerNormalization", x, *both, axis=-1, epsilon=backbone.epsilon)
        if backbone.table:
            project = "embeddings_project"
            x = n("Add", n("MatMul", x, self._weight(project)), self._bias(project))
        if backbone.buckets:
            self._apart = ["", distances(n, self._array(DISTANCES))]  # no past, attention bias
        lengths = n("ReduceSum", "attention_mask", n.ints(1), keepdims=0)
        return x, n("Cast", lengths, to=TensorProto.INT32)

    def _layer(self, x: str, lengths: str, at: str, out: str) -> str:
        n, heads = self._nodes, self._backbone.heads
        weight, bias = self._joined(f"{at}.attention.self")
        mixed = n("Attention", x, weight, bias, lengths, *self._apart, domain=CONTRIB, num_heads=heads)
        x = self._add_and_normalize(mixed, x, f"{at}.attention.output")
        inner = n("MatMul", x, self._weight(f"{at}.intermediate.dense"))
        inner = self._activate(inner, self._bias(f"{at}.intermediate.dense"))
        return self._add_and_normalize(inner, x, f"{at}.output", out)

    def _activate(self, x: str, bias: str) -> str:
        if self._backbone.activation == "relu":
            return self._nodes("Relu", self._nodes("Add", x, bias))
        kernel = "BiasGelu" if self._backbone.activation == "gelu" else "FastGelu"  # FastGelu uses tanh.
        return self._nodes(kernel, x, bias, domain=CONTRIB)

    def _add_and_normalize(self, x: str, before: str, at: str, out: str = "") -> str:
        n = self._nodes
        product = n("MatMul", x, self._weight(f"{at}.dense"))
        inputs = product, before, *self._both(f"{at}.LayerNorm"), self._bias(f"{at}.dense")
        epsilon = self._backbone.epsilon
        return n("SkipLayerNormalization", *inputs, out=out, domain=CONTRIB, epsilon=epsilon)

    def _joined(self, at: str) -> tuple[str, str]:
        """Concatenates the layers of query, key and value.

        Returns:
            The names of the weights, shape (width, 3 * width), and of the biases, shape (3 * width,).
        """
        parts = [f"{at}.{part}" for part in ("query", "key", "value")]
        names = [f"{at}.{kind}" for kind in ("weight", "bias")]
        for kind, name in zip(("weight", "bias"), names, strict=True):
            self._nodes.tensor(
                np.concatenate([self._array(f"{p}.{kind}") for p in parts], axis=-1), name=name
            )
        return names[0], names[1]

    def _both(self, at: str) -> tuple[str, str]:
        return self._weight(at), self._bias(at)

    def _weight(self, at: str) -> str:
        return self._nodes.tensor(self._array(f"{at}.weight"), name=f"{at}.weight")

    def _bias(self, at: str) -> str:
        return self._nodes.tensor(self._array(f"{at}.bias"), name=f"{at}.bias")

    def _array(self, name: str) -> NDArray[np.float32]:
        """Returns a tensor of the published graph. Weight matrices have the shape (inputs, outputs)."""
        return numpy_helper.to_array(self._tensors[name])


_TINIEST, _LARGEST = 2.0**-24, 65504.0  # Finite positive range of half precision.
_SUFFIX = ".fp16"


def to_half(model: onnx.ModelProto) -> None:
    """Converts a published graph to fp16 in place. The graph then outputs only its RESULTS, in fp32.

    Raises:
        Unsupported: The graph has branches or loops.
    """
    graph = model.graph
    for node in graph.node:
        if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            raise Unsupported(
                f"The graph has a {node.op_type}, which cannot be served in fp16. Set SIMILE_PRECISION=fp32."
            )
    del graph.value_info[:]
    outputs = [output for output in graph.output if output.name in RESULTS]
    del graph.output[:]
    graph.output.extend(outputs)
    head = [node for node in graph.node if node.name.startswith(SCOPE)]
    body = [node for node in graph.node if not node.name.startswith(SCOPE)]
    _halve_weights(graph, body, head)
    for node in body:
        _halve_attributes(node)
    _cast_between(graph, body, head)


def _halve_weights(
    graph: onnx.GraphProto, body: Iterable[onnx.NodeProto], head: Iterable[onnx.NodeProto]
) -> None:
    """Converts to fp16 the weights of the nodes of `body`.

    If the nodes of `head` use the same weight, its fp32 tensor stays in the graph for them.
    """
    of_body = {name for node in body for name in node.input}
    of_head = {name for node in head for name in node.input}
    for tensor in list(graph.initializer):
        if tensor.data_type != TensorProto.FLOAT or tensor.name not in of_body:
            continue
        small = numpy_helper.from_array(half(numpy_helper.to_array(tensor)), tensor.name)
        if tensor.name not in of_head:
            tensor.CopyFrom(small)
            continue
        small.name += _SUFFIX
        graph.initializer.append(small)
        for node in body:
            node.input[:] = [small.name if name == tensor.name else name for name in node.input]


def half(array: NDArray[np.float32]) -> NDArray[np.float16]:
    """Rounds numbers to fp16, but never to a new zero or infinity.

    An epsilon of 1e-12 must stay above 0, because it keeps a quotient finite. A mask of -3.4e38 must not
    become infinite, because 0 times infinity is not a number.
    """
    near = np.clip(array, -_LARGEST, _LARGEST)
    near = np.where((array != 0) & (np.abs(near) < _TINIEST), np.copysign(_TINIEST, array), near)
    return near.astype(np.float16)


def _halve_attributes(node: onnx.NodeProto) -> None:
    """Converts a node's constants to fp16, and its casts to fp32 into casts to fp16."""
    for attribute in node.attribute:
        if attribute.HasField("t") and attribute.t.data_type == TensorProto.FLOAT:
            attribute.t.CopyFrom(numpy_helper.from_array(half(numpy_helper.to_array(attribute.t))))
        elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.FLOAT16
        elif node.op_type == "Constant" and attribute.name in {"value_float", "value_floats"}:
            values = [attribute.f] if attribute.name == "value_float" else list(attribute.floats)
            shape = () if attribute.name == "value_float" else (len(values),)
            array = half(np.asarray(values, np.float32)).reshape(shape)
            attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(array)))


def _cast_between(graph: onnx.GraphProto, body: list[onnx.NodeProto], head: list[onnx.NodeProto]) -> None:
    """Casts the fp16 values that the head reads, or that the graph outputs, to fp32."""
    leaving = {name for node in head for name in node.input} | {output.name for output in graph.output}
    casts = []
    for name in [name for node in body for name in node.output if name in leaving]:
        inside = name + _SUFFIX
        rename(body, name, inside)
        casts.append(helper.make_node("Cast", [inside], [name], name=inside, to=TensorProto.FLOAT))
    del graph.node[:]
    graph.node.extend([*body, *casts, *head])
